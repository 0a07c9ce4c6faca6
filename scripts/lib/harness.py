"""What the benchmarks share: the agent, bare Pingora pass-through and the gateway as child processes."""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import usage

THREADS = usage.THREADS
BIN = os.environ.get("BIN") or "target/release"
ADMIN = "a2aa_" + "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
A2A = "/workspaces/target/a2a"
TICK = os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0))


def end_well():
    """So that what was started is ended, and folders are removed, also where a signal ends this. What is ignored (as
    `nohup` has it) stays so."""
    def left(number, _):
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        os.write(2, f"ended by {signal.Signals(number).name}\n".encode())
        sys.exit(128 + number)

    for one in SIGNALS:
        if signal.getsignal(one) != signal.SIG_IGN:
            signal.signal(one, left)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def progress(text):
    """On standard error, for who waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def raise_files():
    """Sockets for the streams that are held open, two for each; children inherit the limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for wanted in (max(hard, 65536), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            return wanted
        except (ValueError, PermissionError):
            # Only root may have more.
            pass
    raise SystemExit("no limit of open files can be set")


LIMIT = raise_files()


GIVEN_PORTS = set()


def free_ports(count):
    """Ports that are free now, and distinct: also from those that were given before, on which nothing may listen yet.
    They are below the ephemeral range, so that no outgoing connection takes one before."""
    ports = []
    while len(ports) < count:
        port = random.randrange(12_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in GIVEN_PORTS:
                GIVEN_PORTS.add(port)
                ports.append(port)
    return ports


AGENT, BARE, GATEWAY, CONTROL = free_ports(4)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def family(pid):
    """A process and its descendants, such as nginx's workers; without those that have gone meanwhile."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            return [pid, *(member for child in children.read().split() for member in family(int(child)))]
    except (FileNotFoundError, ProcessLookupError):
        return []


class Side:
    """One of those that are compared: its processes, and how it is asked."""

    def __init__(self, roots, port, path=A2A, token="", scheme="http"):
        self.roots, self.port, self.path, self.token, self.scheme = roots, port, path, token, scheme

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}{self.path}"

    def pids(self):
        return [pid for root in self.roots for pid in family(root)]

    def cpu_seconds(self):
        return sum(map(cpu_seconds, self.pids()))

    def memory_kib(self):
        """Resident, and proportional: what processes share counts once."""
        found = {"Rss": 0, "Pss": 0}
        for pid in self.pids():
            with open(f"/proc/{pid}/smaps_rollup") as rollup:
                for line in rollup:
                    name = line.split(":")[0]
                    if name in found:
                        found[name] += int(line.split()[1])
        return {"rss": found["Rss"], "pss": found["Pss"]}


def await_port(port):
    deadline = time.time() + 20
    while time.time() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on {port}")


# What the tokens of the workspaces' agents prove. Said when they register, where a gateway from before passes it over.
PROOF = os.environ.get("PROOF")
# Named instances of the agent that is called, all at its one address; a gateway from before knows none.
INSTANCES = int(os.environ.get("INSTANCES") or 0)
# Another gateway beside ours in the same run: a binary from before a change.
BEFORE = os.environ.get("BEFORE")


class Bench:
    """The agent, bare pass-through and gateways, each with a seeded hierarchy. Ends them when left.

    `gateways`: settings by name. `agent`: arguments of the agent behind its address, as of `examples/upstream`.
    `pinned`: each side has the first THREADS cores for all of its processes; load and agent have the others.
    """

    def __init__(self, body_bytes=512, gateways=None, agent=("512",), pinned=False):
        self.gateways = {"gateway": {}} if gateways is None else gateways
        self.agent_arguments = agent
        self.body_bytes = body_bytes
        self.children = []
        self.started = {}
        self.sides = {}
        self.folder = tempfile.mkdtemp(prefix="a2a-bench-")
        self.pin = []
        if pinned and len(CORES) > THREADS and os.environ.get("PIN") != "0":
            self.pin = ["taskset", "-c", ",".join(map(str, CORES[:THREADS]))]
            os.sched_setaffinity(0, CORES[THREADS:])

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            end(child)
        shutil.rmtree(self.folder)
        os.sched_setaffinity(0, CORES)

    def _run(self, *command, **options):
        child = subprocess.Popen(command, **options)
        self.children.append(child)
        return child

    def _start(self):
        self.agent = None
        self.restart_agent(*self.agent_arguments)
        bare = self._run(
            *self.pin, f"{BIN}/examples/passthrough", f"127.0.0.1:{BARE}", f"127.0.0.1:{AGENT}", str(THREADS))
        await_port(BARE)
        self.sides["bare"] = Side([bare.pid], BARE, "/")
        ports = {"gateway": (GATEWAY, CONTROL)}
        for name, settings in self.gateways.items():
            self._gateway(name, f"{BIN}/a2a-gateway", ports.get(name) or free_ports(2), settings)
        if BEFORE:
            self._gateway("before", BEFORE, free_ports(2), {})
        self.token = self.sides["gateway"].token if "gateway" in self.sides else ""
        self.body = body_of(self.body_bytes)

    def restart_agent(self, *arguments):
        """Another agent at the same address."""
        if self.agent:
            self.children.remove(self.agent)
            end(self.agent)
        self.agent = self._run(f"{BIN}/examples/upstream", f"127.0.0.1:{AGENT}", *map(str, arguments))
        await_port(AGENT)

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
            "audit.spool_dir": f"{folder}/audit",
            "rate.caller_per_second": 0,
            "telemetry.log": "info,access=off",
            **settings,
        }
        command = [*self.pin, binary, "serve", *[f"--set={key}={value}" for key, value in sets.items()]]
        scheme = "https" if "server.tls.cert" in settings else "http"
        self.started[name] = (command, ports, f"{folder}/log")
        self.sides[name] = Side([self._start_gateway(name).pid], port, scheme=scheme)
        self.sides[name].token = self._seed(self.sides[name])

    def _start_gateway(self, name):
        command, ports, log = self.started[name]
        environment = {**os.environ, "A2A_GATEWAY_ADMIN_TOKEN": ADMIN}
        gateway = self._run(*command, env=environment, stderr=open(log, "a"))
        for one in ports:
            await_port(one)
        return gateway

    def restart_gateway(self, name):
        """The same gateway again, with what its stores know."""
        side = self.sides[name]
        old = next(child for child in self.children if child.pid == side.roots[0])
        self.children.remove(old)
        old.send_signal(signal.SIGTERM)
        try:
            old.wait(timeout=20)
        except subprocess.TimeoutExpired:
            end(old)
        side.roots = [self._start_gateway(name).pid]

    def _seed(self, side):
        call(side, "POST", "/workspaces", ADMIN, {"id": "parent", "name": "parent"})
        return [workspace(side, name, "parent") for name in ("target", "caller")][-1]

    def wrk_script(self, side, token=None, fields=None):
        """The call as wrk sends it to a side."""
        fd, script = tempfile.mkstemp(dir=self.folder, suffix=".lua")
        fields = {"Content-Type": "application/json", "Authorization": f"Bearer {token or self.sides[side].token}",
                  **(fields or {})}
        with open(fd, "w") as lua:
            lua.write(f"wrk.method = \"POST\"\nwrk.body = '{self.body}'\n")
            lua.writelines(f'wrk.headers["{name}"] = "{value}"\n' for name, value in fields.items())
        return script

    def request(self, path, accept, side="gateway", token=None):
        """The call as bytes for the wire."""
        return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Authorization: Bearer {token or self.sides[side].token}\r\n"
                f"Accept: {accept}\r\nContent-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
                f"{self.body}").encode()


def body_of(length):
    """A complete call of that many bytes."""
    message = {"kind": "message", "messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": ""}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    message["parts"][0]["text"] = "x" * max(0, length - len(json.dumps(call)))
    return json.dumps(call)


def end(child):
    """Kills a child with its descendants."""
    if child.poll() is None:
        for pid in reversed(family(child.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    child.wait()


def workspace(side, name, parent=None):
    """Makes and registers a workspace whose agent is ours. Its token."""
    card = {"name": "bench", "description": "bench", "version": "1", "protocolVersion": "0.3.0"}
    made = call(side, "POST", "/workspaces", ADMIN,
                {"id": name, "name": name, "max_concurrent": 20000, "liveness": "assumed",
                 "url": f"http://127.0.0.1:{AGENT}/", **({"parent_id": parent} if parent else {})})
    registration = {"id": name, "url": f"http://127.0.0.1:{AGENT}/", "agent_card": card,
                    **({"proof": PROOF} if PROOF else {})}
    token = call(side, "POST", "/registry/register", made["enrolment_token"], registration)["token"]
    for number in range(INSTANCES if name == "target" else 0):
        call(side, "POST", "/registry/register", token, {**registration, "instance_id": f"instance-{number}"})
    return token


def call(side, method, path, token, body=None):
    request = urllib.request.Request(
        f"{side.scheme}://127.0.0.1:{side.port}{path}",
        data=json.dumps(body).encode() if body is not None else None,
        method=method,
        headers={"content-type": "application/json", "authorization": f"Bearer {token}"},
    )
    try:
        # Its certificate is made for the run.
        with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        raise SystemExit(f"{method} {path}: {refusal.code} {refusal.read().decode()}") from refusal
