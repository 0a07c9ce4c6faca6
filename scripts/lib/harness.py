"""What the benchmarks share: the agent, bare Pingora pass-through and the gateway as child processes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

THREADS = int(os.environ.get("THREADS", "1"))
BIN = os.environ.get("BIN", "target/release")
ADMIN = "a2aa_" + "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
A2A = "/workspaces/target/a2a"
TICK = os.sysconf("SC_CLK_TCK")


def free_ports(count):
    """Ports that are free now, and distinct."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


AGENT, BARE, GATEWAY, CONTROL = free_ports(4)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def await_port(port):
    deadline = time.time() + 20
    while time.time() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on {port}")


# Another gateway beside ours in the same run: a binary from before a change.
BEFORE = os.environ.get("BEFORE")


class Bench:
    """The agent, bare pass-through and gateways, each with a seeded hierarchy. Ends them when left.

    `gateways`: settings by name; `agent`: a command that takes the agent's address.
    """

    def __init__(self, body_bytes=512, gateways=None, agent=None):
        self.gateways = gateways or {"gateway": {}}
        self.agent = agent or [f"{BIN}/examples/upstream"]
        self.body_bytes = body_bytes
        self.children = []
        self.folder = tempfile.mkdtemp(prefix="a2a-bench-")

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            child.send_signal(signal.SIGKILL)
            child.wait()
        shutil.rmtree(self.folder)

    def _run(self, *command, **options):
        child = subprocess.Popen(command, **options)
        self.children.append(child)
        return child

    def _start(self):
        self._run(*self.agent, f"127.0.0.1:{AGENT}", "512")
        bare = self._run(f"{BIN}/examples/passthrough", f"127.0.0.1:{BARE}", f"127.0.0.1:{AGENT}", str(THREADS))
        for port in (AGENT, BARE):
            await_port(port)
        self.sides, self.tokens = {"bare": (bare.pid, BARE, "/")}, {"bare": ""}
        ports = {"gateway": (GATEWAY, CONTROL)}
        for name, settings in self.gateways.items():
            self._gateway(name, f"{BIN}/a2a-gateway", ports.get(name) or free_ports(2), settings)
        if BEFORE:
            self._gateway("before", BEFORE, free_ports(2), {})
        self.token = self.tokens["gateway"]
        message = {"kind": "message", "messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": ""}]}
        call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
        message["parts"][0]["text"] = "x" * max(0, self.body_bytes - len(json.dumps(call)))
        self.body = json.dumps(call)

    def _gateway(self, name, binary, ports, settings):
        folder = f"{self.folder}/{name}"
        os.mkdir(folder)
        port, control = ports
        sets = {
            "server.listen": f"127.0.0.1:{port}",
            "admin.listen": f"127.0.0.1:{control}",
            "server.threads": THREADS,
            "stores.sql": f"sqlite:{folder}/gateway.db",
            "keys.dir": f"{folder}/keys",
            "rate.caller_per_second": 0,
            "telemetry.log": "info,access=off",
            **settings,
        }
        environment = {**os.environ, "A2A_GATEWAY_ADMIN_TOKEN": ADMIN}
        gateway = self._run(
            binary, "serve", *[f"--set={key}={value}" for key, value in sets.items()],
            env=environment, stderr=open(f"{folder}/log", "w"))
        for one in ports:
            await_port(one)
        self.sides[name] = (gateway.pid, port, A2A)
        self.tokens[name] = self._seed(port)

    def _seed(self, port):
        card = {"name": "bench", "description": "bench", "version": "1", "protocolVersion": "0.3.0"}
        call(port, "POST", "/workspaces", ADMIN, {"id": "parent", "name": "parent"})
        for name in ("target", "caller"):
            made = call(port, "POST", "/workspaces", ADMIN,
                        {"id": name, "name": name, "parent_id": "parent", "max_concurrent": 4096,
                         "liveness": "assumed", "url": f"http://127.0.0.1:{AGENT}/"})
            registration = {"id": name, "url": f"http://127.0.0.1:{AGENT}/", "agent_card": card}
            token = call(port, "POST", "/registry/register", made["enrolment_token"], registration)["token"]
        return token

    def wrk_script(self, side):
        """The call as wrk sends it to a side."""
        script = f"{self.folder}/{side}.lua"
        with open(script, "w") as lua:
            lua.write('wrk.method = "POST"\n'
                      f"wrk.body = '{self.body}'\n"
                      'wrk.headers["Content-Type"] = "application/json"\n'
                      f'wrk.headers["Authorization"] = "Bearer {self.tokens[side]}"\n')
        return script

    def request(self, path, accept, side="gateway"):
        """The call as bytes for the wire."""
        return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.tokens[side]}\r\n"
                f"Accept: {accept}\r\nContent-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
                f"{self.body}").encode()


def call(port, method, path, token, body=None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=json.dumps(body).encode() if body is not None else None,
        method=method,
        headers={"content-type": "application/json", "authorization": f"Bearer {token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        raise SystemExit(f"{method} {path}: {refusal.code} {refusal.read().decode()}") from refusal
