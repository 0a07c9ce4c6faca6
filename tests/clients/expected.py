"""What each scenario must show, whatever the SDK; and what an SDK cannot do, with or without a gateway."""

HOOK = "http://127.0.0.1:9/hook"
SUBMITTED = {"task": "submitted", "artifacts": []}
WORKING = {"status": "working", "n": None}
CANCELED = {"status": "canceled", "n": None}
COMPLETED = {"status": "completed", "n": None}
DONE = {"task": "completed", "artifacts": ["made"]}
STREAM = [SUBMITTED, WORKING, *({"status": "working", "n": n} for n in (1, 2, 3)), {"artifact": "made"}, COMPLETED]

# By scenario, what may be seen.
SEEN = {
    "send": [{"message": "hello, too"}],
    "task": [DONE],
    "stream": [STREAM],
    "get": [DONE],
    "ask": [[{"task": "input-required", "artifacts": []}, DONE]],
    "fail": [{"task": "failed", "artifacts": []}],
    "cancel": [{"canceled": {"task": "canceled", "artifacts": []}, "stream": [SUBMITTED, WORKING, CANCELED]}],
    # 0.3.26 does not begin with the task.
    "resubscribe": [[{"task": "working", "artifacts": []}, CANCELED], [CANCELED]],
    # A list may leave artifacts out.
    "list": [[DONE], [{"task": "completed", "artifacts": []}]],
    "push": [[HOOK, HOOK], [HOOK, HOOK, [HOOK]]],
}

# By scenario, the JSON-RPC code of the error; or, where REST gives none, its HTTP status.
FAULTS = {
    "unknown": {-32001, 404},
    "terminal": {-32002, 409},
    # A message to a task that has ended: 0.3.26, 0.3.14 and 1.x differ.
    "ended": {-32602, -32600, -32004, 422},
}
SCENARIOS = ["card", *SEEN, *FAULTS]

# What is refused in the error's own words, by the reason of its details.
REASONS = {"TASK_NOT_FOUND": -32001, "TASK_NOT_CANCELABLE": -32002, "PUSH_NOTIFICATION_NOT_SUPPORTED": -32003,
           "UNSUPPORTED_OPERATION": -32004, "INVALID_PARAMS": -32602}

# The example agents of the gateway's demo: the one that answers at once, and the one that works for three seconds.
DEMO = {"demo echo": ["card", "send", "unknown"], "demo slow": ["card", "stream", "get", "cancel", "resubscribe", "unknown", "terminal"]}

LINES = "This agent writes an event in several `data:` lines, and this client reads the last one only."
CONFIG = "Client and agent write a push configuration of A2A 0.3 over HTTP+JSON differently."
# (client, agent, binding, version): what the two cannot do between them, and why. They fail without a gateway too.
CANNOT = {
    ("js03", "py03", "HTTP+JSON", "0.3"): dict.fromkeys(("stream", "cancel", "resubscribe", "push"), LINES),
    ("js03", "py13", "HTTP+JSON", "0.3"): {"push": CONFIG},
    ("js03", "js03", "HTTP+JSON", "0.3"): {"push": CONFIG},
    ("js13", "py03", "HTTP+JSON", "0.3"): {"push": CONFIG},
    ("js13", "py13", "HTTP+JSON", "0.3"): {"push": CONFIG},
    ("js13", "js03", "HTTP+JSON", "0.3"): {"push": CONFIG},
    ("py03", "js13", "HTTP+JSON", "0.3"): {"push": CONFIG},
    ("py13", "js13", "HTTP+JSON", "0.3"): {"push": CONFIG},
    ("py13", "js13", "HTTP+JSON", "1.0"): {"push": "This agent answers a deletion with 204, in which this client looks for JSON."},
}
