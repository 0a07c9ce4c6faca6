"""The faults. Each breaks one thing for a while and mends it; it returns when the thing is mended.

A fault may answer a remark for the table. One that cannot be made here raises `Skipped` with the reason.
"""

import asyncio
import os
import signal
import subprocess
import time

import load
import process
import report
import upgrade
import world


class Skipped(Exception):
    pass


class Faults:
    """`hold`: seconds for which a thing stays broken, where that is for us to say."""

    def __init__(self, servers, pair, lone, client, shared, folder, hold, runs, upgrades):
        self.servers, self.pair, self.lone, self.client, self.shared = servers, pair, lone, client, shared
        self.hold, self.disk = hold, folder + "/lone"
        # The third is never ended: what it has at the end is all that it gathered.
        self.first, self.second, self.third = pair.gateways
        # When the thing served again, of a fault that has more to do then.
        self.served = None
        # What the agent that behaves ran; and `report.Counts` by the name of a way to exchange a process.
        self.runs, self.upgrades = runs, upgrades
        # Streams that are longer than the drain, where there is time for it.
        self.lasting = [LASTING] * 4 if hold > 2 else []

    def serves(self):
        self.served = time.monotonic()

    async def redis_killed(self):
        """Comes back empty."""
        self.servers.redis.kill()
        self.servers.redis.wait()
        await asyncio.sleep(self.hold)
        await asyncio.to_thread(self.servers.start_redis)

    async def redis_stalled(self):
        await self.stalled([self.servers.redis.pid])

    async def postgres_stalled(self):
        await self.stalled(self.servers.postgres_ids())

    async def stalled(self, processes):
        for process in processes:
            world.kill_quietly(process, signal.SIGSTOP)
        try:
            await asyncio.sleep(self.hold)
        finally:
            for process in processes:
                world.kill_quietly(process, signal.SIGCONT)

    async def postgres_restarted(self):
        """INT: a fast shutdown, as a package upgrade makes it."""
        self.servers.postgres.send_signal(signal.SIGINT)
        await asyncio.to_thread(self.servers.postgres.wait)
        await asyncio.to_thread(self.servers.start_postgres)

    async def postgres_killed(self):
        """With all its processes: the log is replayed at the next start."""
        for process in self.servers.postgres_ids():
            world.kill_quietly(process)
        self.servers.postgres.wait()
        await asyncio.sleep(self.hold)
        await asyncio.to_thread(self.servers.start_postgres)

    async def gateway_killed(self):
        await self.killed(self.first)

    async def lone_gateway_killed(self):
        await self.killed(self.lone.gateways[0])

    async def killed(self, gateway):
        gateway.kill()
        await asyncio.sleep(min(1, self.hold))
        gateway.launch()

    def crowd(self, name, gateway, others):
        counts = self.upgrades.setdefault(name, report.Counts())
        counts.times += 1
        return counts, upgrade.Crowd(name, self.pair, gateway, others, self.shared, self.runs, counts, self.lasting)

    async def gateway_drained(self):
        """TERM under load. Its callers go to the other one; it is started again when it has ended."""
        gateway = self.second
        counts, crowd = self.crowd("drained", gateway, [self.first, self.third])
        async with crowd:
            began = time.monotonic()
            gateway.child.send_signal(signal.SIGTERM)
            self.judge(gateway.name, "drained", await gateway.ended(60))
            gateway.kill()
            counts.ended.append(time.monotonic() - began)
            await gateway.start(self.client)
            counts.served.append(time.monotonic() - began)
            await asyncio.sleep(1)

    async def gateway_followed(self):
        """USR2 under load: the process is exchanged, and nothing at all is refused, neither of the crowd nor of the other
        load."""
        gateway, tally = self.first, self.shared.tally
        counts, crowd = self.crowd("in place", gateway, [])
        begun = time.monotonic()
        async with crowd:
            began = time.monotonic()
            process.adopt_orphans(True)
            attempts = await gateway.followed()
            if attempts is None:
                tally.breach("wrong", f"gateway {gateway.name} is not followed: see {gateway.log}")
                return None
            counts.served.append(time.monotonic() - began)
            self.judge(gateway.name, "followed", await gateway.ended(60, gateway.former))
            process.adopt_orphans(False)
            counts.ended.append(time.monotonic() - began)
            await asyncio.sleep(1)
        now = [error for error in tally.errors if error[0] >= begun]
        # A store that was too slow for gateways that nobody touched was too slow for this one: the machine's doing. The
        # crowd's calls, which ask no store, have no such excuse.
        slow = any(reason == "store_unavailable" and name != gateway.name for _, name, _, reason, _ in now)
        for _, name, kind, reason, since in now:
            excused = report.told_late(reason, since, begun) or slow and reason == "store_unavailable"
            if name == gateway.name and not excused:
                tally.breach("failed", f"{kind} at {name}, whose process was exchanged in place: {reason}", begun)
        return f"{attempts} attempts" if attempts > 1 else None

    def judge(self, name, what, status):
        if status is None:
            self.shared.tally.breach("stuck", f"gateway {name}, {what}, does not end within 60 s")
        elif status != 0:
            self.shared.tally.breach("wrong", f"gateway {name}, {what}, ended with {status}")

    async def clock_forward(self):
        return await self.clock(1)

    async def clock_back(self):
        return await self.clock(-1)

    async def clock(self, hours):
        """Of one of the pair, and of the lone one; then back. What measures spans is left alone."""
        if not world.FAKETIME:
            raise Skipped("libfaketime is missing (Debian: faketime)")
        gateways = [self.second, self.lone.gateways[0]]
        for gateway in gateways:
            gateway.turn_clock(hours)
        # libfaketime reads its file once a second.
        await asyncio.sleep(1 + self.hold)
        for gateway in gateways:
            gateway.turn_clock(0)
        await asyncio.sleep(1)

    async def descriptors_gone(self):
        """The limit falls to what is open."""
        gateway = self.third
        was = gateway.limit_descriptors(gateway.descriptors())
        try:
            await asyncio.sleep(self.hold)
        finally:
            gateway.limit_descriptors(was)

    async def disk_full(self):
        """Under SQLite and the audit's spool."""
        if not os.path.ismount(self.disk):
            raise Skipped("a tmpfs cannot be mounted here")
        used = os.statvfs(self.disk)
        kept = (used.f_blocks - used.f_bfree) * used.f_frsize
        self.resize(kept // 1024 + 4)
        try:
            await asyncio.sleep(self.hold)
        finally:
            self.resize(DISK_KIB)

    def resize(self, kib):
        subprocess.run(["mount", "-o", f"remount,size={kib}k", self.disk], check=True)

    async def memory_gone(self):
        """A little more than it uses, and then large bodies. The kernel may kill it; it is started again then, as a
        supervisor would."""
        gateway = self.second
        limit = Memory(gateway.child.pid, (gateway.rss_kib() + 12 * 1024) * 1024)
        try:
            blast = asyncio.create_task(self.blast(gateway))
            died = await gateway.ended(max(3, self.hold))
            await blast
        finally:
            limit.lift()
        if died is None and gateway.runs():
            return f"lived ({limit.kind})"
        gateway.launch()
        return f"killed by it, started again ({limit.kind})"

    async def blast(self, gateway):
        token, body = self.pair.tokens["caller"], load.call("blast", size=4 << 20)

        async def one():
            try:
                await self.client.ask(gateway.port, "POST", "/workspaces/honest/a2a", token, body, deadline=30, fresh=True)
            except load.Broken:
                pass
        await asyncio.gather(*(one() for _ in range(16)))


DISK_KIB = 4 << 20

# Events of a stream that lasts longer than `server.drain` of `world.SETTINGS`: 40 s and more.
LASTING = 700

# Nothing may be refused meanwhile, so nobody has an excuse: agents that misbehave look as they do in quiet times.
HARMLESS = {"gateway upgraded in place"}


def mount_disk(folder):
    """A small disk for the lone gateway; False where that is not allowed."""
    os.makedirs(folder, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "tmpfs", folder]
    try:
        return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        return False


class Memory:
    """A limit of a running process: by a control group where one can be made, else of its data segment."""

    def __init__(self, process, limit):
        self.process, self.group = process, None
        for root, file in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
            group = f"{root}/a2a-soak-{os.getpid()}"
            try:
                os.mkdir(group)
            except OSError:
                continue
            try:
                with open(f"{group}/{file}", "r+") as value:
                    value.write(str(limit))
                with open(f"{group}/cgroup.procs", "w") as members:
                    members.write(str(process))
                self.group, self.home, self.kind = group, f"{root}/cgroup.procs", "cgroup"
                return
            except OSError:
                os.rmdir(group)
        self.kind = "RLIMIT_DATA"
        with open(f"/proc/{process}/status") as status:
            data = next(int(line.split()[1]) for line in status if line.startswith("VmData")) * 1024
        self.was = world.resource.prlimit(process, world.resource.RLIMIT_DATA)
        world.resource.prlimit(process, world.resource.RLIMIT_DATA, (data + (12 << 20), self.was[1]))

    def lift(self):
        if self.group is None:
            try:
                world.resource.prlimit(self.process, world.resource.RLIMIT_DATA, self.was)
            except ProcessLookupError:
                pass
            return
        try:
            with open(self.home, "w") as members:
                members.write(str(self.process))
        except OSError:
            # It was killed.
            pass
        os.rmdir(self.group)


# Name in the table → the fault. Those of the short version first.
ALL = {
    "Redis killed, back empty": "redis_killed",
    "Redis stalled": "redis_stalled",
    "PostgreSQL restarted": "postgres_restarted",
    "gateway killed": "gateway_killed",
    "descriptors used up": "descriptors_gone",
    "disk full (SQLite, spool)": "disk_full",
    "clock of a gateway +1 h": "clock_forward",
    "gateway drained": "gateway_drained",
    "gateway upgraded in place": "gateway_followed",
    "PostgreSQL killed": "postgres_killed",
    "PostgreSQL stalled": "postgres_stalled",
    "lone gateway killed": "lone_gateway_killed",
    "clock of a gateway -1 h": "clock_back",
    "memory limit": "memory_gone",
}
SHORT = 9
# During these no gateway may accept a token for longer than a second after its revocation.
OF_STORES = ("redis", "postgresql", "cluster", "pgbouncer")
