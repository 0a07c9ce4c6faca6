"""What the soak runs: gateways as child processes, and sites: gateways that share their stores, with their workspaces."""

import asyncio
import contextlib
import glob
import os
import re
import resource
import signal
import subprocess
import time

import harness
import process

FAKETIME = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)

# The clocks that bound what misbehaving agents may hold, and what is kept of finished work, are short: the gauges have
# to be back at their base at the end.
SETTINGS = {
    "server.threads": 2,
    "server.drain": "30s",
    "tokens.issuer": "http://soak.test",
    "registry.heartbeat_ttl": "20s",
    "timeouts.idle": "5s",
    "stream.linger": "5s",
    "stream.log_ttl": "10s",
    "a2a.task_ttl": "60s",
    "rate.caller_per_second": 0,
    "delegation.max_pending": 100000,
    "inbox.max_messages": 100000,
    "telemetry.log": "info,access=off",
    "telemetry.log_format": "json",
}


# A gateway gives the process that follows 5 s to serve, and goes on itself if it does not: then it may be asked again.
# On a machine with two busy cores that happens.
FOLLOW_WITHIN = 8
FOLLOW_ATTEMPTS = 3


class Gateway:
    """One replica. Survives its process: `start` begins another one with the same folders and ports."""

    def __init__(self, name, folder, settings, own_clock=False):
        self.name, self.folder, self.own_clock = name, folder, own_clock and FAKETIME is not None
        self.port, self.admin = harness.free_ports(2)
        os.makedirs(f"{folder}/{name}", exist_ok=True)
        self.log = f"{folder}/{name}/log"
        self.clock = f"{folder}/{name}/clock"
        self.settings = {
            **SETTINGS, "server.listen": f"127.0.0.1:{self.port}", "admin.listen": f"127.0.0.1:{self.admin}",
            "keys.dir": f"{folder}/keys", "audit.spool_dir": f"{folder}/{name}/spool", **settings}
        self.notified = process.Notified(f"{folder}/{name}/notify")
        # `former`: the process that it followed in place, while that one is on its way out.
        self.child = self.former = None
        # (process id, when it started, RSS once it was warm, in KiB)
        self.life = None
        # Processes under libfaketime.
        self.clocked = []

    def arguments(self):
        return [f"--set={key}={value}" for key, value in self.settings.items()]

    def launch(self):
        environment = {**os.environ, "A2A_GATEWAY_ADMIN_TOKEN": harness.ADMIN, "NOTIFY_SOCKET": self.notified.path}
        self.turn_clock(0)
        if self.own_clock:
            environment |= {"LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": self.clock, "FAKETIME_CACHE_DURATION": "1",
                            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
        with open(self.log, "a") as log:
            self.child = subprocess.Popen([f"{harness.BIN}/a2a-gateway", "serve", *self.arguments()], env=environment, stderr=log)
        self.life = [self.child.pid, time.monotonic(), None]
        if self.own_clock:
            self.clocked.append(self.child.pid)

    async def start(self, client):
        self.launch()
        deadline = time.monotonic() + 120
        while not await self.is_ready(client):
            if time.monotonic() > deadline or self.child.poll() is not None:
                raise SystemExit(f"gateway {self.name} does not start: see {self.log}")
            await asyncio.sleep(0.05)

    async def is_ready(self, client):
        try:
            return (await client.ask(self.admin, "GET", "/readyz", deadline=5, fresh=True)).status == 200
        except Exception:
            return False

    def turn_clock(self, hours):
        """Replaced at once: whoever reads it sees the old or the new one."""
        with open(f"{self.clock}.new", "w") as file:
            file.write(f"{hours:+d}h\n" if hours else "+0\n")
        os.rename(f"{self.clock}.new", self.clock)

    def runs(self):
        return self.child is not None and self.child.poll() is None

    async def ended(self, seconds, child=None):
        """Its exit status, or `None` if it still runs after so many seconds."""
        child, deadline = child or self.child, time.monotonic() + seconds
        while child.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return child.poll()

    async def followed(self):
        """A new process in place: SIGUSR2, as docs/reference/maintenance.md has it. Answers how many attempts that took, `None` if
        none did; the process before is `former` then."""
        for attempt in range(1, FOLLOW_ATTEMPTS + 1):
            self.child.send_signal(signal.SIGUSR2)
            deadline = time.monotonic() + FOLLOW_WITHIN
            while time.monotonic() < deadline and self.runs():
                pid = self.notified.serving
                if pid not in (None, self.child.pid):
                    self.former, self.child = self.child, process.Adopted(pid)
                    self.life = [pid, time.monotonic(), None]
                    return attempt
                await asyncio.sleep(0.02)
        return None

    def kill(self):
        for child in (self.former, self.child):
            if child is not None and child.poll() is None:
                child.kill()
                child.wait()

    def forget_clocks(self):
        """What libfaketime leaves behind of processes that were killed."""
        for pid in self.clocked:
            for file in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"/dev/shm/{file}")

    def rss_kib(self):
        with open(f"/proc/{self.child.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    def limit_descriptors(self, count):
        """Answers what it was."""
        hard = resource.prlimit(self.child.pid, resource.RLIMIT_NOFILE)[1]
        return resource.prlimit(self.child.pid, resource.RLIMIT_NOFILE, (min(count, hard), hard))[0]

    async def gauges(self, client):
        """Every series of `/metrics` that has no `le`, by its name with labels."""
        answer = await client.ask(self.admin, "GET", "/metrics", deadline=30, fresh=True)
        found = re.findall(r"^(\w+(?:\{[^}]*\})?) ([0-9.e+-]+)$", answer.body.decode(), re.M)
        return {name: float(value) for name, value in found if "le=" not in name}

    def verify(self):
        """What `audit verify` prints, and its exit status."""
        done = subprocess.run([f"{harness.BIN}/a2a-gateway", "audit", "verify", *self.arguments()], capture_output=True, text=True)
        return done.returncode, (done.stdout + done.stderr).strip()

    def panics(self):
        with open(self.log, errors="replace") as log:
            return [line.strip()[:300] for line in log if "panicked" in line or '"message":"A part of the gateway panicked' in line]


class Site:
    """Gateways that behave as one, and the workspaces on them: `tokens` by id."""

    def __init__(self, name, gateways):
        self.name, self.gateways = name, gateways
        self.tokens, self.first_entry = {}, None

    async def seed(self, client, agents):
        port = self.gateways[0].port

        async def made(body):
            answer = await client.ask(port, "POST", "/workspaces", harness.ADMIN, body)
            if answer.status != 201:
                raise SystemExit(f"{body}: {answer.status} {answer.body.decode()}")
            return answer.json()

        await made({"id": "team", "name": "team"})
        await made({"id": "made", "name": "made"})
        for name in ("caller", "poller", *agents.ports):
            body = {"id": name, "name": name, "parent_id": "team", "max_concurrent": 4096}
            url = f"http://127.0.0.1:{agents.ports[name]}/" if name in agents.ports else "http://127.0.0.1:9/"
            beats = name in ("caller", "poller", "honest")
            if name == "poller":
                body |= {"delivery_mode": "poll"}
            if not beats:
                body |= {"url": url, "liveness": "assumed"}
            enrolment = (await made(body))["enrolment_token"]
            if beats:
                card = {"name": name, "description": "soak", "version": "1", "protocolVersion": "0.3.0"}
                registration = {"id": name, "agent_card": card}
                registration |= {"delivery_mode": "poll"} if name == "poller" else {"url": url}
                answer = await client.ask(port, "POST", "/registry/register", enrolment, registration)
                self.tokens[name] = answer.json()["token"]


def kill_quietly(process, how=signal.SIGKILL):
    """Of a process that may have gone."""
    try:
        os.kill(process, how)
    except ProcessLookupError:
        pass
