#!/bin/sh
# An A2A agent as a script of the shell, which knows of no gateway. python3 lends it a socket. It ends at once at SIGTERM.
# PAUSE: how long it takes for an answer, in seconds.
export CARD='{"protocolVersion":"0.3.0","name":"shell","description":"A script.","version":"1","skills":[],
  "url":"http://localhost:9/rpc","preferredTransport":"JSONRPC","capabilities":{},
  "defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"]}'
echo "the agent starts with $# arguments, ${A2A_GATEWAY_ADMIN_TOKEN:+and with the operator's token}\
${A2A_GATEWAY_TOKEN:+and with a caller's token}"
exec python3 -c '
import http.server, json, os, time

class Agent(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        is_card = self.path == "/.well-known/agent-card.json"
        self.say(200 if is_card else 404, os.environ["CARD"])

    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(float(os.environ.get("PAUSE", "0")))
        caller = self.headers["X-A2A-Caller"] or self.headers["X-Workspace-ID"]
        said = f"{os.getpid()} {self.path} {caller}"
        result = {"kind": "message", "role": "agent", "messageId": "m", "parts": [{"kind": "text", "text": said}]}
        self.say(200, json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}))

    def say(self, status, text):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *of):
        pass

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256

Server(("127.0.0.1", int(os.environ["PORT"])), Agent).serve_forever()'
