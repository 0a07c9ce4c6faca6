"""Servers that know of no gateway join by `a2a-gateway run`: one of a framework, and a script of the shell."""

import signal
import subprocess
from pathlib import Path

from joined import gateway_of, send, status, workspace
from stage import PATIENCE, call, eventually, free_port

SCRIPT = Path(__file__).parents[1] / "gateway/running/agent.sh"


class Wrapped:
    """A process of `run` with a guard, and its agent."""

    def __init__(self, gateway, name, command, expected):
        self.gateway, self.name, self.expected, self.guard = gateway, name, expected, free_port()
        self.log = gateway.stage.folder / f"{name}.log"
        line = [gateway.stage.binary, "run", "--workspace", name, "--token-file", workspace(gateway, name), "--gateway",
                gateway.origin, "--guard", f"127.0.0.1:{self.guard}", "--", *command]
        self.child = gateway.stage.run(line, stdout=open(self.log, "w"), stderr=subprocess.STDOUT)

    def is_called(self):
        try:
            eventually(lambda: status(self.gateway, self.name) == "online", f"{self.name} is online")
            said = send(self.gateway, self.name)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log.read_text()[-3000:]}") from None
        assert self.expected in said, f"{self.name}: {said}"

    def is_guarded(self):
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {}}
        answer = call("POST", f"http://127.0.0.1:{self.guard}/", None, body)
        assert answer.status == 401, f"{self.name}: {answer}"

    def leaves(self):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(PATIENCE)
        assert status(self.gateway, self.name) == "offline", f"{self.name}: {self.log.read_text()[-3000:]}"


def run(stage, built, told):
    gateway = gateway_of(stage)
    agents = [Wrapped(gateway, "plain_pydantic", built.program("plain_pydantic"), "heard: who am I?"),
              Wrapped(gateway, "shell", [SCRIPT], "alice")]
    for agent in agents:
        agent.is_called()
        agent.is_guarded()
    told("a server of a framework and a script join without code, by `run`")
    gateway.restart()
    for agent in agents:
        agent.is_called()
        agent.leaves()
    told("both are called through a gateway that was killed, and leave")
