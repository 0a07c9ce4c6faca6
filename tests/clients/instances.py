"""Three instances of an agent made with a2a-sdk, each with its tasks in its own memory, behind one workspace and two replicas.

Conversations of five turns go on while an instance is added, one drains and leaves, and one is killed. None may meet "task
not found" but those of the killed one. `A2A_CONVERSATIONS` says how many there are.
"""

import base64
import collections
import http.client
import json
import os
import signal
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stage import Agent, call, eventually, events

sys.path.append(str(Path(__file__).parents[2] / "scripts/lib"))
from stores import Stores

CONVERSATIONS = int(os.environ.get("A2A_CONVERSATIONS", "240"))
WORKERS = 16
# Of each instance's share of the first turns, as a part of an even one. Few conversations are less even by chance.
UNEVEN_MAX = 0.15 if CONVERSATIONS >= 5000 else 0.5
NOT_FOUND = -32001


class Instance:
    """A process of the agent, with the heartbeats of its sidecar."""

    def __init__(self, stage, gateways, token, number):
        self.id, self.gateways, self.token = f"instance-{number}", gateways, token
        self.record = stage.folder / f"{self.id}.record"
        self.record.touch()
        command = [*stage.program("agents", "py13", "py13"), self.record]
        self.process = stage.run(command, stdout=-1, stderr=open(stage.folder / f"{self.id}.log", "w"), text=True)
        self.agent = Agent(self.id, int(self.process.stdout.readline()), self.record, "/a2a/jsonrpc")
        eventually(self.served, f"{self.id} serves")
        self.over = threading.Event()

    def served(self):
        try:
            self.agent.card = call("GET", f"{self.agent.origin}/.well-known/agent-card.json").json()
        except OSError:
            return False
        return True

    def tell(self, path, **more):
        body = {"workspace_id": "agent", "instance_id": self.id, **more}
        answer = call("POST", f"{self.gateways[0].origin}/registry/{path}", self.token, body)
        assert answer.status == 200, f"{path}: {answer}"

    def register(self):
        self.tell("register", id="agent", url=self.agent.url, agent_card=self.agent.card)
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        while not self.over.wait(2):
            self.tell("heartbeat")

    def leave(self):
        self.over.set()
        self.tell("deregister")

    def kill(self):
        self.over.set()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def messages(self):
        """The ids of the messages that it answered."""
        found = set()
        for line in self.record.read_text().splitlines():
            body = json.loads(base64.b64decode(json.loads(line)["body"]) or b"{}")
            if message := (body.get("params") or {}).get("message"):
                found.add(message["messageId"])
        return found


class Failed(Exception):
    """A turn that was not answered with a result."""


class Conversation:
    def __init__(self, connections, token, number):
        self.connections, self.token, self.number = connections, token, number
        self.first = str(uuid.uuid4())
        self.turn, self.error = 0, None

    def ask(self, method, params, first_event=False):
        """The result of a call at the replica whose turn it is."""
        connection = self.connections[(self.number + self.turn) % len(self.connections)]
        self.turn += 1
        body = json.dumps({"jsonrpc": "2.0", "id": "call", "method": method, "params": params})
        fields = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", "A2A-Version": "1.0"}
        try:
            connection.request("POST", "/workspaces/agent/a2a", body, fields)
            response = connection.getresponse()
            if first_event:
                answer = self.first_event(response)
                # The task goes on; the rest of its stream is nothing to this caller.
                connection.close()
            else:
                text = response.read()
                # An error of A2A's comes with status 200 and as JSON, also to a call for a stream.
                streams = response.getheader("Content-Type", "").startswith("text/event-stream")
                answer = events(text)[-1] if streams else json.loads(text)
        except (http.client.HTTPException, OSError, ValueError) as error:
            connection.close()
            raise Failed(f"{method}: {error!r}") from error
        if "result" not in answer:
            raise Failed(f"{method}: {json.dumps(answer)}")
        return answer["result"]

    @staticmethod
    def first_event(response):
        lines = []
        while line := response.readline():
            if line.startswith(b"data:"):
                return json.loads(line[5:])
            lines.append(line)
        return json.loads(b"".join(lines))

    def send(self, method, word, message_id=None, **named):
        message = {"messageId": message_id or str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": word}], **named}
        return self.ask(method, {"message": message})

    def run(self):
        try:
            task = self.send("SendMessage", "ask", self.first)["task"]
            ids = {"taskId": task["id"], "contextId": task["contextId"]}
            self.send("SendStreamingMessage", "ask", **ids)
            if self.number % 2:
                # By its context alone: a new task, which only the instance of the context knows as of this context.
                other = self.send("SendMessage", "ask", contextId=task["contextId"])["task"]
                self.ask("GetTask", {"id": other["id"]})
            else:
                self.ask("GetTask", {"id": task["id"]})
                self.ask("SubscribeToTask", {"id": task["id"]}, first_event=True)
            self.ask("CancelTask", {"id": task["id"]})
        except Failed as error:
            self.error = str(error)


def converse(gateways, token, numbers):
    """Runs conversations of one worker."""
    connections = [http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60) for gateway in gateways]
    done = []
    for number in numbers:
        conversation = Conversation(connections, token, number)
        conversation.run()
        done.append(conversation)
    for connection in connections:
        connection.close()
    return done


def batch(pool, gateways, token, count, meanwhile=lambda: None):
    """Runs conversations, and `meanwhile` once a part of them has begun."""
    parts = [range(worker, count, WORKERS) for worker in range(WORKERS)]
    running = [pool.submit(converse, gateways, token, part) for part in parts]
    time.sleep(0.5)
    meanwhile()
    return [conversation for part in running for conversation in part.result()]


def uneven(done, instances):
    """Shares of the first turns that are too far from an even one."""
    firsts = {conversation.first for conversation in done}
    counts = {one.id: len(one.messages() & firsts) for one in instances}
    even = len(firsts) / len(instances)
    print(f"  first turns: {counts}, {even:.0f} each were even")
    return [f"{name} got {count} first turns, {even:.0f} were even" for name, count in counts.items()
            if abs(count - even) > UNEVEN_MAX * even]


def run(stage):
    folder = stage.folder / "stores"
    folder.mkdir()
    os.chmod(stage.folder, 0o755)
    with Stores(str(folder)) as stores, ThreadPoolExecutor(WORKERS) as pool:
        sets = {"stores.sql": stores.sql_url, "stores.shared": stores.redis_url}
        first = stage.gateway(**sets)
        gateways = [first, stage.replica(first)]
        first.operate("POST", "/workspaces", {"id": "agent", "name": "agent", "parent_id": "family"})
        own = first.operate("POST", "/workspaces/agent/tokens", {})["token"]
        instances = [Instance(stage, gateways, own, number) for number in range(4)]
        *three, fourth = instances
        for one in three:
            one.register()
        caller, failures = first.tokens["alice"], []
        done = batch(pool, gateways, caller, CONVERSATIONS // 2)
        failures += [f"steady: {one.error}" for one in done if one.error]
        failures += uneven(done, three)
        done = batch(pool, gateways, caller, CONVERSATIONS // 4, fourth.register)
        failures += [f"while one is added: {one.error}" for one in done if one.error]

        def drain_and_leave():
            three[0].tell("drain")
            # What has begun there goes on until it is over.
            time.sleep(2)

        done = batch(pool, gateways, caller, CONVERSATIONS // 8, drain_and_leave)
        failures += [f"while one drains: {one.error}" for one in done if one.error]
        three[0].leave()
        done = batch(pool, gateways, caller, CONVERSATIONS // 8, three[1].kill)
        for one in (three[2], fourth):
            one.over.set()
        failures += judge_kill(done, three[1])
        counts = collections.Counter(failures)
        return [f"{count} times: {failure}" for failure, count in counts.items()]


def judge_kill(done, killed):
    """Failures of conversations that were not the killed instance's, or that are unclear."""
    its, wrong, lost = killed.messages(), [], 0
    for one in done:
        if not one.error:
            continue
        lost += 1
        # Sent to it and never answered: it is unknown what became of it.
        in_flight = '"delivered": "true"' in one.error or '"delivered": "unknown"' in one.error
        not_found = f'"code": {NOT_FOUND}' in one.error
        if not (in_flight or one.first in its and not_found):
            wrong.append(f"while one is killed: {one.error}, its own: {one.first in its}")
    print(f"  {lost} of {len(done)} conversations ended with the killed instance, of {len(its)} that it had")
    return wrong
