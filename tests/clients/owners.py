"""Two callers and one agent: what one begins the other cannot touch, in both dialects and bindings, also after a restart."""

from collections import ChainMap

from matrix import cells
from stage import SDKS

# The SDK agents that keep tasks, in each language and generation.
AGENTS = ("py03", "py13", "js13")


def driven(stage, gateway, bases, who, scenarios):
    """What the drivers report, by cell, when `who` runs the scenarios of each cell."""
    jobs = {client: [] for client in SDKS}
    for cell, scenario in scenarios.items():
        client, agent, binding, version = cell
        jobs[client].append({"name": "/".join(cell), "base": bases[agent], "token": gateway.tokens[who], "binding": binding,
                             "version": version, "scenarios": [scenario]})
    found = ChainMap(*stage.drive_all(jobs).values())
    return {cell: found["/".join(cell)] for cell in scenarios}


def refused(attempt, answer):
    """Whether an attempt was answered as if there were no such task."""
    if "error" not in attempt or answer["status"] not in (200, 404):
        return False
    named = '"code":-32001' in answer["body"] or '"reason":"TASK_NOT_FOUND"' in answer["body"]
    return named or answer["status"] == 404 and not answer["body"]


def judge(task_id, result):
    """What another caller could do that it must not."""
    if "intrude" not in result:
        return [f"connect: {result['connect']['saw']}"]
    attempts, wire = result["intrude"]["saw"]["got"], iter(result["intrude"]["wire"])
    wrong = []
    for name, attempt in attempts.items():
        if attempt.get("not_offered"):
            continue
        answer = next(wire)
        if name == "list":
            if task_id in attempt.get("got", []):
                wrong.append("can list it")
        elif not refused(attempt, answer):
            wrong.append(f"{name}: {attempt}, {answer['status']} {answer['body'][:200]}")
    return wrong


def run(stage):
    agents = stage.agents(*AGENTS)
    gateway = stage.gateway(**{"stores.shared": stage.redis(), "a2a.bridge": "off"})
    bases = {name: gateway.seat(agent) for name, agent in agents.items()}
    table = {cell: [] for cell, why in cells() if why is None and cell[1] in AGENTS}

    def drive(who, scenarios):
        return driven(stage, gateway, bases, who, scenarios)

    def began(result):
        return result.get("begin", {}).get("saw", {}).get("got")

    begun = drive("alice", {cell: "begin" for cell in table})
    for cell in table:
        if not began(begun[cell]):
            table[cell].append(f"alice cannot begin: {str(begun[cell])[:300]}")
    tasks = {cell: began(result) for cell, result in begun.items() if began(result)}
    for when in ("", "after a restart, "):
        if when:
            gateway.restart()
        for cell, result in drive("bob", {cell: ["intrude", task] for cell, task in tasks.items()}).items():
            table[cell] += [f"{when}bob, {wrong}" for wrong in judge(tasks[cell]["task_id"], result)]
        # Whose task it is, the caller's parent, and an operator.
        for who in ("alice", "family", "operator"):
            for cell, result in drive(who, {cell: ["look", task] for cell, task in tasks.items()}).items():
                saw = result.get("look", result.get("connect"))["saw"]
                if saw.get("got") != {"task": "input-required", "artifacts": []}:
                    table[cell].append(f"{when}{who} cannot get it: {saw}")
    for cell, task in tasks.items():
        for request in agents[cell[1]].requests():
            if request["fields"].get("x-workspace-id") == "bob" and task["task_id"] in request["target"] + request["body"].decode():
                table[cell].append(f"the agent heard of it from bob: {request['method']} {request['target']}")
    print("Two callers of one agent: get, list, subscribe, push, message and cancel of the other's task, twice, the second time after a restart")
    for cell, wrong in table.items():
        client, agent, binding, version = cell
        print(f"{client:6} {agent:6} {version:3} {binding:9}  {'FAILED' if wrong else 'refused'}")
    return [f"{' '.join(cell)}: {one}" for cell, wrong in table.items() for one in wrong]
