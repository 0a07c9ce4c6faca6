#!/usr/bin/env python3
"""The smallest A2A agent: a card, and one method. It knows nothing of the gateway. Standard library only.

    a2a-gateway run --workspace hello -- python3 hello-agent.py
"""
import json
import os
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME, PORT = os.environ.get("NAME", "hello"), int(os.environ.get("PORT", "8001"))
CARD = {
    "name": NAME, "description": "Says hello", "version": "1", "protocolVersion": "0.3.0",
    "url": f"http://127.0.0.1:{PORT}/", "capabilities": {}, "skills": [],
    "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
}


def answer(text):
    """Put your agent here."""
    return f"{NAME} got: {text}"


class Agent(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.reply(CARD)

    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = {"jsonrpc": "2.0", "id": call.get("id")}
        if call.get("method") == "message/send":
            text = " ".join(part["text"] for part in call["params"]["message"]["parts"] if "text" in part)
            reply["result"] = {"kind": "message", "role": "agent", "messageId": str(uuid.uuid4()),
                               "parts": [{"kind": "text", "text": answer(text)}]}
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
