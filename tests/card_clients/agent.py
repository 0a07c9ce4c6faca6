"""An agent that says back what it is told, with a card that every client here can read. Prints its URL."""

import json
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODES = ["text/plain"]
SKILL = {"id": "echo", "name": "Echo", "description": "Says it back.", "tags": ["echo"],
         "inputModes": MODES, "outputModes": MODES}


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = f"http://127.0.0.1:{self.server.server_port}/"
        interface = {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "0.3"}
        self.answer("application/json", json.dumps({
            "name": "Echo", "description": "Says it back.", "version": "1.0.0", "protocolVersion": "0.3.0", "url": url,
            "preferredTransport": "JSONRPC", "supportedInterfaces": [interface], "capabilities": {"streaming": True},
            "defaultInputModes": MODES, "defaultOutputModes": MODES, "skills": [SKILL]}))

    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sent = call["params"]["message"]
        if call["method"] == "tasks/send":
            return self.answer_0_1(call, sent["content"]["text"])
        text = "".join(part.get("text", "") for part in sent["parts"])
        part = {"kind": "text", "text": f"echo: {text}"}
        message = {"kind": "message", "messageId": str(uuid.uuid4()), "role": "agent", "parts": [part]}
        # fasta2a reads the results of A2A 1.0, in answer to the methods of 0.3.
        result = {"message": message} if self.path.startswith("/wrapped") else message
        answer = json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result})
        if call["method"] == "message/stream":
            self.answer("text/event-stream", f"data: {answer}\n\n")
        else:
            self.answer("application/json", answer)

    def answer_0_1(self, call, text):
        """What python-a2a says and expects: a task with an artifact."""
        artifact = {"parts": [{"type": "text", "text": f"echo: {text}"}]}
        task = {"id": call["params"]["id"], "status": {"state": "completed"}, "artifacts": [artifact]}
        self.answer("application/json", json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": task}))

    def answer(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
print(f"http://127.0.0.1:{server.server_port}/", flush=True)
server.serve_forever()
