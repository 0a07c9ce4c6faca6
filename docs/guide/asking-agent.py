#!/usr/bin/env python3
"""An A2A agent that asks another one, through the gateway. Standard library only.

    ASKS=hello a2a-gateway run --workspace lead --token-file lead.token -- python3 asking-agent.py
"""
import json
import os
import urllib.error
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, ASKS = int(os.environ["PORT"]), os.environ["ASKS"]
GATEWAY, TOKEN_FILE = os.environ["A2A_GATEWAY_URL"], os.environ["A2A_GATEWAY_TOKEN_FILE"]  # `run` sets them
CARD = {
    "name": "lead", "description": "Asks another agent", "version": "1", "protocolVersion": "0.3.0",
    "url": f"http://127.0.0.1:{PORT}/", "capabilities": {}, "skills": [],
    "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
}


def ask(workspace, text, hops):
    """Sends a message to the agent of a workspace. Returns the text of its answer, or why there is none."""
    with open(TOKEN_FILE) as file:  # for each call: the token may be rotated
        token = file.read().strip()
    fields = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    if hops:  # of the call that this one answers, so that agents do not call each other for ever
        fields["X-A2A-Hops"] = hops
    message = {"kind": "message", "role": "user", "messageId": str(uuid.uuid4()),
               "parts": [{"kind": "text", "text": text}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "message/send",
            "params": {"message": message, "configuration": {"blocking": True}}}
    url = f"{GATEWAY}/workspaces/{workspace}/a2a"
    request = urllib.request.Request(url, json.dumps(call).encode(), fields)
    try:
        with urllib.request.urlopen(request, timeout=130) as answer:
            result = json.load(answer).get("result", {})
    except urllib.error.HTTPError as refusal:
        return f"no answer of {workspace}: {refusal.headers.get('X-A2A-Refused', refusal.status)}"
    parts = result.get("parts") or result.get("status", {}).get("message", {}).get("parts", [])
    return " ".join(part["text"] for part in parts if "text" in part)


class Agent(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.reply(CARD)

    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = {"jsonrpc": "2.0", "id": call.get("id")}
        if call.get("method") == "message/send":
            text = " ".join(part["text"] for part in call["params"]["message"]["parts"] if "text" in part)
            said = ask(ASKS, text, self.headers["X-A2A-Hops"])
            reply["result"] = {"kind": "message", "role": "agent", "messageId": str(uuid.uuid4()),
                               "parts": [{"kind": "text", "text": f"{ASKS} says: {said}"}]}
        else:
            reply["error"] = {"code": -32601, "message": "no such method"}
        self.reply(reply)

    def reply(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", PORT), Agent).serve_forever()
