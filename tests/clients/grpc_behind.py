"""An agent that speaks gRPC alone (a2a-sdk 1.3.0 on grpc.aio), and clients of all forms. The table is the one in
docs/reference/bridge.md. WRITE=1 puts that of the run there instead of comparing it."""

import itertools
import os

import grpc
import matrix
from a2a.types import a2a_pb2 as pb
from google.protobuf import json_format
from grpc_front import Client, message
from generations import CLIENTS, FAULTS, LABELS, OTHERWISE, OUTCOMES, PLAIN
from stage import BINDINGS, HERE, WAYS

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


def ask(text):
    return pb.SendMessageRequest(message=message(text))


def begun(client):
    """A task that runs until it is canceled, and its stream."""
    stream = client.call("SendStreamingMessage", ask("wait"))
    return next(stream).task.id, stream


def canceled(client):
    task, stream = begun(client)
    answer = client.call("CancelTask", pb.CancelTaskRequest(id=task)).status.state
    return answer, list(stream)[-1].status_update.status.state


def resubscribed(client):
    task, _ = begun(client)
    stream = client.call("SubscribeToTask", pb.SubscribeToTaskRequest(id=task))
    first = next(stream).task.id == task
    client.call("CancelTask", pb.CancelTaskRequest(id=task))
    return first, list(stream)[-1].status_update.status.state


def parts(client):
    sent = ask("parts")
    sent.message.parts.extend([pb.Part(raw=b"\0\xff", filename="b.bin", media_type="application/octet-stream"),
                               json_format.ParseDict({"data": {"n": 7, "deep": [1.5, None, "ü"]}}, pb.Part())])
    return list(client.call("SendMessage", sent).task.artifacts[0].parts) == list(sent.message.parts)


def by_grpc(client):
    """What the stubs saw in each step, and what they should have."""
    made = client.call("SendMessage", ask("task")).task
    events = list(client.call("SendStreamingMessage", ask("stream 3")))
    pieces = list(client.call("SendStreamingMessage", ask("pieces")))
    return {
        "send": (client.call("SendMessage", ask("hello")).message.parts[0].text, "hello, too"),
        "task": (made.status.state, pb.TASK_STATE_COMPLETED),
        "stream": ((events[0].HasField("task"), events[-1].status_update.status.state), (True, pb.TASK_STATE_COMPLETED)),
        "pieces": ([one.artifact_update.artifact.parts[0].text for one in pieces if one.HasField("artifact_update")],
                   ["one, ", "two, ", "three"]),
        "parts": (parts(client), True),
        "get": (client.call("GetTask", pb.GetTaskRequest(id=made.id)).artifacts[0].parts[0].text, "made"),
        "ask": (client.call("SendMessage", ask("ask")).task.status.state, pb.TASK_STATE_INPUT_REQUIRED),
        "fail": (client.call("SendMessage", ask("fail")).task.status.state, pb.TASK_STATE_FAILED),
        "cancel": (canceled(client), (pb.TASK_STATE_CANCELED, pb.TASK_STATE_CANCELED)),
        "resubscribe": (resubscribed(client), (True, pb.TASK_STATE_CANCELED)),
        "unknown": (client.code("GetTask", pb.GetTaskRequest(id="none")), grpc.StatusCode.NOT_FOUND),
        "terminal": (client.code("CancelTask", pb.CancelTaskRequest(id=made.id)), grpc.StatusCode.FAILED_PRECONDITION),
    }


def run(stage):
    agent = stage.agents(AGENT)[AGENT]
    gateway = stage.gateway()
    base = gateway.seat(agent)
    jobs = {client: [{"token": gateway.tokens["alice"], "alone": True, "name": binding, "base": base, "binding": binding,
                      "version": CLIENTS[client], "unlisted": (CLIENTS[client], binding) == ("0.3", "HTTP+JSON"),
                      "scenarios": STEPS} for binding in BINDINGS] for client in SDKS}
    found, failures, rows = stage.drive_all(jobs), [], []
    for client, binding in itertools.product(SDKS, BINDINGS):
        missing = []
        for step in STEPS:
            why = judge(client, binding, step, found[client][binding][step])
            if why:
                missing.append(step)
                failures.append(f"{client} {binding} {step}: {why}")
        rows.append([f"{binding} {CLIENTS[client]}", LABELS[client], named(missing)])
    channel = grpc.insecure_channel(f"127.0.0.1:{gateway.port}")
    with channel:
        name = AGENT.replace(" ", "-")
        saw = by_grpc(Client(channel, gateway.tokens["alice"], name))
        # Its own card says the same.
        for way in WAYS[1:]:
            gateway.seat(agent, way)
            made = Client(channel, gateway.tokens["alice"], f"{name}-{way}").call("SendMessage", ask("task")).task
            if made.status.state != pb.TASK_STATE_COMPLETED:
                failures.append(f"added by {way}: {made}")
    for step, (found_there, expected) in saw.items():
        if found_there != expected:
            failures.append(f"grpc {step}: {found_there}, not {expected}")
    missing = [step for step in STEPS if saw[step][0] != saw[step][1]]
    rows.append(["GRPC 1.0", "the stubs of a2a-sdk 1.3.0", named(missing)])
    return failures or publish(rows)


def named(missing):
    return f"all but {', '.join(missing)}" if missing else "all"


def publish(rows):
    """Compares the table of the document with that of the run."""
    lines = [["caller", "client", "can"], ["---"] * 3, *rows]
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
