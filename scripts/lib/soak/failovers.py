"""The faults of stores that fail over, and the faults of each kind of stores (`STORES`).

A fault notes when the store serves again (`serves`), and returns when its servers are whole: the dead one is back, in
the place that it has now.
"""

import asyncio
import dataclasses
import signal

import failover
import faults
import stores
import world

# A channel of the gateways: without its owner they hear nothing of each other.
CHANNEL = "gw:invalidate"


class OfSentinels(faults.Faults):
    """Of `failover.Sentinels`."""

    async def master_killed(self):
        """The sentinels make its replica the master. It comes back empty, and says that it is one until they see it."""
        before = self.servers.redis_port
        self.servers.redis.kill()
        self.servers.redis.wait()
        await asyncio.to_thread(self.servers.await_master, besides=before)
        self.serves()
        await asyncio.sleep(self.hold)
        await asyncio.to_thread(self.servers.start_server, before)
        await asyncio.to_thread(self.servers.await_whole)

    async def master_changed(self):
        await asyncio.to_thread(self.servers.fail_over)
        self.serves()
        await asyncio.to_thread(self.servers.await_whole)

    async def master_changed_beside_a_new_gateway(self):
        """The old master says for some ten seconds more that it is one. The gateways that are connected to it, and the
        one that starts then, hear each other all the same."""
        self.first.kill()
        await asyncio.to_thread(self.servers.fail_over)
        self.first.launch()
        self.serves()
        await asyncio.to_thread(self.servers.await_whole)

    async def redis_stalled(self):
        """For longer than the sentinels wait: when it goes on it is a master that another one has replaced."""
        master, before = self.servers.redis.pid, self.servers.redis_port
        world.kill_quietly(master, signal.SIGSTOP)
        try:
            await asyncio.to_thread(self.servers.await_master, besides=before)
            self.serves()
            await asyncio.sleep(self.hold)
        finally:
            world.kill_quietly(master, signal.SIGCONT)
        await asyncio.to_thread(self.servers.await_whole)

    async def standby_promoted(self):
        """The primary is killed with all its processes. It comes back as a copy that follows its former standby."""
        for process in self.servers.postgres_ids():
            world.kill_quietly(process)
        self.servers.postgres.wait()
        await asyncio.sleep(min(1, self.hold))
        await asyncio.to_thread(self.servers.promote)
        self.serves()
        await asyncio.sleep(self.hold)
        await asyncio.to_thread(self.servers.add_standby)


class OfCluster(faults.Faults):
    """Of `failover.Cluster`."""

    async def owner(self):
        slot = await asyncio.to_thread(self.servers.slot, CHANNEL)
        return slot, await asyncio.to_thread(failover.until, "one node owns the slot", lambda: self.servers.owner(slot))

    async def replaced(self, slot, before):
        another = "another node owns the slot"
        await asyncio.to_thread(failover.until, another, lambda: self.servers.owner(slot, besides=before))
        self.serves()
        await asyncio.sleep(self.hold)

    async def node_killed(self):
        """A master; its replica replaces it. It comes back empty, as a replica."""
        slot, before = await self.owner()
        self.servers.nodes[before].kill()
        self.servers.nodes[before].wait()
        await self.replaced(slot, before)
        await asyncio.to_thread(self.servers.start_node, before)
        await asyncio.to_thread(self.servers.await_whole)

    async def redis_stalled(self):
        """A master, for longer than the others wait: when it goes on another one has replaced it."""
        slot, before = await self.owner()
        world.kill_quietly(self.servers.nodes[before].pid, signal.SIGSTOP)
        try:
            await self.replaced(slot, before)
        finally:
            world.kill_quietly(self.servers.nodes[before].pid, signal.SIGCONT)
        await asyncio.to_thread(self.servers.await_whole)

    async def slots_moved(self):
        slot, _ = await self.owner()
        await asyncio.to_thread(self.servers.move_slots, slot)
        self.serves()
        await asyncio.to_thread(self.servers.await_whole)

    async def pooler_restarted(self):
        """INT, as its unit in Debian: it ends when no transaction is open."""
        self.servers.pooler.send_signal(signal.SIGINT)
        await asyncio.to_thread(self.servers.pooler.wait, 60)
        await asyncio.to_thread(self.servers.start_pooler)

    async def pooler_killed(self):
        """In the middle of transactions: what came of their commits is known to PostgreSQL alone."""
        self.servers.pooler.kill()
        self.servers.pooler.wait()
        await asyncio.sleep(self.hold)
        await asyncio.to_thread(self.servers.start_pooler)


@dataclasses.dataclass
class Kind:
    """Stores and their faults: name in the table → the fault. The first `short` of them are the short version."""

    stores: type
    faults: type
    all: dict
    short: int


def failing_over(of_stores, of_faults, own):
    """With the faults that all stores have: all but a Redis that comes back empty without a replica."""
    others = {name: fault for name, fault in faults.ALL.items() if fault != "redis_killed"}
    return Kind(of_stores, of_faults, own | others, len(own))


KINDS = {
    "plain": Kind(stores.Stores, faults.Faults, faults.ALL, faults.SHORT),
    "sentinel": failing_over(failover.Sentinels, OfSentinels, {
        "Redis master killed": "master_killed",
        "Redis failover": "master_changed",
        "Redis failover, new gateway": "master_changed_beside_a_new_gateway",
        "Redis stalled": "redis_stalled",
        "PostgreSQL standby promoted": "standby_promoted",
    }),
    "cluster": failing_over(failover.Cluster, OfCluster, {
        "cluster node killed": "node_killed",
        "cluster slots moved": "slots_moved",
        "Redis stalled": "redis_stalled",
        "PgBouncer restarted": "pooler_restarted",
        "PgBouncer killed": "pooler_killed",
    }),
}
