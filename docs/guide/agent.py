#!/usr/bin/env python3
"""A whole A2A agent behind the gateway: registers, sends heartbeats, answers, comes back. Standard library only.

    GATEWAY=http://127.0.0.1:8080 WORKSPACE=acme-pm ENROLMENT=a2ae_... python3 docs/guide/agent.py

ENROLMENT is needed once. The workspace's own token is kept in TOKEN_FILE (default: agent-token).
"""
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GATEWAY, WORKSPACE = os.environ["GATEWAY"].rstrip("/"), os.environ["WORKSPACE"]
HOST, _, PORT = os.environ.get("LISTEN", "127.0.0.1:8001").rpartition(":")
URL = os.environ.get("URL", f"http://{HOST}:{PORT}/")  # as the gateway reaches it
INSTANCE = {"instance_id": os.environ["INSTANCE"]} if "INSTANCE" in os.environ else {}  # one of several
TOKEN_FILE = os.environ.get("TOKEN_FILE", "agent-token")
CARD = {
    "name": WORKSPACE, "description": "Says what it was told", "version": "1", "url": URL, "protocolVersion": "0.3.0",
    "supportedInterfaces": [{"url": URL, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    "capabilities": {}, "skills": [], "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
}


def work(texts):
    """Put your agent here."""
    return f"You said: {' '.join(texts)}"


class Agent(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"jsonrpc": "2.0", "id": call.get("id")}
        if call.get("method") in ("message/send", "SendMessage"):
            said = work([part["text"] for part in call["params"]["message"]["parts"] if "text" in part])
            message = {"messageId": str(uuid.uuid4())}
            if call["method"] == "SendMessage":  # A2A 1.0
                answer["result"] = {"message": message | {"role": "ROLE_AGENT", "parts": [{"text": said}]}}
            else:
                parts = [{"kind": "text", "text": said}]
                answer["result"] = message | {"kind": "message", "role": "agent", "parts": parts}
        else:
            answer["error"] = {"code": -32601, "message": "no such method"}
        self.reply(answer)

    def do_GET(self):
        self.reply(CARD)

    def reply(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def ask(path, body, credential):
    request = urllib.request.Request(GATEWAY + path, json.dumps(body).encode())
    request.add_header("Authorization", f"Bearer {credential}")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def kept():
    try:
        with open(TOKEN_FILE) as file:
            return file.read().strip()
    except FileNotFoundError:
        return None


def register():
    """By the token of an earlier run, else by the enrolment token, which is good for one registration."""
    place = {"id": WORKSPACE, "url": URL, "agent_card": CARD} | INSTANCE
    for credential in filter(None, (kept(), os.environ.get("ENROLMENT"))):
        try:
            token = ask("/registry/register", place, credential).get("token")
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            continue  # revoked, used up, or of another gateway
        if token:
            with open(os.open(TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(token)
        if kept() is None:
            sys.exit("the workspace has a token already: revoke it, then ask for another enrolment token")
        print("registered", flush=True)
        return kept()
    sys.exit("no credential is good: ask an operator for POST /workspaces/" + WORKSPACE + "/enrolment")


def main():
    threading.Thread(target=ThreadingHTTPServer((HOST, int(PORT)), Agent).serve_forever, daemon=True).start()
    token, failed = None, False
    while True:
        try:
            if token is None:
                token = register()
            ask("/registry/heartbeat", {"workspace_id": WORKSPACE} | INSTANCE, token)
            failed = False
        except urllib.error.HTTPError as error:
            print(error.code, error.read(500).decode(errors="replace"), flush=True)
            # 401: the token was revoked. 404: the gateway wants a registration.
            token = None if error.code in (401, 404) else token
            failed = True
        except OSError:  # the gateway is away
            failed = True
        time.sleep(2 if failed else 30)


main()
