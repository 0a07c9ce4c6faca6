"""Mixed load, one fault after another, and a table of what came of it. Started by `scripts/soak [MINUTES]`."""

import asyncio
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time

import agents
import coherence
import faults
import harness
import ledger
import load
import options
import report
import results
import wire
import world

SHORT, MINUTES, SEED = options.SHORT, options.MINUTES, options.SEED

# Seconds: a thing stays broken; without an error it counts as recovered; it must have recovered; load before the first
# fault; unfinished work may take to end after the load; gauges to come back to their base.
HOLD = 2 if SHORT else 5
QUIET = 2 if SHORT else 3
RECOVERED_WITHIN = 120
WARM = 5 if SHORT else 20
FINISHED_WITHIN = 120
SETTLED_WITHIN = 120


class Shared:
    """What all loops know of."""

    def __init__(self):
        self.client, self.tally = wire.Client(), ledger.Tally()
        self.ledgers = {name: ledger.Ledger() for name in ("pair", "lone")}
        self.over, self.read_all = asyncio.Event(), asyncio.Event()
        self.trouble = 0.0
        self.in_trouble = False

    def troubled_since(self, begun):
        return self.in_trouble or self.trouble >= begun


class Soak:
    def __init__(self, folder, servers):
        self.folder, self.servers, self.shared = folder, servers, Shared()
        self.client, self.tally = self.shared.client, self.shared.tally
        self.has_disk = faults.mount_disk(f"{folder}/lone")
        shared_stores = {"stores.sql": servers.sql_url, "stores.shared": servers.redis_url}
        pair = [world.Gateway(name, folder, shared_stores, own_clock=name == "B") for name in ("A", "B", "C")]
        alone = {"stores.sql": f"sqlite:{folder}/lone/gateway.db", "audit.spool_dir": f"{folder}/lone/spool"}
        lone = world.Gateway("S", folder, {**alone, "keys.dir": f"{folder}/lone-keys"}, own_clock=True)
        self.pair, self.lone = world.Site("pair", pair), world.Site("lone", [lone])
        self.sites, self.gateways = [self.pair, self.lone], [*pair, lone]
        self.rows, self.audits, self.upgrades, self.seconds = {}, {}, {}, 0
        self.base, self.left, self.memory = {}, {}, []
        self.harmless = faults.HARMLESS

    def worker(self, kind, site, number=0):
        return load.Worker(kind, site, self.shared, SEED, number)

    async def run(self):
        actors = agents.Agents()
        await actors.start()
        for gateway in self.gateways:
            gateway.notified.listen()
            await gateway.start(self.client)
        for site in self.sites:
            await site.seed(self.client, actors)
            self.say(f"site {site.name} is ready")
            await self.first_entry(site)
        for gateway in self.gateways:
            self.base[gateway.name] = await gateway.gauges(self.client)
        began = time.monotonic()
        loops = [asyncio.create_task(self.worker(kind, site, n).run())
                 for site in self.sites for kind, count in load.KINDS.items() for n in range(count)]
        sampler = asyncio.create_task(self.sample())
        await asyncio.sleep(WARM)
        self.rows["before the first fault"] = report.Row()
        self.rows["before the first fault"].add(0.0, time.monotonic(), None)
        await self.break_things(began + (MINUTES or 0) * 60, actors.runs)
        await self.finish(loops)
        self.seconds = time.monotonic() - began
        await self.check(actors)
        await self.settle()
        sampler.cancel()
        actors.close()
        await self.end()

    async def first_entry(self, site):
        """Where the agent that polls begins."""
        worker = self.worker("setup", site)
        await worker.what_came_of("setup", site.tokens["caller"], "poller")
        answer = await worker.insist("setup", "GET", "/activity", site.tokens["poller"], settled=lambda a: a.status == 200)
        site.first_entry = answer.json()[0]["id"], answer.json()[0]["seq"]
        self.shared.ledgers[site.name].read[site.first_entry[0]] += 1

    async def break_things(self, until, runs):
        """All of them, again and again until the time is over; a round that began is not cut short."""
        broken = options.KIND.faults(self.servers, self.pair, self.lone, self.client, self.shared, self.folder, HOLD, runs, self.upgrades)
        names, chance, rounds = list(options.FAULTS), random.Random(SEED), 0
        while rounds == 0 or time.monotonic() < until:
            rounds += 1
            for name in names:
                if rounds > 1 and time.monotonic() > until:
                    return
                await self.one_fault(name, broken)
                await asyncio.sleep(1 if SHORT else chance.uniform(2, 6))
            chance.shuffle(names)

    async def one_fault(self, name, broken):
        row, fault = self.rows.setdefault(name, report.Row()), getattr(broken, options.KIND.all[name])
        if not options.REVOKES or not any(word in name.lower() for word in faults.OF_STORES):
            return await self.break_and_mend(name, row, broken, fault)
        async with coherence.Revocations(self.worker("revocations", self.pair)) as revocations:
            await self.break_and_mend(name, row, broken, fault)
        row.revoked += revocations.times
        row.accepted.append(revocations.longest)

    async def break_and_mend(self, name, row, broken, fault):
        begun, self.shared.in_trouble, broken.served = time.monotonic(), name not in faults.HARMLESS, None
        try:
            row.remark(await fault())
        except faults.Skipped as why:
            row.skipped, self.shared.in_trouble = str(why), False
            return self.say(f"{name}: skipped: {why}")
        whole = time.monotonic()
        mended = broken.served or whole
        while time.monotonic() < max(whole, self.tally.last_error()) + QUIET:
            if time.monotonic() > whole + RECOVERED_WITHIN:
                self.tally.breach("stuck", f"{name}: not recovered after {RECOVERED_WITHIN} s", begun)
                break
            await asyncio.sleep(0.1)
        # Liars are called with clocks of up to 5 s, and beside the errors of a fault may end in others than theirs.
        if self.shared.in_trouble:
            self.shared.in_trouble, self.shared.trouble = False, time.monotonic()
        for gateway in self.gateways:
            if not gateway.runs():
                self.tally.breach("wrong", f"{name}: gateway {gateway.name} ended by itself with {gateway.child.poll()}", begun)
                await gateway.start(self.client)
        recovery = max(0.0, self.tally.last_error() - mended)
        refused = self.tally.between(begun, time.monotonic())
        row.add(begun, time.monotonic(), recovery)
        row.broken.append(mended - begun)
        self.say(f"{name}: broken for {mended - begun:.1f} s, {sum(refused.values())} refused ({report.most(refused)}),"
                 f" recovered after {recovery:.1f} s")

    async def sample(self):
        """RSS of each process once it was warm, and twice a minute."""
        began, told = time.monotonic(), 0.0
        while True:
            if time.monotonic() - told > 30:
                told = time.monotonic()
                self.memory.append({"s": round(told - began), **{one.name: one.rss_kib() for one in self.gateways if one.runs()}})
            for gateway in self.gateways:
                if gateway.runs() and gateway.life[2] is None and time.monotonic() - gateway.life[1] > 2 * WARM:
                    gateway.life[2] = gateway.rss_kib()
            await asyncio.sleep(0.5)

    async def finish(self, loops):
        self.say("the load ends")
        self.shared.over.set()
        deadline = time.monotonic() + FINISHED_WITHIN
        while time.monotonic() < deadline:
            unread = sum(1 for one in self.shared.ledgers.values() for entry in one.inbox if not one.read[entry])
            others = sum(1 for loop in loops if not loop.done())
            if not unread and others <= len(self.sites):
                break
            await asyncio.sleep(0.2)
        # What was delegated to the agent that polls is still on its way into the inbox, and wants a reply.
        await asyncio.sleep(3)
        while time.monotonic() < deadline and await self.jobs():
            await asyncio.sleep(0.5)
        self.shared.read_all.set()
        _, late = await asyncio.wait(loops, timeout=30)
        for loop in late:
            self.tally.breach("stuck", f"a loop of the load: {loop.get_coro()}")
            loop.cancel()

    async def jobs(self):
        """Delegations that are not over."""
        for site in self.sites:
            worker = self.worker("check", site)
            found = await ledger.whole_list(worker, "/workspaces/caller/delegations?limit=500", site.tokens["caller"])
            if any(one["status"] in ("pending", "dispatched") for one in found):
                return True
        return False

    async def check(self, actors):
        self.say("looking for all that was acknowledged")
        verdict_by = time.monotonic() + FINISHED_WITHIN
        for site in self.sites:
            await ledger.check(self.worker("check", site), self.shared.ledgers[site.name], actors.runs, verdict_by)

    async def settle(self):
        """Gauges and memory back to their base."""
        self.client.close()
        deadline = time.monotonic() + SETTLED_WITHIN
        while True:
            self.left = {}
            for gateway in self.gateways:
                now = await gateway.gauges(self.client)
                leaks = report.leaks(gateway, self.base[gateway.name], now)
                if leaks:
                    self.left[gateway.name] = leaks
                gateway.last = now
            if not self.left or time.monotonic() > deadline:
                break
            await asyncio.sleep(1)
        for name, leaks in self.left.items():
            self.tally.breach("leaked", f"gateway {name}: {', '.join(leaks)}")

    async def end(self):
        for gateway in self.gateways:
            gateway.child.send_signal(signal.SIGTERM)
        for gateway in self.gateways:
            status = await gateway.ended(90)
            if status != 0:
                self.tally.breach("stuck" if status is None else "wrong", f"gateway {gateway.name} ended with {status}")
        for site in self.sites:
            status, said = site.gateways[0].verify()
            self.audits[site.name] = said.splitlines()[-1] if said else ""
            if status != 0:
                self.tally.breach("wrong", f"audit of {site.name}: {said[-1500:]}")
        for gateway in self.gateways:
            for line in gateway.panics():
                self.tally.breach("wrong", f"gateway {gateway.name}: {line}")

    def say(self, text):
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def close(self):
        for gateway in self.gateways:
            gateway.kill()
            gateway.forget_clocks()
        if self.has_disk:
            subprocess.run(["umount", "-l", f"{self.folder}/lone"], check=False)


def main():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder = tempfile.mkdtemp(prefix="a2a-soak-")
    print(f"seed {SEED}, stores {options.STORES}, {f'{MINUTES:g} min' if MINUTES else 'one round'}, logs in {folder} meanwhile", flush=True)
    harness.end_well()
    try:
        with options.KIND.stores(folder) as servers:
            soak = Soak(folder, servers)
            try:
                asyncio.run(soak.run())
            finally:
                soak.close()
        good = report.tell(soak, SEED)
        if not SHORT:
            results.write("soak" if options.STORES == "plain" else f"soak-{options.STORES}", report.raw(soak, SEED), ["scripts/soak"])
    except BaseException:
        print(f"logs are kept in {folder}", flush=True)
        raise
    if not good:
        print(f"logs are kept in {folder}", flush=True)
        raise SystemExit(1)
    shutil.rmtree(folder)
    print("The logs are removed: they are only kept if something was wrong.", flush=True)


main()
