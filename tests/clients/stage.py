"""What every part needs: agents, gateways and Redis as child processes, a workspace for each agent, HTTP without an SDK."""

import base64
import contextlib
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).parent
ADMIN = "a2aa_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
PATIENCE = 60
# The SDKs, by the name of their agent and of their driver, and the A2A versions that each speaks.
SDKS = {"py03": ["0.3"], "py13": ["1.0", "0.3"], "js03": ["0.3"], "js13": ["1.0", "0.3"]}
BINDINGS = ["JSONRPC", "HTTP+JSON"]
# How an agent is added: registered with its card, or by an operator with nothing but one of its URLs.
WAYS = ["registration", "url", "card_url"]


@dataclass
class Answer:
    status: int
    fields: dict
    body: bytes

    def json(self):
        return json.loads(self.body)


def call(method, url, token=None, body=None, fields=None):
    """One request on a connection of its own. A body that is no bytes is sent as JSON; a stream is read to its end."""
    parts = urlsplit(url)
    sent = dict(fields or {})
    if token:
        sent["Authorization"] = f"Bearer {token}"
    if body is not None:
        sent.setdefault("Content-Type", "application/json")
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), body, sent)
        response = connection.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def events(body):
    """The JSON of each event of a stream."""
    lines = body.decode().replace("\r\n", "\n").split("\n\n")
    found = ["".join(line[5:] for line in event.split("\n") if line.startswith("data:")) for event in lines]
    return [json.loads(data) for data in found if data]


def eventually(found, what):
    """The first true answer of `found`, waited for."""
    deadline = time.monotonic() + PATIENCE
    while True:
        if answer := found():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"in vain: {what}")
        time.sleep(0.02)


@dataclass
class Agent:
    name: str
    port: int
    record: Path
    # Where its JSON-RPC is.
    path: str
    card: dict = field(default=None)

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self):
        return self.origin + self.path

    def requests(self):
        """What it received so far; bodies as bytes, the fields of one name joined."""
        found = [json.loads(line) for line in self.record.read_text().splitlines()]
        for request in found:
            request["body"] = base64.b64decode(request["body"])
            request["fields"] = dict(sorted(map(tuple, request["fields"])))
        return found


class Stage:
    """Ends all it started when left, and is ended with this process."""

    def __init__(self, binary, packages):
        self.binary, self.packages = binary, Path(packages)

    def __enter__(self):
        self.children = []
        self.folder = Path(tempfile.mkdtemp(prefix="a2a-clients-"))
        for name in ("js03", "js13"):
            # Modules are looked for beside the file that imports them.
            for kind in ("agents", "clients"):
                shutil.copytree(HERE / kind, self.folder / name / kind, ignore=shutil.ignore_patterns("__pycache__", "rust"))
            (self.folder / name / "node_modules").symlink_to(self.packages / name / "node_modules")
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            child.kill()
        for child in self.children:
            child.wait()
        shutil.rmtree(self.folder)

    def run(self, command, **options):
        child = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, command)], stdin=subprocess.DEVNULL, **options)
        self.children.append(child)
        return child

    def program(self, kind, name, sdk):
        """The command that runs an agent or a driver in the environment of an SDK."""
        if sdk == "rs":
            return [Path(os.environ["RUST_CLIENT"]) / "rust-client"]
        if sdk.startswith("js"):
            return ["node", self.folder / sdk / kind / f"{name}.mjs"]
        return [self.packages / sdk / "python/bin/python", "-B", HERE / kind / f"{name}.py"]

    def agents(self, *names):
        """Starts the agents named; `py13 1.0` is one with arguments, `demo echo` an agent of the gateway's demo."""
        started = {}
        for name in names:
            kind, *arguments = name.split()
            record = self.folder / f"{name}.record"
            record.touch()
            if kind == "demo":
                command = [self.binary, "agent", *arguments]
            else:
                command = [*self.program("agents", kind, kind if kind in SDKS else "py03"), record, *arguments]
            log = open(self.folder / f"{name}.log", "w")
            started[name] = self.run(command, stdout=subprocess.PIPE, stderr=log, text=True), record
        agents = {}
        for name, (child, record) in started.items():
            line = child.stdout.readline().strip()
            assert line, f"{name} did not start: {(self.folder / f'{name}.log').read_text()}"
            port = int(line.rstrip("/").rpartition(":")[2])
            path = {"demo": "/", "pocketpaw": "/a2a"}.get(name.split()[0], "/a2a/jsonrpc")
            agent = agents[name] = Agent(name, port, record, path)
            eventually(lambda agent=agent: listens(agent.port), f"{name} listens")
            agent.card = call("GET", f"{agent.origin}/.well-known/agent-card.json").json()
        return agents

    def redis(self):
        port = free_port()
        self.run(["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--notify-keyspace-events", "Ex",
                  "--dir", self.folder], stdout=subprocess.DEVNULL)
        eventually(lambda: listens(port), "Redis listens")
        return f"redis://127.0.0.1:{port}"

    def gateway(self, **sets):
        return Gateway(self, sets)

    def replica(self, gateway):
        """Another replica of a gateway on the same stores and keys."""
        return Gateway(self, gateway.sets, gateway)

    def drive(self, sdk, jobs):
        """What a driver reports of its jobs."""
        driver = subprocess.run(list(map(str, self.program("clients", sdk, sdk))), input=json.dumps({"jobs": jobs}), text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=10 * PATIENCE)
        assert driver.returncode == 0, f"the driver {sdk}: {driver.stderr}"
        return json.loads(driver.stdout)

    def drive_all(self, jobs):
        """The same of each driver with its jobs, side by side."""
        with ThreadPoolExecutor(len(jobs)) as pool:
            return dict(zip(jobs, pool.map(self.drive, jobs, jobs.values())))


def free_port():
    """One below the ephemeral range, so that no outgoing connection takes it before it is listened on."""
    while True:
        port = random.randrange(12_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Gateway:
    """The real binary on stores of its own, with the callers `alice` and `bob` in one `family` with every agent."""

    def __init__(self, stage, sets, first=None):
        self.stage, self.sets, self.port, self.admin = stage, sets, free_port(), free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        folder = Path(tempfile.mkdtemp(dir=stage.folder))
        self.log = folder / "log"
        settings = {
            "server.listen": f"127.0.0.1:{self.port}", "admin.listen": f"127.0.0.1:{self.admin}",
            # A disk that is busy with a build beside is slow, not away.
            "stores.sql": f"sqlite:{folder}/gateway.db", "stores.timeout": "20s",
            "keys.dir": first.keys if first else folder / "keys",
            "rate.caller_per_second": 0, "rate.failures_per_second": 0,
            "registry.shared_origins": "http://127.0.0.1:9", **sets,
        }
        self.keys = settings["keys.dir"]
        self.command = [stage.binary, "serve", *(f"--set={key}={value}" for key, value in settings.items())]
        self.start()
        if first:
            self.tokens = first.tokens
            return
        self.tokens = {"operator": ADMIN, "family": self.enrol("family")}
        for name in ("alice", "bob"):
            self.tokens[name] = self.enrol(name, parent_id="family")

    def start(self):
        environment = {**os.environ, "A2A_GATEWAY_ADMIN_TOKEN": ADMIN}
        self.child = self.stage.run(self.command, env=environment, stderr=open(self.log, "a"), cwd=self.stage.folder)
        ready = f"http://127.0.0.1:{self.admin}/readyz"
        eventually(lambda: listens(self.admin) and listens(self.port) and call("GET", ready).status == 200, "the gateway is ready")

    def restart(self):
        self.child.kill()
        self.child.wait()
        self.start()

    def operate(self, method, path, body):
        answer = call(method, self.origin + path, ADMIN, body)
        assert answer.status in (200, 201), f"{method} {path}: {answer}"
        return answer.json()

    def enrol(self, name, **more):
        """A caller that has a token and is never called."""
        made = self.operate("POST", "/workspaces", {"id": name, "name": name, **more})
        body = {"id": name, "url": "http://127.0.0.1:9/", "agent_card": {"name": name, "description": name, "version": "1"}}
        return call("POST", f"{self.origin}/registry/register", made["enrolment_token"], body).json()["token"]

    def seat(self, agent, way="registration", **more):
        """A workspace for the agent; answers its base."""
        name = agent.name.replace(" ", "-") + ("" if way == "registration" else f"-{way}")
        place = {"card_url": f"{agent.origin}/.well-known/agent-card.json"} if way == "card_url" else {"url": agent.url}
        self.operate("POST", "/workspaces", {"id": name, "name": name, "parent_id": "family", **place,
                                             "liveness": "assumed", "max_concurrent": 256, **more})
        if way == "registration":
            self.operate("POST", "/registry/register", {"id": name, "url": agent.url, "agent_card": agent.card})
        return f"{self.origin}/workspaces/{name}/a2a"
