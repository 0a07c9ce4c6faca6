"""A crowd of callers at one gateway while its process is exchanged, and what became of each of their calls and streams.

Beside the other load, and judged call by call. In place (SIGUSR2): every call is answered and every stream comes whole.
Drained (SIGTERM) and started again: what the gateway had begun is answered. What it refused, saying that nothing was
sent, and connections that nobody took, are asked again at the other gateway, as by a balancer, and answered there.
"""

import asyncio
import json

import agents
import load
import wire

CALLERS = 16
STREAMS = 8

# Refusals after which another gateway may be asked: nothing was sent to the agent.
ELSEWHERE = {"shutting_down", "connect_refused"}


class Crowd:
    """`others`: gateways that take what `gateway` refuses; none where nothing may be refused."""

    def __init__(self, name, site, gateway, others, shared, runs, counts, lasting):
        self.name, self.token, self.gateway, self.others = name, site.tokens["caller"], gateway, others
        self.shared, self.runs, self.counts, self.lasting = shared, runs, counts, lasting
        self.over, self.loops, self.number, self.unbegun = asyncio.Event(), [], 0, []

    async def __aenter__(self):
        self.loops = [asyncio.create_task(self.calls(n)) for n in range(CALLERS)]
        self.loops += [asyncio.create_task(self.streams()) for _ in range(STREAMS)]
        # Some seconds of load on the process before, so that its connections are in use when it is followed.
        await asyncio.sleep(1)
        self.loops += [asyncio.create_task(self.stream(events)) for events in self.lasting]
        await asyncio.sleep(0.5)
        return self

    async def __aexit__(self, kind, error, trace):
        self.over.set()
        for done in await asyncio.gather(*self.loops, return_exceptions=True):
            if isinstance(done, BaseException):
                self.breach("wrong", f"a loop of the crowd: {done!r}")
        for text in self.unbegun:
            if self.runs[text] > 1:
                self.breach("twice", f"{text} ran {self.runs[text]} times: its connection was lost, and it was asked elsewhere")

    def breach(self, kind, text):
        self.shared.tally.breach(kind, f"{self.name}: {text}")

    def text(self):
        self.number += 1
        return f"{self.name}-{self.counts.times}-{self.number}"

    async def calls(self, n):
        """One after the other, each caller on a connection of its own that it keeps for as long as it may."""
        client = wire.Client()
        # One of them pauses for longer than a process needs to be followed: its connection is idle then.
        pause = 0.4 if n == 0 else 0.01
        while not self.over.is_set():
            await self.call(client)
            await asyncio.sleep(pause)
        self.counts.connections += client.opened
        client.close()

    async def call(self, client):
        text = self.text()
        body_end = f'"echo {text}"}}]}}}}'.encode()
        for place, gateway in enumerate([self.gateway, *self.others]):
            try:
                answer = await client.ask(gateway.port, "POST", "/workspaces/honest/a2a", self.token, load.call(text))
                reason = answer.reason()
            except wire.Broken as broken:
                answer, reason = None, broken.reason
            if reason is None and answer.body.endswith(body_end):
                self.counts.answered += 1
                return
            if place < len(self.others):
                if reason in ELSEWHERE:
                    self.counts.elsewhere += 1
                    continue
                if reason == "connection_lost" and self.runs[text] == 0:
                    self.counts.unbegun += 1
                    self.unbegun.append(text)
                    continue
            reason = reason or f"status {answer.status}"
            self.counts.failed[reason] += 1
            self.breach("failed", f"a call at {gateway.name}, {text}: {reason}; the agent ran it {self.runs[text]} times")
            return

    async def streams(self):
        while not self.over.is_set():
            await self.stream(agents.EVENTS)
            await asyncio.sleep(0.02)

    async def stream(self, events):
        """Whole, or with the gateway's last event where it lasts longer than a drain."""
        text, client, came = self.text(), wire.Client(), []
        body = load.call(text, "message/stream")
        body["params"]["message"]["metadata"] = {"events": events}
        ended = None
        for place, gateway in enumerate([self.gateway, *self.others]):
            try:
                async for event in client.events(gateway.port, "POST", "/workspaces/honest/a2a", self.token, body, silence=30):
                    if isinstance(event, wire.Answer):
                        ended = event.reason() or "no_stream"
                        break
                    if event.get("event") == "end":
                        continue
                    data = json.loads(event["data"])
                    refusal = wire.refusal_in(data)
                    if refusal:
                        ended = f"event:{refusal[0]}"
                        break
                    came.append(data["result"]["metadata"]["n"])
            except wire.Broken as broken:
                ended = broken.reason
            if place < len(self.others) and not came and (ended in ELSEWHERE or ended == "connection_lost" and self.runs[text] == 0):
                ended = None
                continue
            break
        in_order = came == list(range(1, len(came) + 1))
        if ended is None and in_order and len(came) == events:
            self.counts.whole += 1
        elif in_order and ended == "event:shutting_down" and events > agents.EVENTS:
            self.counts.last_event += 1
        else:
            self.counts.broken[ended or "ended early"] += 1
            self.breach("failed", f"a stream, {text}: {ended}; {len(came)} of {events} events came{'' if in_order else ', not in order'}")
