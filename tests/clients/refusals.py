"""What each SDK makes of the gateway's own answers over HTTP+JSON, and of another caller's task over JSON-RPC.

The table is the one in docs/guide/sdk-clients.md, which has to have these very rows."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stage import HERE, SDKS, call

DOCUMENT = HERE.parent.parent / "docs/guide/sdk-clients.md"
TASK = {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}
RPC_TASK = {"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": "working"}}
# Client and A2A version, in the order of the table's columns.
COLUMNS = [("py03", "0.3"), ("py13", "1.0"), ("py13", "0.3"), ("js03", "0.3"), ("js13", "1.0"), ("js13", "0.3")]
ROWS = ["401", "403", "404 task", "429", "503", "cut stream", "404 task, JSON-RPC"]
# What the gateway says, as far as it is the same every time.
SENTENCES = {
    "401": "the credential has no known form", "403": "may not reach", "404 task": "no such task", "429": "too many requests of", "503": "the workspace is paused",
    "cut stream": "closed the connection", "404 task, JSON-RPC": "no such task",
}


def card(base):
    interface = [{"url": base, "protocolBinding": binding, "protocolVersion": version}
                 for version in ("1.0", "0.3") for binding in ("JSONRPC", "HTTP+JSON")]
    return {
        "name": "cut", "description": "breaks off", "version": "1", "protocolVersion": "0.3.0", "url": base,
        "preferredTransport": "JSONRPC", "additionalInterfaces": [{"url": base, "transport": "HTTP+JSON"}],
        "supportedInterfaces": interface, "capabilities": {"streaming": True}, "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "cut", "name": "cut", "description": "breaks off", "tags": ["test"]}],
    }


class Agent(BaseHTTPRequestHandler):
    """Answers with a task; breaks off its streams behind the first event. Below `/card/` are cards that name another base."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body):
        body = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if "/.well-known/" in self.path:
            place = self.path.split("/.well-known/")[0]
            self.answer(card(self.server.bases.get(place, f"http://127.0.0.1:{self.server.server_port}")))
        else:
            self.answer(TASK)

    def do_POST(self):
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if ":stream" not in self.path:
            method = json.loads(sent or b"{}").get("method")
            self.answer({"jsonrpc": "2.0", "id": 1, "result": RPC_TASK} if method else {"task": TASK})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        event = f"data: {json.dumps({'task': TASK})}\r\n\r\n".encode()
        self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        self.wfile.flush()
        self.close_connection = True


def cell(row, saw):
    """What a client showed: the error that it raised, and whether the gateway's sentence is in it."""
    if "error" not in saw:
        return None
    name, _, text = saw["error"].partition(": ")
    says = SENTENCES[row].lower() in text.lower()
    return f"`{name}`, the sentence" if says else f"`{name}`"


def run(stage):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
    server.bases = {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_port}"
    # More streams in a row are cut than a breaker takes.
    gateway = stage.gateway(**{"breaker.failures": 0})
    slow = stage.gateway(**{"rate.caller_per_second": 1, "rate.caller_burst": 10})
    bases = {}
    for name, of in {"cut": gateway, "paused": gateway, "limited": slow}.items():
        of.operate("POST", "/workspaces", {"id": name, "name": name, "parent_id": "family", "url": origin, "liveness": "assumed"})
        of.operate("POST", "/registry/register", {"id": name, "url": origin, "agent_card": card(origin)})
        bases[name] = f"{of.origin}/workspaces/{name}/a2a"
        # A card without the gateway's credential, so that the call itself is what is refused.
        server.bases[f"/card/{name}"] = bases[name]
    gateway.operate("POST", "/workspaces/paused/pause", {})
    stranger = gateway.enrol("stranger", org="elsewhere")
    message = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
    started = call("POST", f"{bases['cut']}/message:send", gateway.tokens["alice"], message)
    assert started.status == 200, started
    alice, bob = gateway.tokens["alice"], gateway.tokens["bob"]
    look = ["look", {"task_id": "t-1"}]
    asked = {
        "401": ("cut", "wrong", ["send"]), "403": ("cut", stranger, ["send"]), "404 task": ("cut", bob, [look]),
        "429": ("limited", slow.tokens["alice"], ["send"] * 40), "503": ("paused", alice, ["send"]),
        "cut stream": ("cut", alice, ["stream"]), "404 task, JSON-RPC": ("cut", bob, [look]),
    }
    jobs = {client: [] for client in SDKS}
    for client, version in COLUMNS:
        for row, (place, token, scenarios) in asked.items():
            binding = "JSONRPC" if "JSON-RPC" in row else "HTTP+JSON"
            jobs[client].append({"name": f"{version}/{row}", "base": f"{origin}/card/{place}", "token": token, "binding": binding,
                                 "version": version, "scenarios": scenarios})
    found = stage.drive_all(jobs)
    for client, version in COLUMNS:
        limited = [job for job in jobs[client] if job["name"] == f"{version}/429"]
        # The last of the calls passes where the rate gives one back just before.
        for _ in range(5):
            if shown_of(found, client, version, "429", asked) is not None:
                break
            found[client].update(stage.drive(client, limited))
    server.shutdown()
    return judge(asked, found)


def seen(found, client, version, row, asked):
    result = found[client][f"{version}/{row}"]
    scenario = asked[row][2][-1]
    name = scenario if isinstance(scenario, str) else scenario[0]
    return result.get(name, result.get("connect", {}))


def shown_of(found, client, version, row, asked):
    return cell(row, seen(found, client, version, row, asked).get("saw", {}))


def judge(asked, found):
    failures, table = [], []
    for row in ROWS:
        cells = []
        for client, version in COLUMNS:
            saw = seen(found, client, version, row, asked)
            shown = shown_of(found, client, version, row, asked)
            if shown is None:
                failures.append(f"{client} {version}, {row}: no error: {saw}")
            elif shown == "`Error`":
                failures.append(f"{client} {version}, {row}: neither a typed error nor the sentence: {saw}")
            print(f"{row} {client} {version}: {saw.get('saw')}")
            cells.append(shown or "nothing")
        table.append(f"| {row} | " + " | ".join(cells) + " |")
    print("\n".join(table))
    documented = DOCUMENT.read_text()
    failures += [f"docs/guide/sdk-clients.md lacks the row: {row}" for row in table if row not in documented]
    return failures
