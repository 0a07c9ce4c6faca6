"""Every SDK as a client of every agent, over every binding: the same scenarios direct and through the gateway."""

import json
from collections import ChainMap

from expected import CANNOT, DEMO, FAULTS, REASONS, SCENARIOS, SEEN
from masks import answers, received, strange_fields
from stage import BINDINGS, SDKS, call, events

AGENTS = [*SDKS, *DEMO]


def cells():
    """All of the matrix: (client, agent, binding, version), and why it cannot be, or None."""
    for client, spoken in SDKS.items():
        for agent in AGENTS:
            for version in ("0.3", "1.0"):
                for binding in BINDINGS:
                    why = None
                    if version not in spoken:
                        why = "the client knows A2A 0.3 only"
                    elif version not in SDKS.get(agent, ["0.3"]):
                        why = "the agent knows A2A 0.3 only"
                    elif agent in DEMO and binding != "JSONRPC":
                        why = "the agent serves JSON-RPC only"
                    yield (client, agent, binding, version), why


def code(exchange):
    """The code of an error: JSON-RPC's, else the one its reason stands for, else the HTTP status."""
    body = exchange["body"].encode()
    try:
        document = events(body)[-1] if "event-stream" in (exchange["type"] or "") else json.loads(body)
    except (ValueError, IndexError):
        return exchange["status"]
    fault = document.get("error", document)
    details = fault.get("details") or [{}]
    if details[0].get("reason") in REASONS:
        return REASONS[details[0]["reason"]]
    return fault.get("code", exchange["status"])


def judge(agent, scenario, found):
    """What is wrong with a result, or None."""
    saw, wire = found["saw"], found["wire"]
    if saw.get("not_offered"):
        return None if scenario == "list" else "the driver lacks this call"
    if scenario in FAULTS:
        if "error" not in saw:
            return f"no error: {saw}"
        return None if code(wire[-1]) in FAULTS[scenario] else f"{code(wire[-1])}: {wire[-1]}"
    if "error" in saw:
        return f"{saw['error']} {wire[-1:]}"
    got = saw["got"]
    if scenario == "card":
        name = f"{agent.removeprefix('demo ')} (example)" if agent in DEMO else agent
        return None if got["name"] == name and got["skills"] else f"another card: {got}"
    if agent in DEMO:
        return judge_demo(scenario, got)
    return None if got in SEEN[scenario] else f"another outcome: {got}"


def judge_demo(scenario, got):
    done = {"task": "completed", "artifacts": ["done in 10 steps: task"]}
    good = {
        "send": lambda: got == {"message": "echo: hello"},
        "get": lambda: got == done,
        "stream": lambda: len(got) > 10 and got[-1]["status"] == "completed" and {"artifact": "done in 10 steps: stream 3"} in got,
        "cancel": lambda: got["canceled"]["task"] == "canceled" and got["stream"][-1]["status"] == "canceled",
        "resubscribe": lambda: got[0]["task"] == "working" and got[-1]["status"] == "canceled",
    }
    return None if good[scenario]() else f"another outcome: {got}"


def run(stage):
    agents = stage.agents(*AGENTS)
    # As without a gateway: a client of 1.0 is told that an agent of 0.3 sends it no push notifications where calls are
    # translated.
    gateway = stage.gateway(**{"a2a.bridge": "off"})
    bases = {name: gateway.seat(agent) for name, agent in agents.items()}
    ways = {"direct": {name: agent.origin for name, agent in agents.items()}, "through": bases}
    jobs = {way: {client: [] for client in SDKS} for way in ways}
    for cell, why in cells():
        client, agent, binding, version = cell
        for way, places in ways.items():
            if why is None:
                job = {"name": "/".join(cell), "base": places[agent], "token": gateway.tokens["alice"], "binding": binding,
                       "version": version, "scenarios": DEMO.get(agent, SCENARIOS)}
                jobs[way][client].append(job)
    found = {way: ChainMap(*stage.drive_all(of_way).values()) for way, of_way in jobs.items()}
    records = {name: agent.requests() for name, agent in agents.items()}
    return report(found, records) + cards(gateway, agents, bases)


def report(found, records):
    """Prints the table; answers what failed."""
    failures, reasons, impossible = [], [], {}
    print(f"{'client':6} {'agent':9} {'A2A':3} {'binding':9}  " + " ".join(f"{name[:7]:7}" for name in SCENARIOS))
    for cell, why in cells():
        client, agent, binding, version = cell
        if why:
            impossible.setdefault(why, []).append(f"{client}×{agent} {version} {binding}")
            continue
        marks = []
        for scenario in SCENARIOS:
            if scenario not in DEMO.get(agent, SCENARIOS):
                marks.append("")
                continue
            wrong, reason = judge_cell(cell, scenario, found, records[agent])
            if wrong:
                failures.append(f"{' '.join(cell)}, {scenario}: {wrong}")
            if reason and reason not in reasons:
                reasons.append(reason)
            marks.append("FAILED" if wrong else f"no ({reasons.index(reason) + 1})" if reason else "ok")
        print(f"{client:6} {agent:9} {version:3} {binding:9}  {' '.join(f'{mark:7}' for mark in marks)}".rstrip())
    print("An empty place: the agent does not do this. Impossible, with or without a gateway:")
    for number, reason in enumerate(reasons, 1):
        print(f"  ({number}) {reason}")
    for why, those in impossible.items():
        print(f"  {why}: {', '.join(those)}")
    return failures


def judge_cell(cell, scenario, found, record):
    """What is wrong in one place of the table, or why the two cannot do it."""
    client, agent, _, version = cell
    results = {way: found[way]["/".join(cell)] for way in found}
    for way, result in results.items():
        if scenario not in result:
            return f"{way}: {result['connect']['saw']['error']} {result['connect']['wire'][-1:]}", None
    direct, through = (results[way][scenario] for way in ("direct", "through"))
    if cannot := CANNOT.get(cell, {}).get(scenario):
        if "error" not in direct["saw"]:
            return "works direct, and is said to be impossible", None
        if "error" not in through["saw"]:
            return "works through the gateway, and not without it", None
        return compare(cell, scenario, direct, through, record), cannot
    for way, result in (("direct", direct), ("through", through)):
        if wrong := judge(agent, scenario, result):
            return f"{way}: {wrong}", None
    if through["saw"].get("not_offered"):
        return None, f"A2A {version} has no list of tasks for this client"
    return compare(cell, scenario, direct, through, record), None


def compare(cell, scenario, direct, through, record):
    """Whether a client saw, and the agent got, the same both ways."""
    # The demo's agents work in real time: how many events a follower sees differs from run to run. The card is the gateway's own.
    if scenario == "card" or cell[1] in DEMO:
        return None
    # Who cannot read a stream breaks off somewhere in it.
    whole = scenario not in CANNOT.get(cell, {})
    if different := difference(answers(direct["wire"], whole), answers(through["wire"], whole)):
        return f"the client's answers differ, {different}"
    mark = f"job={'/'.join(cell)},scenario={scenario}"
    mine = [request for request in record if request["fields"].get("baggage") == mark]
    there, here = ([request for request in mine if ("via" in request["fields"]) == way] for way in (False, True))
    if scenario == "resubscribe":
        # Following and canceling go over two connections, and an agent notes a request when it has read it whole.
        there, here = (sorted(way, key=lambda request: "cancel" in request["target"].lower() + request["body"].decode().lower())
                       for way in (there, here))
    if different := difference(received(there), received(here)):
        return f"the agent's requests differ, {different}"
    for one, other in zip(there, here, strict=True):
        if strange := strange_fields(other["fields"], one["fields"]):
            return f"{other['method']} {other['target']}: {', '.join(strange)}"
    return None


def difference(direct, through):
    """The first member that is not the same in two lists, or None."""
    if len(direct) != len(through):
        return f"direct {len(direct)}, through the gateway {len(through)}"
    for number, (one, other) in enumerate(zip(direct, through), 1):
        for name in one:
            if one[name] != other[name]:
                return f"{name} of number {number}: direct {one[name]}, through the gateway {other[name]}"
    return None


def cards(gateway, agents, bases):
    """Where a card is served, and that none has the agent's own address."""
    failures = []
    for name, agent in agents.items():
        above = bases[name].removesuffix("/a2a")
        for url in (f"{bases[name]}/.well-known/agent-card.json", f"{bases[name]}/.well-known/agent.json",
                    f"{above}/.well-known/agent-card.json", f"{above}/.well-known/agent.json", bases[name], f"{bases[name]}/"):
            for fields in ({}, {"A2A-Version": "1.0"}):
                answer = call("GET", url, gateway.tokens["alice"], fields=fields)
                path = url.removeprefix(gateway.origin)
                if answer.status != 200:
                    failures.append(f"card of {name}, {path}: {answer.status} {answer.body[:200]}")
                elif f":{agent.port}" in answer.body.decode():
                    failures.append(f"card of {name}, {path}: has the agent's address: {answer.body}")
                elif gateway.origin not in answer.body.decode():
                    failures.append(f"card of {name}, {path}: has no address of the gateway: {answer.body}")
    print(f"cards: of {len(agents)} agents, at 6 paths each: {len(failures)} failed")
    return failures
