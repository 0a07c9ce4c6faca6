#!/usr/bin/env python3
"""An A2A agent behind no address: it fetches what was sent to it, and replies. Standard library only.

    GATEWAY=http://127.0.0.1:8080 TOKEN=<the workspace's token> python3 docs/guide/poll-agent.py
"""
import http.client, urllib.error, urllib.request
import json, os, time, uuid

GATEWAY, TOKEN = os.environ["GATEWAY"].rstrip("/"), os.environ["TOKEN"]
SENT = ("message/send", "message/stream", "SendMessage", "SendStreamingMessage")


def request(path, body=None, **fields):
    """Asks until there is an answer: a gateway that is busy, stopping or away is asked again, when it says so."""
    fields |= {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    asked = urllib.request.Request(GATEWAY + path, None if body is None else json.dumps(body).encode(), fields)
    while True:
        try:
            return urllib.request.urlopen(asked, timeout=60)  # the feed has a comment every 15 s
        except urllib.error.HTTPError as refusal:
            if refusal.code != 429 and refusal.code < 500:
                raise
            time.sleep(float(refusal.headers.get("Retry-After", 1)))
        except (OSError, http.client.HTTPException):
            time.sleep(1)


def work(message):
    """Put your agent here. One that takes long may reply {"status": {"state": "working"}} first."""
    return "You said: " + " ".join(part["text"] for part in message.get("parts", []) if "text" in part)


def serve(item):
    if item["status"] not in ("submitted", "working") or item["method"] not in SENT:
        return
    said = {"kind": "text", "text": work(item["request_body"]["params"]["message"])}
    message = {"kind": "message", "role": "agent", "messageId": str(uuid.uuid4()), "parts": [said]}
    try:
        request(f"/workspaces/{item['target_id']}/activity/{item['id']}/reply", {"result": message}).close()
    except urllib.error.HTTPError as refusal:  # 409: it was canceled, or replied to before the connection broke
        print(item["id"], refusal, flush=True)


while True:  # begins behind what was acknowledged, whatever happened in between
    try:
        with request("/activity", Accept="text/event-stream") as feed:
            name, done = b"", []
            for line in feed:
                if line.startswith(b"event:"):  # `activity`; `end` and `gap` are the last of a feed
                    name = line[6:].strip()
                elif line.startswith(b"data:") and name == b"activity":
                    done.append(json.loads(line[5:]))
                    serve(done[-1])
                if len(done) >= 50 or done and line.startswith(b":"):  # many, or a pause: one request for all
                    request(f"/workspaces/{done[-1]['target_id']}/activity/ack", {"up_to": done[-1]["id"]}).close()
                    done = []
    except (OSError, http.client.HTTPException) as error:
        print("trying again:", error, flush=True)
        time.sleep(1)
