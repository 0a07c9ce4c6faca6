"""A gateway whose leases are short, and the processes of joined agents."""

import os
import signal
import subprocess
from dataclasses import dataclass

from stage import PATIENCE, call, eventually, free_port

# In seconds. An agent that died is `offline` within this and the two seconds that the reference allows.
TTL, OVER = 3, 2


def gateway_of(stage, **sets):
    return stage.gateway(**{"registry.heartbeat_ttl": f"{TTL}s", "breaker.failures": 0, "breaker.ratio": 0, **sets})


def workspace(gateway, name, **more):
    """Makes a workspace beside the callers; answers a file with its enrolment token, as an operator would give it."""
    made = gateway.operate("POST", "/workspaces", {"id": name, "name": name, "parent_id": "family", **more})
    file = gateway.log.parent / f"{name}.token"
    file.write_text(made["enrolment_token"])
    return file


def status(gateway, name):
    return gateway.operate("GET", f"/workspaces/{name}", None)["status"]


@dataclass
class Process:
    """An agent's process, that can be killed and started again."""

    gateway: object
    built: object
    program: str
    name: str
    token: object
    variables: dict

    def __post_init__(self):
        self.port = free_port()
        self.log = self.gateway.stage.folder / f"{self.name}-{self.port}.log"

    def start(self):
        environment = {
            **os.environ, "PORT": str(self.port), "A2A_GATEWAY_URL": self.gateway.origin, "A2A_GATEWAY_TOKEN_FILE": str(self.token),
            "A2A_GATEWAY_WORKSPACE": self.name, **self.variables}
        self.child = self.gateway.stage.run(self.built.program(self.program), env=environment, cwd=self.gateway.stage.folder,
                                            stdout=open(self.log, "a"), stderr=subprocess.STDOUT)
        return self

    def stop(self, number=signal.SIGKILL):
        self.child.send_signal(number)
        return self.child.wait(PATIENCE)

    def await_status(self, wanted):
        try:
            eventually(lambda: status(self.gateway, self.name) == wanted, f"{self.name} is {wanted}")
        except AssertionError as error:
            raise AssertionError(f"{error}, but {status(self.gateway, self.name)}:\n{self.log.read_text()[-3000:]}") from None


def texts(node):
    """Every text in an answer."""
    if isinstance(node, dict):
        own = [node["text"]] if isinstance(node.get("text"), str) else []
        return own + [text for value in node.values() for text in texts(value)]
    return [text for value in node for text in texts(value)] if isinstance(node, list) else []


def message(text, number=1):
    part = {"kind": "text", "text": text}
    sent = {"kind": "message", "role": "user", "messageId": f"m-{os.urandom(8).hex()}", "parts": [part]}
    return {"jsonrpc": "2.0", "id": number, "method": "message/send", "params": {"message": sent}}


def send(gateway, name, caller="alice", text="who am I?"):
    """What an agent says to a caller, also in the end of a task that it began."""
    base = f"{gateway.origin}/workspaces/{name}/a2a"
    answer = call("POST", base, gateway.tokens[caller], message(text))
    assert answer.status == 200, f"{name}: {answer}"
    result = answer.json().get("result")
    assert result, f"{name}: {answer}"
    states = ("completed", "TASK_STATE_COMPLETED")
    if result.get("kind") == "task" and result["status"]["state"] not in states:
        body = {"jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": {"id": result["id"]}}

        def over():
            found = call("POST", base, gateway.tokens[caller], body).json()
            return found if found.get("result", {}).get("status", {}).get("state") in states else None

        return " | ".join(texts(eventually(over, f"the task of {name} is completed")))
    return " | ".join(texts(result))


