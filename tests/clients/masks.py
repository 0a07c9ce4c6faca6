"""What is made up anew in each run, masked, so that the rest can be compared byte for byte."""

import re

ID = re.compile(r"\b[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\b")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
# Comments, and the `id:` lines of docs/reference/a2a.md, "Streams": neither is an agent's event.
BETWEEN = re.compile(r"^:.*\r?\n(\r?\n)?|^id:.*\r?\n", re.MULTILINE)

# The fields that a gateway sets, changes and leaves out: docs/reference/a2a.md, "Request fields that the agent receives".
SET = {"via", "x-request-id", "x-workspace-id", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-a2a-hops"}
CHANGED = {"host", "authorization", "connection"}
LEFT_OUT = {"accept-encoding", "cache-control", "sec-fetch-mode", "sec-fetch-site", "sec-fetch-dest"}


class Masks:
    """Ids are numbered as they come, so that the same one is the same everywhere in one scenario."""

    def __init__(self):
        self.ids = {}

    def __call__(self, text):
        text = ID.sub(lambda found: f"<id {self.ids.setdefault(found[0].replace('-', ''), len(self.ids))}>", text)
        return TIME.sub("<time>", text)


def answers(wire, whole=True):
    """What a client got, without the bodies unless they are `whole`."""
    masks = Masks()

    def body(one):
        return masks(BETWEEN.sub("", one["body"]) if "event-stream" in (one["type"] or "") else one["body"])

    return [{"status": one["status"], "type": one["type"], "body": body(one) if whole else None} for one in wire]


def received(requests):
    """What an agent got, but for the fields that a gateway may touch."""
    masks = Masks()
    fixed = SET | CHANGED | LEFT_OUT
    return [{"line": masks(f"{one['method']} {one['target']}"), "body": masks(one["body"].decode()),
             "fields": {name: masks(value) for name, value in one["fields"].items() if name not in fixed}} for one in requests]


def strange_fields(through, direct):
    """What is wrong with the fields of a request that came through a gateway, beside one that came direct."""
    wrong = [f"{name} is missing" for name in SET - {"x-workspace-id"} if name not in through]
    wrong += [f"{name} is passed on" for name in LEFT_OUT if name in through]
    if through["authorization"] == direct["authorization"]:
        wrong.append("the caller's credential is passed on")
    return wrong
