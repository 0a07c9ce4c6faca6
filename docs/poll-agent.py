#!/usr/bin/env python3
"""An A2A agent behind no address: it fetches what was sent to it, and replies. Standard library only.

    GATEWAY=http://127.0.0.1:8080 TOKEN=<the workspace's token> python3 docs/poll-agent.py
"""
import json
import os
import time
import urllib.error
import urllib.request
import uuid

GATEWAY, TOKEN = os.environ["GATEWAY"].rstrip("/"), os.environ["TOKEN"]


def request(path, body=None, **fields):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(GATEWAY + path, data)
    fields |= {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    for name, value in fields.items():
        asked.add_header(name, value)
    return urllib.request.urlopen(asked, timeout=60)  # the feed has a comment every 15 s


def work(message):
    """Put your agent here."""
    texts = [part["text"] for part in message.get("parts", []) if "text" in part]
    return f"You said: {' '.join(texts)}"


def serve(item):
    own = f"/workspaces/{item['target_id']}/activity"
    sent = ("message/send", "message/stream", "SendMessage", "SendStreamingMessage")
    if item["status"] in ("submitted", "working") and item["method"] in sent:
        reply = f"{own}/{item['id']}/reply"
        request(reply, {"status": {"state": "working"}}).close()
        said = work(item["request_body"]["params"]["message"])
        message = {"kind": "message", "role": "agent", "messageId": str(uuid.uuid4())}
        message["parts"] = [{"kind": "text", "text": said}]
        request(reply, {"result": message}).close()
    request(f"{own}/ack", {"up_to": item["id"]}).close()


while True:  # begins behind what was acknowledged, whatever happened in between
    try:
        with request("/activity", Accept="text/event-stream") as feed:
            for line in feed:
                if line.startswith(b"data:"):
                    serve(json.loads(line[5:]))
    except (urllib.error.URLError, OSError) as error:
        print("trying again:", error, flush=True)
        time.sleep(1)
