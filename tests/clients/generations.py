"""Clients of each SDK, and google-adk, with agents of each generation, added in each way: translated where these differ.

They begin with the card. The table is the one in docs/guide/bridge-generations.md. WRITE=1 puts that of the run there
instead of comparing it. RUST_CLIENT is the folder that scripts/rust-client printed.
"""

import itertools
import json
import os

import matrix
from expected import CANNOT, COMPLETED, SCENARIOS, SEEN, SUBMITTED, WORKING
from stage import BINDINGS, HERE, WAYS, call

DOCUMENT = HERE.parent.parent / "docs/guide/bridge-generations.md"
BEGIN, END = (f"<!-- {edge}: tests/clients/generations.py -->\n" for edge in ("begin", "end"))
# The generation of each client.
CLIENTS = {"py03": "0.3", "js03": "0.3", "py13": "1.0", "js13": "1.0", "rs": "1.0"}
# That of each agent. Those of 1.0 are without the compatibility layer of their SDK.
AGENTS = {"py03": "0.3", "js03": "0.3", "py13 1.0": "1.0", "js13 1.0": "1.0"}
LABELS = {"py03": "a2a-sdk 0.3.26", "js03": "@a2a-js/sdk 0.3.14", "py13": "a2a-sdk 1.3.0", "js13": "@a2a-js/sdk 1.3.0",
          "rs": "a2a-client-lf 0.2.9", "adk": "google-adk 2.13.0"}

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
# The conversations of google-adk, which speaks A2A 0.3, with the agents of 1.0: what is said, and what each turn shows.
TALKERS = [agent for agent in AGENTS if AGENTS[agent] == "1.0"]
TALKS = {
    "send": (["hello"], [{"parts": [["text", "hello, too"]], "state": None}]),
    "task": (["task"], [{"parts": [["text", "made"]], "state": "completed"}]),
    "pieces": (["pieces"], [{"parts": [["text", text] for text in ("one, ", "two, ", "three")], "state": "completed"}]),
    "parts": (["parts"], [{"parts": [["text", "parts"], ["bytes", "AP8=", "application/octet-stream"]], "state": "completed"}]),
    "ask": (["ask", "answer"], [{"parts": [], "state": "input-required"}, {"parts": [["text", "made"]], "state": "completed"}]),
    "fail": (["fail"], [{"parts": [], "state": "failed"}]),
}

# The class of every error of a client that has one for each binding.
PLAIN = {("py03", "JSONRPC"): "A2AClientJSONRPCError", ("py03", "HTTP+JSON"): "A2AClientHTTPError",
         ("rs", "JSONRPC"): "A2AError", ("rs", "HTTP+JSON"): "A2AError"}
UNLISTED = "The cards of agents of 1.0 name HTTP+JSON of 0.3 last; the test gives the client that alone."
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


def is_translated(client, agent):
    return CLIENTS[client] != AGENTS[agent]


def steps(client, agent):
    """The steps of a pair. Without a translation: those of matrix.py, which says what is seen of them without a gateway."""
    return STEPS if is_translated(client, agent) else [step for step in STEPS if step in SCENARIOS]


def judge(client, binding, agent, step, found):
    """What is wrong in one place of the table, and why there is nothing or something else."""
    saw, name = found["saw"], agent.split()[0]
    if saw.get("not_offered"):
        return None if step == "list" and CLIENTS[client] == "0.3" else "the driver lacks this call", NO_LIST
    if not is_translated(client, agent):
        if why := CANNOT.get((client, name, binding, CLIENTS[client]), {}).get(step):
            return None if "error" in saw else "works, and is said to be impossible", why
        return matrix.judge(name, step, found), None
    if different := OTHERWISE.get((client, binding), {}).get(step):
        expected, why = different
        return (None, why) if saw == expected else (f"not {expected}", why)
    if step in FAULTS:
        return judge_fault(client, binding, step, found)
    cards = {"card": {"name": name, "skills": ["act"]}, "extended": {"name": name, "skills": ["act", "more"]}}
    expected = {**OUTCOMES, **cards}[step]
    return (None, None) if saw.get("got") == expected else (f"not {expected}", None)


def judge_fault(client, binding, step, found):
    number, name = FAULTS[step]
    name = PLAIN.get((client, binding), name)
    if not found["saw"].get("error", "").startswith(f"{name}: "):
        return f"no {name}", None
    if number in map(matrix.code, found["wire"]):
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
    """The jobs of each driver, a process for all of its own."""
    common = {"token": token, "alone": True}
    made = {client: [] for client in (*CLIENTS, "adk")}
    for client, version in CLIENTS.items():
        for agent, way, binding in itertools.product(AGENTS, WAYS, BINDINGS):
            unlisted = (version, AGENTS[agent], binding) == ("0.3", "1.0", "HTTP+JSON")
            made[client].append({**common, "name": f"{agent}/{way}/{binding}", "base": bases[agent, way], "binding": binding,
                                 "version": version, "unlisted": unlisted, "scenarios": steps(client, agent)})
    for agent, streaming, (step, (texts, _)) in itertools.product(TALKERS, (False, True), TALKS.items()):
        made["adk"].append({**common, "name": f"{agent}/{streaming}/{step}", "base": bases[agent, "registration"],
                            "streaming": streaming, "scenarios": [["talk", texts]]})
    return made


def run(stage):
    agents = stage.agents(*AGENTS)
    # Translation is on by default.
    gateway = stage.gateway()
    bases = {(name, way): gateway.seat(agent, way) for name, agent in agents.items() for way in WAYS}
    failures, rows, notes = table(stage.drive_all(jobs(bases, gateway.tokens["alice"])))
    for name, version in AGENTS.items():
        if not speaks_only(agents[name], version):
            failures.append(f"{name} speaks not only A2A {version}")
    return failures or publish(rows, notes)


def table(found):
    """Prints a line for each client, binding, agent and way. Answers what failed, the rows of the document and their notes."""
    failures, rows, reasons, notes = [], [], [], []
    print(f"{'client':6} {'binding':9} {'agent':8} {'added by':12}  " + " ".join(f"{step[:8]:8}" for step in STEPS))
    for client, binding in itertools.product(CLIENTS, BINDINGS):
        over = {"JSONRPC": "JSON-RPC"}.get(binding, binding)
        if (CLIENTS[client], binding) == ("0.3", "HTTP+JSON"):
            over += noted(UNLISTED, notes)
        row = [LABELS[client], CLIENTS[client], over]
        for agent in AGENTS:
            # By reason, the steps that are less than the others', each once.
            less = {}
            for way in WAYS:
                results, marks = found[client][f"{agent}/{way}/{binding}"], []
                for step in STEPS:
                    if step not in steps(client, agent):
                        marks.append("")
                        continue
                    result = results.get(step, results.get("connect"))
                    wrong, why = judge(client, binding, agent, step, result)
                    if wrong:
                        failures.append(f"{client} {binding} {agent} by {way}, {step}: {wrong}: {json.dumps(result)}")
                    if why and why not in (NO_LIST, BY_CARD):
                        less.setdefault(why, {})[step] = None
                    marks.append("FAILED" if wrong else "ok" if not why else noted(why, reasons).strip())
                print(f"{client:6} {binding:9} {agent:8} {way:12}  {' '.join(f'{mark:8}' for mark in marks)}".rstrip())
            missing = [", ".join(of) + noted(why, notes) for why, of in less.items()]
            row.append(f"all but {'; '.join(missing)}" if missing else "all")
        rows.append(row)
    for number, reason in enumerate(reasons, 1):
        print(f"  ({number}) {reason}")
    talks = judge_talks(found["adk"])
    print(f"google-adk: {len(found['adk'])} conversations, {len(talks)} failed")
    talked = noted(TALKING, notes)
    cells = [f"all{talked}" if agent in TALKERS else "–" for agent in AGENTS]
    return failures + talks, [*rows, [LABELS["adk"], "0.3", "JSON-RPC", *cells]], notes


def noted(why, notes):
    """The number of a note, which it gets where it is first needed."""
    if why not in notes:
        notes.append(why)
    return f" ({notes.index(why) + 1})"


def judge_talks(found):
    failures = []
    for name, result in found.items():
        _, expected = TALKS[name.split("/")[2]]
        saw = result.get("talk", result.get("connect"))["saw"]
        if saw.get("got") != expected:
            failures.append(f"adk {name}: not {expected}: {saw}")
    return failures


def publish(rows, notes):
    """Puts the table into the document, or answers that it is not the one there."""
    head = ["client", "A2A", "over", *(f"agents of {LABELS[agent.split()[0]]}" for agent in AGENTS)]
    lines = [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]
    text = "\n".join(["", *lines, "", *(f"{number}. {note}" for number, note in enumerate(notes, 1)), "", ""])
    document = DOCUMENT.read_text()
    before, _, rest = document.partition(BEGIN)
    there, _, after = rest.partition(END)
    if "WRITE" in os.environ:
        DOCUMENT.write_text(before + BEGIN + text + END + after)
        return []
    return [] if there == text else [f"{DOCUMENT} has another table than this run; WRITE=1 puts it there"]
