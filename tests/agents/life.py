"""An agent of each framework joins, is called, dies, comes back and leaves. So do the gateway and Redis."""

import base64
import json
import os
import signal
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from joined import OVER, TTL, Process, gateway_of, message, send, status, texts, workspace
from stage import call, eventually, events, free_port, listens

AGENTS = ["py03", "py13", "adk", "pydantic_agent", "strands_agent", "js03", "js13"]
# Their calls are bound to a request each. py03 and js03 take no others.
BOUND = ["py03", "py13", "js03", "js13"]


class Redis:
    def __init__(self, stage):
        self.stage, self.port = stage, free_port()
        self.start()

    def start(self):
        self.child = self.stage.run(["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--save", ""],
                                    stdout=subprocess.DEVNULL)
        eventually(lambda: listens(self.port), "Redis listens")

    def restart_empty(self):
        self.child.kill()
        self.child.wait()
        self.start()


def run(stage, built, told):
    redis = Redis(stage)
    gateway = gateway_of(stage, **{"stores.shared": f"redis://127.0.0.1:{redis.port}"})
    settings = {name: {"proof": "request"} for name in BOUND}
    agents = [Process(gateway, built, name, name, workspace(gateway, name, **settings.get(name, {})), {}) for name in AGENTS]
    with ThreadPoolExecutor(len(agents)) as pool:
        def each(step, what):
            list(pool.map(step, agents))
            told(what)

        each(join, "every agent joins with its enrolment token")
        each(called, "every agent is called by another workspace, and its code knows who called")
        each(forged, "no agent takes a forged token")
        for agent in agents:
            agent.stop()
        each(lambda agent: lapses(agent, time.monotonic()), "every agent that was killed is offline within the TTL")
        each(back, "every agent is back after a plain start")
        gateway.restart()
        each(answers, "every agent is called through a gateway that was killed")
        redis.restart_empty()
        each(answers, "every agent is called after Redis was killed and came back empty")
        each(rotated, "every agent reads its token again")
        each(leaves, "every agent leaves when it is told to stop")


def join(agent):
    agent.start().await_status("online")
    eventually(lambda: agent.token.read_text().startswith("a2aw_"), f"{agent.name} keeps its token")
    assert stat.S_IMODE(agent.token.stat().st_mode) == 0o600, agent.name


def called(agent):
    said = send(agent.gateway, agent.name)
    assert "alice" in said, f"{agent.name}: {said}"
    assert "bob" in send(agent.gateway, agent.name, "bob"), agent.name
    if agent.name in BOUND:
        streamed = {**message("who am I?"), "method": "message/stream"}
        answer = call("POST", f"{agent.gateway.origin}/workspaces/{agent.name}/a2a", agent.gateway.tokens["alice"], streamed)
        assert "alice" in " ".join(texts(events(answer.body))), f"{agent.name}: {answer}"


def forged(agent):
    """A direct call is refused without a token, with a changed one, one for another agent and one of another key."""
    found = agent.gateway.operate("GET", f"/workspaces/{agent.name}", None)
    another = AGENTS[AGENTS.index(agent.name) - 1]
    own, others = pair_token(agent, agent.name), pair_token(agent, another)
    head, claims, signature = own.split(".")
    changed = [f"{head}.{forged_claims(claims)}.{signature}", f"{head}.{claims}.{'A' * len(signature)}", others,
               f"{none_head()}.{claims}.", agent.gateway.tokens["alice"], "", "x.y.z"]
    for token in changed:
        answer = call("POST", found["url"], token, message("who am I?"))
        assert answer.status == 401 and answer.json()["error"]["message"] == "no good token about the caller", f"{agent.name}: {answer}"
    twice = call("POST", found["url"], own, message("who am I?"), {"X-A2A-Caller-Token": others})
    assert twice.status == 401, f"{agent.name}: {twice}"
    card = call("GET", f"http://127.0.0.1:{agent.port}/.well-known/agent-card.json")
    assert card.status == 200, f"{agent.name}: {card}"
    # A token of discovery is good, too, but bound to no request.
    answer = call("POST", found["url"], own, message("who am I?"), {"X-Workspace-ID": "mallory", "X_A2A_Caller": "mallory"})
    assert answer.status == (401 if agent.name in ("py03", "js03") else 200), f"{agent.name}: {answer}"


def pair_token(agent, target):
    return call("GET", f"{agent.gateway.origin}/registry/discover/{target}", agent.gateway.tokens["alice"]).json()["token"]


def encoded(document):
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def forged_claims(claims):
    said = json.loads(base64.urlsafe_b64decode(claims + "=="))
    return encoded({**said, "sub": "operator:"})


def none_head():
    return encoded({"alg": "none", "typ": "a2a-pair+jwt", "kid": "none"})


def lapses(agent, since):
    agent.await_status("offline")
    assert time.monotonic() - since < TTL + OVER + 1, f"{agent.name} was offline after {time.monotonic() - since:.1f} s"


def back(agent):
    agent.start().await_status("online")
    called(agent)


def answers(agent):
    """Until it does: the gateway, or its store, is there again, and nothing was done to the agent."""
    def answered():
        try:
            return "alice" in send(agent.gateway, agent.name)
        except AssertionError:
            return False

    eventually(answered, f"{agent.name} answers")
    agent.await_status("online")


def rotated(agent):
    """A second token takes the place of the first, which is then revoked."""
    tokens = f"/workspaces/{agent.name}/tokens"
    old = [one["id"] for one in agent.gateway.operate("GET", tokens, None)["tokens"]]
    new = agent.token.with_suffix(".new")
    new.write_text(agent.gateway.operate("POST", tokens, None)["token"])
    os.replace(new, agent.token)
    for token in old:
        agent.gateway.operate("DELETE", f"{tokens}/{token}", None)
    until = time.monotonic() + TTL + OVER
    while time.monotonic() < until:
        assert status(agent.gateway, agent.name) == "online", f"{agent.name}: {agent.log.read_text()[-2000:]}"
        time.sleep(0.2)
    called(agent)


def leaves(agent):
    """It is offline when it has stopped, without waiting for its lease to end."""
    agent.stop(signal.SIGTERM)
    assert status(agent.gateway, agent.name) == "offline", agent.name
