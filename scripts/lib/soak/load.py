"""The load: callers, agents that beat and poll, operators, watchers, and strangers with bad tokens. Each is a loop."""

import asyncio
import json
import random
import time
import traceback

import agents
import harness
from wire import Answer, Broken, refusal_in

# Seconds within which it must be known what came of a write: longer than any fault, its recovery and any lease.
KNOWN_WITHIN = 150


def call(text, method="message/send", size=0):
    message = {"kind": "message", "messageId": text, "role": "user", "parts": [{"kind": "text", "text": text}]}
    if size:
        message["metadata"] = {"padding": "x" * size}
    return {"jsonrpc": "2.0", "id": text, "method": method, "params": {"message": message}}


class Worker:
    """One loop of one kind at one site, with chance of its own."""

    def __init__(self, kind, site, shared, seed, number):
        self.kind, self.site, self.shared = kind, site, shared
        self.client, self.tally, self.ledger = shared.client, shared.tally, shared.ledgers[site.name]
        self.chance = random.Random(f"{seed} {site.name} {kind} {number}")
        self.name = f"{site.name}-{kind}-{number}"
        self.count = 0

    def text(self):
        self.count += 1
        return f"{self.name}-{self.count}"

    async def pause(self, least, most):
        await asyncio.sleep(self.chance.uniform(least, most))

    def goes_on(self):
        return not self.shared.over.is_set()

    async def ask(self, kind, method, path, token, body=None, fields=None, on=None, deadline=60, fine=(), since=None):
        """One attempt at a gateway by chance. The answer, also a refusal, or `None`; errors are counted."""
        gateway, begun = on or self.chance.choice(self.site.gateways), time.monotonic()
        try:
            answer = await self.client.ask(gateway.port, method, path, token, body, fields, deadline, fresh=self.chance.random() < 0.25)
        except Broken as broken:
            self.failed(gateway, kind, broken.reason, since or begun)
            return None
        reason = answer.reason()
        if reason is None or reason in fine:
            self.tally.ok(kind, begun)
        else:
            self.failed(gateway, kind, reason, since or begun)
        return answer

    def failed(self, gateway, kind, reason, since):
        if kind != "check":
            self.tally.error(gateway.name, kind, reason, since)
        if reason == "internal":
            self.tally.breach("wrong", f"{kind}: internal, at {gateway.name}")
        if reason == "no_answer":
            self.tally.breach("stuck", f"{kind}: no answer, at {gateway.name}")

    async def insist(self, kind, method, path, token, body=None, fields=None, on=None, settled=None, fine=()):
        """Asks until it is settled; `None` when nobody says in time."""
        since = time.monotonic()
        while time.monotonic() < since + KNOWN_WITHIN:
            answer = await self.ask(kind, method, path, token, body, fields, on, fine=fine, since=since)
            if answer is not None and settled(answer):
                return answer
            await self.pause(0.2, 0.5)
        self.tally.breach("stuck", f"{kind}: {method} {path}: nobody says what came of it in {KNOWN_WITHIN} s")
        return None

    async def run(self):
        try:
            await getattr(self, f"_{self.kind}")()
        except asyncio.CancelledError:
            raise
        except Exception:
            self.tally.breach("wrong", f"{self.name} failed: {traceback.format_exc()}")

    async def _unary(self):
        token = self.site.tokens["caller"]
        while self.goes_on():
            text, size = self.text(), self.chance.choice([0, 0, 0, 500, 20_000, 200_000])
            answer = await self.ask("unary", "POST", "/workspaces/honest/a2a", token, call(text, size=size))
            if answer and answer.status == 200 and not answer.body.endswith(f'"echo {text}"}}]}}}}'.encode()):
                self.tally.breach("wrong", f"{text} was answered with {answer.body[:200]}")
            await self.pause(0.02, 0.08)

    async def _keyed(self):
        """Until the answer, or its loss, is known; then, now and then, once more: what was said stays."""
        token = self.site.tokens["caller"]
        while self.goes_on():
            text, begun = self.text(), time.monotonic()
            self.ledger.once.add(text)
            first = await self.what_came_of(text, token)
            if first is not None:
                self.ledger.keyed[text] = (first.status == 200, time.monotonic())
                if self.chance.random() < 0.3:
                    self.compare(text, begun, first, await self.what_came_of(text, token))
            await self.pause(0.05, 0.2)

    def compare(self, text, begun, first, again):
        if again is None or first.status == again.status and (first.status != 200 or first.body == again.body):
            return
        if first.status == 200 and again.status != 200 and self.shared.troubled_since(begun):
            # An answer that SQL did not take is given all the same, and unknown to who comes again.
            self.tally.odd["call with a key: answered, then unknown"] += 1
            return
        self.tally.breach("wrong", f"{text}: first {first.status} {first.body}, then {again.status} {again.body}")

    async def what_came_of(self, text, token, target="honest"):
        return await self.insist("keyed", "POST", f"/workspaces/{target}/a2a", token, call(text), {"Idempotency-Key": text},
                                 settled=lambda a: a.status == 200 or a.fact("delivered") == "unknown" and a.reason() == "agent_protocol_error")

    async def _send(self):
        """To the agent that polls."""
        token = self.site.tokens["caller"]
        while self.goes_on():
            text = self.text()
            answer = await self.what_came_of(text, token, "poller")
            if answer is not None and answer.status == 200:
                self.ledger.inbox[answer.json()["activity_id"]] = (time.monotonic(), text)
            await self.pause(0.1, 0.3)

    async def _poll(self):
        """The agent that polls: strictly after what it knows, until the soak has seen enough."""
        token, since, number = self.site.tokens["poller"], *self.site.first_entry
        while not self.shared.read_all.is_set():
            answer = await self.ask("poll", "GET", f"/activity?since_id={since}&wait=2&limit=100", token)
            if answer is None or answer.status != 200:
                if answer is not None and answer.status == 410:
                    self.tally.breach("lost", f"the place {since} of the inbox")
                await self.pause(0.2, 0.4)
                continue
            for entry in answer.json():
                if entry["seq"] != number + 1:
                    self.tally.breach("lost" if entry["seq"] > number else "twice", f"entry {entry['seq']} came after {number}")
                since, number = entry["id"], entry["seq"]
                self.ledger.read[since] += 1
                await self.reply(entry, token)
            if answer.json():
                await self.ask("ack", "POST", "/workspaces/poller/activity/ack", token, {"up_to": since})

    async def reply(self, entry, token):
        result = {"kind": "message", "messageId": entry["id"], "role": "agent", "parts": [{"kind": "text", "text": "done"}]}
        answer = await self.insist("reply", "POST", f"/workspaces/poller/activity/{entry['id']}/reply", token, {"result": result},
                                   settled=lambda a: a.status in (200, 404, 409), fine=("conflict",))
        if answer is not None and answer.status == 404:
            self.tally.breach("lost", f"entry {entry['id']} was read and is not known")
        elif answer is not None:
            self.ledger.replies[entry["id"]] = time.monotonic()

    async def _delegate(self):
        token = self.site.tokens["caller"]
        while self.goes_on():
            text, target = self.text(), self.chance.choice(["honest", "honest", "poller"])
            # A day less an hour: a clock that jumps by one must not end it.
            body = {"target_id": target, "task": text, "idempotency_key": text, "deadline_seconds": 82_800}
            answer = await self.insist("delegate", "POST", "/workspaces/caller/delegate", token, body, settled=lambda a: a.status in (200, 202))
            if answer is not None:
                self.ledger.delegations[answer.json()["delegation_id"]] = (time.monotonic(), text, target)
            await self.pause(0.2, 0.6)

    async def _beat(self):
        while self.goes_on():
            for name, token in self.site.tokens.items():
                await self.ask("heartbeat", "POST", "/registry/heartbeat", token, {"workspace_id": name, "active_tasks": self.chance.randint(0, 3)})
            await self.pause(0.8, 1.2)

    async def _discover(self):
        """Discovery, a call by the pair token it gave, the card, the peers."""
        token = self.site.tokens["caller"]
        while self.goes_on():
            answer = await self.ask("discover", "GET", "/registry/discover/honest", token)
            if answer is not None and answer.status == 200:
                await self.ask("pair token", "POST", "/workspaces/honest/a2a", answer.json()["token"], call(self.text()))
            await self.ask("card", "GET", "/workspaces/honest/a2a/.well-known/agent-card.json", token)
            await self.ask("peers", "GET", "/registry/caller/peers", token)
            await self.pause(0.2, 0.5)

    async def _operate(self):
        """Makes and removes workspaces; makes, uses and revokes tokens."""
        while self.goes_on():
            name = self.text()
            made = await self.insist("create", "POST", "/workspaces", harness.ADMIN, {"id": name, "name": name, "parent_id": "made"},
                                     settled=lambda a: a.status in (201, 409), fine=("conflict",))
            if made is not None and self.chance.random() < 0.5:
                gone = await self.insist("remove", "DELETE", f"/workspaces/{name}", harness.ADMIN,
                                         settled=lambda a: a.status in (200, 404, 410), fine=("workspace_removed",))
                if gone is not None and gone.status == 404:
                    self.tally.breach("lost", f"workspace {name}, before it was removed")
                elif gone is not None:
                    self.ledger.removed[name] = time.monotonic()
            elif made is not None:
                self.ledger.created[name] = time.monotonic()
            token = await self.ask("token", "POST", "/workspaces/caller/tokens", harness.ADMIN)
            if token is not None and token.status == 201:
                await self.revoke(token.json())
            await self.pause(0.3, 0.8)

    async def revoke(self, made):
        await self.ask("new token", "GET", "/workspaces/caller", made["token"])
        done = await self.insist("revoke", "DELETE", f"/workspaces/caller/tokens/{made['id']}", harness.ADMIN,
                                 settled=lambda a: a.status in (200, 404))
        if done is None or done.status == 404:
            self.tally.breach("lost", f"token {made['id']}, before it was revoked")
            return
        self.ledger.revoked[made["token"]] = time.monotonic()
        # The contract gives every replica one second.
        await asyncio.sleep(2.5)
        for gateway in self.site.gateways:
            answer = await self.ask("revoked token", "GET", "/workspaces/caller", made["token"], on=gateway, fine=("unauthenticated",))
            if answer is not None and answer.status == 200:
                self.tally.breach("wrong", f"a token revoked 2.5 s before was accepted at {gateway.name}")

    async def _stream(self):
        """Reads to the end; breaks off now and then, and takes it up again at any gateway."""
        token = self.site.tokens["caller"]
        while self.goes_on():
            text, leave_after = self.text(), self.chance.choice([None, self.chance.randint(1, agents.EVENTS - 2)])
            await self.one_stream(token, text, leave_after)
            await self.pause(0.05, 0.3)

    async def one_stream(self, token, text, leave_after):
        gateway = self.chance.choice(self.site.gateways)
        numbers, last, path, fields, body = [], None, "/workspaces/honest/a2a", None, call(text, "message/stream")
        method, since = "POST", time.monotonic()
        while time.monotonic() < since + 60:
            try:
                async for event in self.client.events(gateway.port, method, path, token, body, fields, silence=30):
                    if isinstance(event, Answer):
                        self.failed(gateway, "stream", event.reason() or "no_stream", since)
                        if event.reason() in ("store_unavailable", "shutting_down") and last:
                            break
                        return
                    if event.get("event") == "gap":
                        self.failed(gateway, "stream", "gap", since)
                        return
                    if event.get("event") == "end":
                        continue
                    last = event.get("id", last)
                    said = self.said(event, gateway, since)
                    if said is None:
                        return
                    numbers.append(said)
                    if leave_after is not None and len(numbers) >= leave_after:
                        leave_after = None
                        break
            except Broken as broken:
                self.failed(gateway, "stream", broken.reason, since)
                if last is None:
                    return
            if numbers != list(range(1, len(numbers) + 1)):
                self.tally.breach("twice" if len(set(numbers)) < len(numbers) else "lost", f"{text}: events {numbers}")
                return
            if len(numbers) == agents.EVENTS:
                self.tally.ok("stream", None)
                return
            gateway = self.chance.choice(self.site.gateways)
            method, body, path, fields = "GET", None, f"/workspaces/honest/streams/{last.rsplit('-', 1)[0]}", {"Last-Event-ID": last}
            await self.pause(0.1, 0.3)
        self.tally.breach("stuck", f"{text}: a stream of {agents.EVENTS} events is not over; {numbers} came")

    def said(self, event, gateway, since):
        """The number of an event, or `None` if it is the gateway's own last one."""
        data = json.loads(event["data"])
        refusal = refusal_in(data)
        if refusal:
            self.failed(gateway, "stream", f"event:{refusal[0]}", since)
            return None
        return data["result"]["metadata"]["n"]

    async def _watch(self):
        """Follows the events, at another gateway whenever it ends: in order, none twice."""
        token, last, newest = self.site.tokens["caller"], None, (0, 0)
        while self.goes_on():
            gateway = self.chance.choice(self.site.gateways)
            try:
                fields = {"Last-Event-ID": last} if last else None
                async for event in self.client.events(gateway.port, "GET", "/events", token, None, fields, silence=40):
                    if isinstance(event, Answer):
                        self.failed(gateway, "watch", event.reason() or "no_stream", time.monotonic())
                        break
                    if event.get("event") == "gap":
                        newest = (0, 0)
                    elif "id" in event and "event" not in event:
                        last = event["id"]
                        number = tuple(map(int, last.split("-")))
                        if number <= newest:
                            self.tally.breach("twice", f"event {last} came after {newest}")
                        newest = number
                        self.tally.ok("watch", None)
                    if not self.goes_on():
                        return
            except Broken as broken:
                self.failed(gateway, "watch", broken.reason, time.monotonic())
            await self.pause(0.2, 0.6)

    async def _strangers(self):
        while self.goes_on():
            token = self.chance.choice(["a2aw_" + "x" * 43, "nonsense", "a.b.c", "a2aa_" + "y" * 43])
            gateway = self.chance.choice(self.site.gateways)
            try:
                answer = await self.client.ask(gateway.port, "POST", "/workspaces/honest/a2a", token, call(self.text()))
                self.tally.odd[f"bad token: {answer.reason()}"] += 1
                if answer.status < 400:
                    self.tally.breach("wrong", f"a bad token was accepted at {gateway.name}")
            except Broken as broken:
                self.tally.odd[f"bad token: {broken.reason}"] += 1
            await self.pause(0.2, 0.4)

    async def _liars(self):
        """Calls the agents that misbehave. Each call must end, and in quiet times as it should."""
        token = self.site.tokens["caller"]
        while self.goes_on():
            name = self.chance.choice(list(agents.EXPECTED))
            gateway, begun = self.chance.choice(self.site.gateways), time.monotonic()
            outcome = await self.lied_to(gateway, name, token)
            self.tally.odd[f"{name}: {outcome}"] += 1
            if outcome == "no_answer":
                self.tally.breach("stuck", f"a call to {name} at {gateway.name}")
            # A store that is too slow is the machine's doing.
            # After some failures the breaker is open.
            fine = agents.EXPECTED[name] | {"store_unavailable", "agent_busy"}
            if outcome not in fine and not self.shared.troubled_since(begun):
                self.tally.breach("wrong", f"a call to {name} at {gateway.name} ended with {outcome}")
            await self.pause(0.05, 0.2)

    async def lied_to(self, gateway, name, token):
        path, fields = f"/workspaces/{name}/a2a", {"X-Timeout": "2"} if name == "stalls" else None
        try:
            if name not in agents.STREAMED:
                answer = await self.client.ask(gateway.port, "POST", path, token, call(self.text()), fields, deadline=45, fresh=True)
                return answer.reason() or "answered"
            async for event in self.client.events(gateway.port, "POST", path, token, call(self.text(), "message/stream"), silence=45):
                if isinstance(event, Answer):
                    return event.reason() or "answered"
                refusal = refusal_in(json.loads(event["data"]))
                if refusal:
                    return f"event:{refusal[0]}"
            return "ended"
        except Broken as broken:
            return broken.reason


# How many of each kind at each site.
KINDS = {"unary": 3, "keyed": 2, "send": 2, "poll": 1, "delegate": 1, "beat": 1, "discover": 1, "operate": 1, "stream": 3,
         "watch": 1, "strangers": 1, "liars": 3}
