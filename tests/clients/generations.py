"""Clients of each SDK, and google-adk, with agents of the other generation only: translated. They begin with the card.

The table is the one in docs/guide/bridge-generations.md. WRITE=1 puts that of the run there instead of comparing it.
"""

import json
import os

from expected import COMPLETED, SEEN, SUBMITTED, WORKING
from matrix import code
from stage import BINDINGS, HERE, SDKS, call

DOCUMENT = HERE.parent.parent / "docs/guide/bridge-generations.md"
BEGIN, END = (f"<!-- {edge}: tests/clients/generations.py -->\n" for edge in ("begin", "end"))
CLIENTS = {"py03": "a2a-sdk 0.3.26", "js03": "@a2a-js/sdk 0.3.14", "py13": "a2a-sdk 1.3.0", "js13": "@a2a-js/sdk 1.3.0"}
ADK = "google-adk 2.13.0"
# The agents of the other generation, by a client's. Those of 1.0 are without the compatibility layer of their SDK.
AGENTS = {"0.3": ["py13 1.0", "js13 1.0"], "1.0": ["py03", "js03"]}

PIECES = [{"artifact": text} for text in ("one, ", "two, ", "three")]
PARTS = [["text", "parts"], ["data", {"n": 7, "deep": [1.5, None, "ü"]}], ["bytes", "AP8=", "application/octet-stream", "b.bin"],
         ["url", "http://127.0.0.1:9/f.png", "image/png", "f.png"]]
IN_PIECES = {"stream": [SUBMITTED, WORKING, *PIECES, COMPLETED], "places": [[False, False], [True, False], [True, True]],
             "task": {"task": "completed", "artifacts": ["one, two, three"]}}
# By step, what is seen.
OUTCOMES = {
    **{step: SEEN[step][0] for step in ("send", "task", "stream")},
    "pieces": IN_PIECES,
    "parts": PARTS,
    **{step: SEEN[step][0] for step in ("get", "ask", "fail", "cancel", "resubscribe")},
}
# By step, the code of the error and its class.
FAULTS = {
    "list": (-32004, "UnsupportedOperationError"), "push": (-32003, "PushNotificationNotSupportedError"),
    "unknown": (-32001, "TaskNotFoundError"), "terminal": (-32002, "TaskNotCancelableError"),
}
# Last, since it replaces the client's card.
STEPS = ["card", *OUTCOMES, *FAULTS, "extended"]
# The conversations of google-adk: what is said, and what each turn shows.
TALKS = {
    "send": (["hello"], [{"parts": [["text", "hello, too"]], "state": None}]),
    "task": (["task"], [{"parts": [["text", "made"]], "state": "completed"}]),
    "pieces": (["pieces"], [{"parts": [["text", text] for text in ("one, ", "two, ", "three")], "state": "completed"}]),
    "parts": (["parts"], [{"parts": [["text", "parts"], ["bytes", "AP8=", "application/octet-stream"]], "state": "completed"}]),
    "ask": (["ask", "answer"], [{"parts": [], "state": "input-required"}, {"parts": [["text", "made"]], "state": "completed"}]),
    "fail": (["fail"], [{"parts": [], "state": "failed"}]),
}

# The class of every error of a client that has one for each binding.
PLAIN = {("py03", "JSONRPC"): "A2AClientJSONRPCError", ("py03", "HTTP+JSON"): "A2AClientHTTPError"}
UNLISTED = "The cards name HTTP+JSON of 1.0 only; the client was told of it."
AS_PROTO = "Over HTTP+JSON this SDK drops `append` and the names of files, and reads `v1/card` in the form of the proto only."
TALKING = "Its `RemoteA2aAgent` on a2a-sdk 0.3.26, with streams and without: it sends messages. On a2a-sdk 1.x it speaks 1.0."
# Of the run only, not in the document.
NO_LIST = "A2A 0.3 has no list of tasks."
BY_CARD = "The client refuses push notifications by the card, and asks nothing."
# What an SDK makes of a right answer, and why.
OTHERWISE = {("js03", "HTTP+JSON"): {
    "pieces": ({"got": {**IN_PIECES, "places": [[False, False], [False, False], [False, True]]}}, AS_PROTO),
    "parts": ({"got": [*PARTS[:2], [*PARTS[2][:3], None], [*PARTS[3][:3], None]]}, AS_PROTO),
    "extended": ({"error": "A2AError: Unsupported security scheme type"}, AS_PROTO),
}}


def judge(client, binding, agent, step, found):
    """What is wrong in one place of the table, and why there is nothing or something else."""
    saw = found["saw"]
    if different := OTHERWISE.get((client, binding), {}).get(step):
        expected, why = different
        return (None, why) if saw == expected else (f"not {expected}", why)
    if saw.get("not_offered"):
        return None if step == "list" and "0.3" in SDKS[client][0] else "the driver lacks this call", NO_LIST
    if step in FAULTS:
        return judge_fault(client, binding, step, found)
    name = agent.split()[0]
    cards = {"card": {"name": name, "skills": ["act"]}, "extended": {"name": name, "skills": ["act", "more"]}}
    expected = {**OUTCOMES, **cards}[step]
    return (None, None) if saw.get("got") == expected else (f"not {expected}", None)


def judge_fault(client, binding, step, found):
    number, name = FAULTS[step]
    name = PLAIN.get((client, binding), name)
    if not found["saw"].get("error", "").startswith(f"{name}: "):
        return f"no {name}", None
    if number in map(code, found["wire"]):
        return None, None
    # A task was begun and canceled, and that is all.
    return (None, BY_CARD) if step == "push" and client.startswith("js") and len(found["wire"]) == 2 else (f"no {number}", None)


def speaks_only(agent, version):
    """Whether an agent knows the methods of one generation, without a gateway."""
    known = {}
    for method, spoken in (("tasks/get", "0.3"), ("GetTask", "1.0")):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "t"}}
        answer = call("POST", agent.url, body=body, fields={"A2A-Version": spoken})
        known[spoken] = answer.json()["error"]["code"] == -32001
    return [spoken for spoken in known if known[spoken]] == [version]


def jobs(bases, token):
    """The jobs of each driver."""
    common = {"token": token, "alone": True}
    made = {"adk": []}
    for client in CLIENTS:
        version = SDKS[client][0]
        # Cards name HTTP+JSON of 1.0 only: a client of 0.3 has to be told.
        made[client] = [{**common, "name": f"{agent}/{binding}", "base": bases[agent], "binding": binding, "version": version,
                         "unlisted": version == "0.3" and binding == "HTTP+JSON", "scenarios": STEPS}
                        for agent in AGENTS[version] for binding in BINDINGS]
    for agent in AGENTS["0.3"]:
        made["adk"] += [{**common, "name": f"{agent}/{streaming}/{step}", "base": bases[agent], "streaming": streaming,
                         "scenarios": [["talk", texts]]} for streaming in (False, True) for step, (texts, _) in TALKS.items()]
    return made


def run(stage):
    agents = stage.agents(*(name for of in AGENTS.values() for name in of))
    # Translation is on by default.
    gateway = stage.gateway()
    bases = {name: gateway.seat(agent) for name, agent in agents.items()}
    made = jobs(bases, gateway.tokens["alice"])
    failures, rows = table(stage.drive_all(made))
    for version, names in AGENTS.items():
        spoken = "1.0" if version == "0.3" else "0.3"
        failures += [f"{name} speaks not only A2A {spoken}" for name in names if not speaks_only(agents[name], spoken)]
    if not failures:
        failures = publish(rows)
    return failures


def table(found):
    """Prints a line for each client, binding and agent. Answers what failed, and the rows of the document."""
    failures, rows, reasons = [], [], []
    print(f"{'client':6} {'agent':9} {'binding':9}  " + " ".join(f"{step[:8]:8}" for step in STEPS))
    for client, label in CLIENTS.items():
        for binding in BINDINGS:
            cells = []
            for agent in AGENTS[SDKS[client][0]]:
                results, marks, less = found[client][f"{agent}/{binding}"], [], []
                for step in STEPS:
                    result = results.get(step, results.get("connect"))
                    wrong, why = judge(client, binding, agent, step, result)
                    if wrong:
                        failures.append(f"{client} {agent} {binding}, {step}: {wrong}: {json.dumps(result)}")
                    if why and why not in reasons:
                        reasons.append(why)
                    if why == AS_PROTO:
                        less.append(step)
                    marks.append("FAILED" if wrong else f"({reasons.index(why) + 1})" if why else "ok")
                print(f"{client:6} {agent:9} {binding:9}  {' '.join(f'{mark:8}' for mark in marks)}".rstrip())
                cells.append(f"all but {', '.join(less)} (2)" if less else "all")
            rows.append([label, *over(client, binding), *cells])
    for number, reason in enumerate(reasons, 1):
        print(f"  ({number}) {reason}")
    talks = judge_talks(found["adk"])
    print(f"google-adk: {len(found['adk'])} conversations, {len(talks)} failed")
    rows.append([ADK, "0.3", "JSON-RPC", "all (3)", "all (3)"])
    return failures + talks, rows


def over(client, binding):
    """The generation of a client and its binding, in the document's words."""
    version = SDKS[client][0]
    return version, {"JSONRPC": "JSON-RPC", "HTTP+JSON": "HTTP+JSON" + (" (1)" if version == "0.3" else "")}[binding]


def judge_talks(found):
    failures = []
    for name, result in found.items():
        _, expected = TALKS[name.split("/")[2]]
        saw = result.get("talk", result.get("connect"))["saw"]
        if saw.get("got") != expected:
            failures.append(f"adk {name}: not {expected}: {saw}")
    return failures


def publish(rows):
    """Puts the table into the document, or answers that it is not the one there."""
    head = ["client", "A2A", "over", "agents of a2a-sdk", "agents of @a2a-js/sdk"]
    lines = [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]
    text = "\n".join(["", *lines, "", f"1. {UNLISTED}", f"2. {AS_PROTO}", f"3. {TALKING}", "", ""])
    document = DOCUMENT.read_text()
    before, _, rest = document.partition(BEGIN)
    there, _, after = rest.partition(END)
    if "WRITE" in os.environ:
        DOCUMENT.write_text(before + BEGIN + text + END + after)
        return []
    return [] if there == text else [f"{DOCUMENT} has another table than this run; WRITE=1 puts it there"]
