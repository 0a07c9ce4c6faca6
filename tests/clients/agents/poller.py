"""An agent that polls, and does what the SDKs' agents do. Started with the gateway's address and its workspace's token."""

import json
import sys
import threading
import urllib.error
import urllib.request
import uuid

GATEWAY, TOKEN = sys.argv[1:]


def request(path, body=None, **fields):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(GATEWAY + path, data, {"Authorization": f"Bearer {TOKEN}",
                                                          "Content-Type": "application/json", **fields})
    return urllib.request.urlopen(asked, timeout=60)


def parts(text):
    return [{"kind": "text", "text": text}]


def serve(item):
    reply = f"/workspaces/{item['target_id']}/activity/{item['id']}/reply"

    def say(body):
        request(reply, body).close()

    def state(word, **more):
        say({"kind": "status-update", "status": {"state": word}, **more})

    message = item["request_body"]["params"]["message"]
    word, _, number = message["parts"][0]["text"].partition(" ")
    if word == "hello":
        return say({"result": {"kind": "message", "role": "agent", "messageId": str(uuid.uuid4()), "parts": parts("hello, too")}})
    state("working")
    if word == "wait":
        return None
    if word == "ask":
        return state("input-required")
    if word == "fail":
        return state("failed")
    if word == "stream":
        for n in range(1, int(number) + 1):
            state("working", metadata={"n": n})
    say({"kind": "artifact-update", "lastChunk": True,
         "artifact": {"artifactId": str(uuid.uuid4()), "name": "result", "parts": parts("made")}})
    state("completed")


def attend(item):
    try:
        serve(item)
    except urllib.error.HTTPError as refused:
        # Given up in the meantime.
        if refused.code != 409:
            print(refused.code, refused.read(), flush=True)


with request("/activity", Accept="text/event-stream") as feed:
    for line in feed:
        if line.startswith(b"data:"):
            item = json.loads(line[5:])
            if item["method"] != "tasks/cancel":
                threading.Thread(target=attend, args=[item]).start()
