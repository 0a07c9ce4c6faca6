"""An agent that speaks gRPC alone (a2a-sdk 1.3.0 on grpc.aio), and clients of all forms. The table is the one in
docs/reference/bridge.md. WRITE=1 puts that of the run there instead of comparing it."""

import itertools
import os

import grpc
import grpc_front
import matrix
from generations import CLIENTS, FAULTS, LABELS, OTHERWISE, OUTCOMES, PLAIN
from stage import BINDINGS, HERE

DOCUMENT = HERE.parent.parent / "docs/reference/bridge.md"
BEGIN, END = (f"<!-- {edge}: tests/clients/grpc_behind.py -->\n" for edge in ("begin", "end"))
AGENT = "py13 grpc"
SDKS = ["py03", "js03", "py13", "js13"]
# Without `list`, which clients of 0.3 lack, and `push`, which is an agent's own between 1.0 and 1.0.
STEPS = [*OUTCOMES, "unknown", "terminal"]


def judge(client, binding, step, found):
    """What is wrong, or None."""
    saw = found["saw"]
    if different := OTHERWISE.get((client, binding), {}).get(step):
        return None if saw == different[0] else f"{saw}, not {different[0]}"
    if step not in FAULTS:
        return None if saw.get("got") == OUTCOMES[step] else f"{saw}, not {OUTCOMES[step]}"
    number, name = FAULTS[step]
    name = PLAIN.get((client, binding), name)
    if CLIENTS[client] == "0.3" and not saw.get("error", "").startswith(f"{name}: "):
        return f"{saw}, no {name}"
    return None if "error" in saw and number in map(matrix.code, found["wire"]) else f"{saw}: no {number}"


def run(stage):
    agent = stage.agents(AGENT)[AGENT]
    gateway = stage.gateway()
    base = gateway.seat(agent)
    jobs = {client: [{"token": gateway.tokens["alice"], "alone": True, "name": binding, "base": base, "binding": binding,
                      "version": CLIENTS[client], "unlisted": (CLIENTS[client], binding) == ("0.3", "HTTP+JSON"),
                      "scenarios": STEPS} for binding in BINDINGS] for client in SDKS}
    found, failures, rows = stage.drive_all(jobs), [], []
    for client, binding in itertools.product(SDKS, BINDINGS):
        marks = []
        for step in STEPS:
            why = judge(client, binding, step, found[client][binding][step])
            marks.append("no" if why else "yes")
            if why:
                failures.append(f"{client} {binding} {step}: {why}")
        rows.append([f"{binding} {CLIENTS[client]}", LABELS[client], *marks])
    channel = grpc.insecure_channel(f"127.0.0.1:{gateway.port}")
    with channel:
        client = grpc_front.Client(channel, gateway.tokens["alice"], AGENT.replace(" ", "-"))
        for what, saw, expected in grpc_front.methods(client, True):
            if saw != expected:
                failures.append(f"grpc {what}: {saw}, not {expected}")
    rows.append(["GRPC 1.0", "the stubs of a2a-sdk 1.3.0", *(["yes"] * len(STEPS))])
    return failures or publish(rows)


def publish(rows):
    """Compares the table of the document with that of the run."""
    lines = [["caller", "client", *STEPS], ["---"] * (len(STEPS) + 2), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    print(table)
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = before + BEGIN + table + END + after
    if "WRITE" in os.environ:
        DOCUMENT.write_text(made)
    elif made != text:
        return [f"the table of {DOCUMENT.name} is another one: run it with WRITE=1"]
    return []
