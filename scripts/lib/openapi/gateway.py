"""The built gateway as a child process, seeded, with an agent that answers at once."""

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
from harness import ADMIN, BIN, await_port, free_ports  # noqa: E402

CARD = {"name": "agent", "description": "answers", "version": "1", "protocolVersion": "0.3.0",
        "url": "http://127.0.0.1/", "capabilities": {"streaming": True}, "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"], "skills": []}
# The agent's own refusal, by which the checks tell it from one of the gateway.
NO_CALL = '{"detail":"no call"}'
# A family: paths, bodies and relations then meet something that exists.
FAMILY = {"acme": None, "acme-pm": "acme", "acme-dev": "acme", "solo": None}


def is_call(body):
    """Whether it is a JSON-RPC call: what the gateway leaves to the agent to judge is judged here."""
    try:
        call = json.loads(body)
    except ValueError:
        return False
    return (isinstance(call, dict) and call.get("jsonrpc") == "2.0" and isinstance(call.get("method"), str)
            and isinstance(call.get("params", {}), dict) and not isinstance(call.get("id"), (bool, dict, list)))


class Agent(http.server.BaseHTTPRequestHandler):
    """Answers a call with its id, a streaming one with two events, and what is no call with 422."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if not is_call(body):
            return self._send(422, "application/json", NO_CALL)
        call = json.loads(body)
        if "extended" in str(call.get("method")).lower():
            return self._send(200, "application/json", json.dumps({"jsonrpc": "2.0", "id": call.get("id"), "result": CARD}))
        message = {"kind": "message", "messageId": "m-2", "role": "agent", "parts": [{"kind": "text", "text": "yes"}]}
        answer = json.dumps({"jsonrpc": "2.0", "id": call.get("id"), "result": message})
        stream = str(call.get("method")).lower().replace("/", "").endswith(("messagestream", "streamingmessage"))
        if stream:
            return self._send(200, "text/event-stream", f"data: {answer}\n\n" * 2)
        return self._send(200, "application/json", answer)

    def do_GET(self):
        self._send(200, "application/json", json.dumps(CARD))

    def _send(self, status, media_type, text):
        payload = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_):
        pass


class Gateway:
    """Started when entered and killed by its id when left."""

    admin_token = ADMIN

    def __init__(self, folder):
        self.folder = Path(folder)
        self.workspaces = list(FAMILY)
        public, admin = free_ports(2)
        self.listeners = {"public": public, "admin": admin}
        self.agent = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Agent)
        self.agents = [f"http://127.0.0.1:{self.agent.server_port}/", f"http://localhost:{self.agent.server_port}/a2a"]

    def __enter__(self):
        threading.Thread(target=self.agent.serve_forever, daemon=True).start()
        sets = {
            "server.listen": f"127.0.0.1:{self.listeners['public']}",
            "admin.listen": f"127.0.0.1:{self.listeners['admin']}",
            "stores.sql": f"sqlite:{self.folder}/gateway.db", "stores.timeout": "20s",
            "keys.dir": f"{self.folder}/keys",
            # Rates have tests of their own; here they would only hide what a route answers.
            "rate.caller_per_second": 0,
            "rate.failures_per_second": 0,
            # Without it there is no such path.
            "a2a.default_workspace": "acme",
            "telemetry.log": "warn,access=off",
        }
        environment = {**os.environ, "A2A_GATEWAY_ADMIN_TOKEN": ADMIN}
        with open(self.folder / "log", "w") as log:
            self.child = subprocess.Popen(
                [f"{BIN}/a2a-gateway", "serve", *[f"--set={key}={value}" for key, value in sets.items()]],
                cwd=Path.cwd(), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            for port in self.listeners.values():
                await_port(port)
            self._seed()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        self.agent.shutdown()

    def environment(self):
        """What the hooks, in schemathesis' own process, need to know."""
        return {"A2A_PUBLIC": str(self.listeners["public"]), "A2A_TOKEN": ADMIN,
                "A2A_AGENT": self.agents[0], "A2A_WORKSPACES": json.dumps(self.workspaces)}

    def log(self):
        return (self.folder / "log").read_text()

    def beat(self, workspace):
        """One heartbeat. Refused where a case has just changed the workspace, which is no matter."""
        with contextlib.suppress(RuntimeError):
            call(self.listeners["public"], ADMIN, "POST", "/registry/heartbeat", {"workspace_id": workspace, "active_tasks": 1})

    def _seed(self):
        port = self.listeners["public"]
        for name, parent in FAMILY.items():
            new = {"id": name, "name": name, "org": "acme", "liveness": "assumed", "url": self.agents[0]}
            made = call(port, ADMIN, "POST", "/workspaces", new | ({"parent_id": parent} if parent else {}))
            registration = {"id": name, "url": self.agents[0], "agent_card": CARD}
            call(port, made["enrolment_token"], "POST", "/registry/register", registration)
            call(port, ADMIN, "POST", f"/workspaces/{name}/tokens", None)
            call(port, ADMIN, "POST", f"/orgs/{name}/tokens", {"note": "seeded"})


def call(port, token, method, path, body):
    """The answer as JSON. A refusal ends the run: what is asked here must be there for what follows."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        raise RuntimeError(f"{method} {path}: {refusal.code} {refusal.read().decode()}") from None
