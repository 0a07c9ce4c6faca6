"""A PocketPaw-style agent behind the gateway: by plain HTTP as the platform's own clients call, and by the SDKs as far as they can."""

from masks import Masks
from matrix import cards
from stage import SDKS, call, events

# What an SDK must find in a task, and PocketPaw's tasks do not have.
WHY = "the agent's tasks have no `kind` and no `contextId`, without which this SDK reads no task; the agent did accept the call"
# Of the version that its card says.
OLD = "this SDK knows A2A 1.0 and 0.3, and the card says 0.2"


def message(text, **more):
    return {"message": {"role": "user", "messageId": "m-1", "parts": [{"type": "text", "text": text}], **more}}


class Caller:
    """JSON-RPC at one URL."""

    def __init__(self, url, token):
        self.url, self.token = url, token

    def rpc(self, method, params):
        answer = call("POST", self.url, self.token, {"jsonrpc": "2.0", "id": "c-1", "method": method, "params": params})
        if answer.fields["content-type"].startswith("text/event-stream"):
            return [event["result"] for event in events(answer.body)]
        return answer.json().get("result", answer.json().get("error"))

    def task(self, text="task", **more):
        return self.rpc("message/send", message(text, **more))


def operations(caller):
    """Everything that its documents say, in order: name, what came back."""
    task = caller.task()
    yield "send", task
    yield "stream", caller.rpc("message/stream", message("stream 3"))
    yield "get", caller.rpc("tasks/get", {"id": task["id"]})
    yield "get, history_length 0", caller.rpc("tasks/get", {"id": task["id"], "history_length": 0})
    yield "get, history_length 1", caller.rpc("tasks/get", {"id": task["id"], "history_length": 1})
    asked = caller.task("ask")
    yield "ask", [asked["status"], caller.task("answer", taskId=asked["id"])["status"]]
    yield "fail", caller.task("fail")["status"]
    yield "cancel", caller.rpc("tasks/cancel", {"id": caller.task("ask")["id"]})["status"]
    yield "cancel of an ended task", caller.rpc("tasks/cancel", {"id": task["id"]})
    yield "message to an ended task", caller.task("more", taskId=task["id"])
    yield "an unknown task", caller.rpc("tasks/get", {"id": "none"})
    for mode in ("text/plain", "image/png"):
        params = {**message("task"), "configuration": {"accepted_output_modes": [mode]}}
        yield f"accepted_output_modes {mode}", caller.rpc("message/send", params)
    yield "push", caller.rpc("tasks/pushNotificationConfig/set", {"id": task["id"]})
    yield "an unknown method", caller.rpc("tasks/frobnicate", {})


# The codes of PocketPaw's own table.
CODES = {"cancel of an ended task": -32002, "message to an ended task": -32003, "an unknown task": -32001,
         "accepted_output_modes image/png": -32005, "push": -32003, "an unknown method": -32601}


def routes(base, token, other):
    """The routes of its own beside JSON-RPC, which the gateway translates: name, what is wrong or None."""
    def ask(method, path, body=None):
        return call(method, base + path, token, body)

    sent = ask("POST", "/tasks/send", message("task"))
    task = sent.json()
    yield "POST tasks/send", None if sent.status == 200 and task["status"]["state"] == "completed" else sent
    streamed = ask("POST", "/tasks/send/stream", message("stream 3"))
    states = [event["status"]["state"] for event in events(streamed.body) if "status" in event]
    yield "POST tasks/send/stream", None if states == ["working"] * 4 + ["completed"] else streamed
    for length, expected in (("", 1), ("?history_length=0", 0), ("?history_length=1", 1)):
        got = ask("GET", f"/tasks/{task['id']}{length}")
        fine = got.status == 200 and got.json()["id"] == task["id"] and len(got.json()["history"]) == expected
        yield f"GET tasks/ID{length}", None if fine else got
    above = call("GET", f"{base.removesuffix('/a2a')}/tasks/{task['id']}", token)
    yield "GET /workspaces/…/tasks/ID", None if above.status == 200 and above.json()["id"] == task["id"] else above
    foreign = call("GET", f"{base}/tasks/{task['id']}", other)
    yield "GET tasks/ID of another caller", None if foreign.status == 404 and b"-32001" in foreign.body else foreign
    waiting = ask("POST", "/tasks/send", message("ask")).json()
    canceled = ask("POST", f"/tasks/{waiting['id']}/cancel")
    fine = canceled.status == 200 and canceled.json()["status"]["state"] == "canceled"
    yield "POST tasks/ID/cancel", None if fine else canceled
    missing = ask("GET", "/tasks/none")
    yield "GET tasks/none", None if b"-32001" in missing.body else missing
    bad = ask("GET", f"/tasks/{task['id']}?history_length=many")
    yield "GET tasks/ID?history_length=many", None if bad.status == 400 and b"-32602" in bad.body else bad


def shape(value):
    """A result without what differs from run to run, and without what the completion adds to a part."""
    return Masks()(repr(value).replace("'kind': 'text'", "'type': 'text'").replace("'kind': 'message', ", ""))


def run(stage):
    agent = stage.agents("pocketpaw")["pocketpaw"]
    gateway = stage.gateway()
    base, token = gateway.seat(agent), gateway.tokens["alice"]
    failures = []

    def line(name, wrong, good="ok"):
        print(f"{name:44} {'FAILED' if wrong else good}")
        if wrong:
            failures.append(f"{name}: {wrong}")

    for (name, direct), (_, through) in zip(operations(Caller(agent.url, None)), operations(Caller(base, token)), strict=True):
        # Its card says that it sends no push notifications, so the gateway says so first.
        same = name == "push" or shape(direct) == shape(through)
        wrong = None if same else f"direct {direct}, through the gateway {through}"
        if name in CODES and through.get("code") != CODES[name]:
            wrong = f"not {CODES[name]}: {through}"
        line(f"JSON-RPC, {name}", wrong)
    bare = call("POST", base, token, {"params": message("task")}).json()
    line("JSON-RPC, a bare body, which it refuses itself", None if bare.get("result", {}).get("status") == {"state": "completed"} else bare)
    try:
        for name, wrong in routes(base, token, gateway.tokens["bob"]):
            line(name, wrong)
    except (KeyError, ValueError) as error:
        line("its own routes", f"{type(error).__name__}: {error}")
    failures += cards(gateway, {"pocketpaw": agent}, {"pocketpaw": base})
    old = call("GET", f"{base}/.well-known/agent-card.json", token).json().get("protocolVersion", "").startswith("0.2")
    for sdk in SDKS:
        job = {"name": "pocketpaw", "base": base, "token": token, "binding": "JSONRPC", "version": "0.3",
               "scenarios": ["card", "unknown", "send", "stream"]}
        found = stage.drive(sdk, [job])["pocketpaw"]
        if "connect" in found:
            line(f"{sdk}, card", None if old and "1.0" in SDKS[sdk] else found["connect"], f"impossible: {OLD}")
            continue
        line(f"{sdk}, card", None if found["card"]["saw"].get("got", {}).get("name") == "pocketpaw" else found["card"])
        line(f"{sdk}, unknown", None if '"code":-32001' in found["unknown"]["wire"][-1]["body"] else found["unknown"])
        for scenario in ("send", "stream"):
            wire = found[scenario]["wire"]
            accepted = wire and wire[-1]["status"] == 200 and '"result":' in wire[-1]["body"]
            line(f"{sdk}, {scenario}", None if accepted else found[scenario], f"impossible: {WHY}")
    return failures
