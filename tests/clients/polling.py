"""Agents that poll, called by every SDK: all that an agent with an address does, but for push. And the agent of the documents."""

import os
import sys
from collections import ChainMap

from expected import SCENARIOS
from matrix import judge
from stage import HERE, SDKS, call, eventually

AGENT = HERE.parent.parent / "docs/guide/poll-agent.py"
# A caller that would rather wait for an answer says so (RFC 7240).
WAIT = {"Prefer": "wait=30"}
WITHOUT = {"push": "nobody pushes for an agent that polls"}
CELLS = [
    (client, binding, version)
    for client, versions in SDKS.items()
    for binding, version in [("JSONRPC", "0.3"), ("JSONRPC", "1.0"), ("HTTP+JSON", "1.0")]
    if version in versions
]


def card(gateway, name):
    base = f"{gateway.origin}/workspaces/{name}/a2a"
    return {
        "name": name, "description": "polls", "version": "1", "protocolVersion": "0.3.0", "url": base,
        "preferredTransport": "JSONRPC", "capabilities": {"streaming": True},
        "supportedInterfaces": [
            {"url": base, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": base, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
            {"url": base, "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
        ],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "act", "name": "act", "description": "does what it is told", "tags": ["test"]}],
    }


def poller(gateway, name):
    """A workspace that polls; answers its token."""
    made = gateway.operate("POST", "/workspaces", {"id": name, "name": name, "parent_id": "family"})
    body = {"id": name, "delivery_mode": "poll", "agent_card": card(gateway, name)}
    return call("POST", f"{gateway.origin}/registry/register", made["enrolment_token"], body).json()["token"]


def drive(stage, gateway, agent, scenarios):
    jobs = {client: [] for client in SDKS}
    for cell in CELLS:
        client, binding, version = cell
        jobs[client].append({"name": "/".join(cell), "base": f"{gateway.origin}/workspaces/{agent}/a2a", "fields": WAIT,
                             "token": gateway.tokens["alice"], "binding": binding, "version": version, "scenarios": scenarios})
    found = ChainMap(*stage.drive_all(jobs).values())
    return {cell: found["/".join(cell)] for cell in CELLS}


def run(stage):
    gateway = stage.gateway()
    agent = HERE / "agents/poller.py"
    stage.run([sys.executable, "-B", agent, gateway.origin, poller(gateway, "poller")])
    environment = {**os.environ, "GATEWAY": gateway.origin, "TOKEN": poller(gateway, "documented")}
    stage.run([sys.executable, AGENT], env=environment)
    failures = []
    wanted = [name for name in SCENARIOS if name not in WITHOUT]
    print(f"{'client':6} {'A2A':3} {'binding':9}  " + " ".join(f"{name[:7]:7}" for name in wanted))
    for cell, found in drive(stage, gateway, "poller", wanted).items():
        client, binding, version = cell
        wrongs = {name: judge("poller", name, found[name]) if name in found else f"not run: {found}" for name in wanted}
        failures += [f"{' '.join(cell)}, {name}: {wrong}" for name, wrong in wrongs.items() if wrong]
        print(f"{client:6} {version:3} {binding:9}  " + " ".join(f"{'FAILED' if wrong else 'ok':7}" for wrong in wrongs.values()).rstrip())
    for name, why in WITHOUT.items():
        print(f"Not {name}: {why}.")
    return failures + documented(stage, gateway)


def documented(stage, gateway):
    """docs/guide/poll-agent.py, with every SDK: sent, waited for, replied, completed."""
    assert len(AGENT.read_text().splitlines()) < 60
    failures = []
    for cell, found in drive(stage, gateway, "documented", ["send", "get"]).items():
        said = found.get("send", found)["saw"].get("got")
        if said != {"message": "You said: hello"}:
            failures.append(f"docs/guide/poll-agent.py, {' '.join(cell)}: {found}")
    # Its task is completed, too, for a caller that asks later.
    base = f"{gateway.origin}/workspaces/documented/a2a"
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "later"}]}
    sent = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    task = call("POST", base, gateway.tokens["alice"], sent).json()["result"]
    asked = {"jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": {"id": task["id"]}}

    def completed():
        task = call("POST", base, gateway.tokens["alice"], asked).json()["result"]
        return task if task["status"]["state"] == "completed" else None

    task = eventually(completed, "the task is completed")
    if task["status"]["message"]["parts"][0]["text"] != "You said: later":
        failures.append(f"docs/guide/poll-agent.py: {task}")
    print(f"docs/guide/poll-agent.py {'FAILED' if failures else 'ok'}")
    return failures
