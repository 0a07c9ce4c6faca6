"""Revocations while a store fails over, one after the other: a second after one was acknowledged no gateway accepts the token."""

import asyncio
import time

import harness

# Of the contract, in seconds.
WITHIN = 1.0
# Between two questions to one gateway.
PAUSE = 0.05


class Revocations:
    """From where it is entered until it is left, and once more then."""

    def __init__(self, worker):
        self.worker, self.over = worker, asyncio.Event()
        # How often, and how long after its revocation a token was accepted at most.
        self.times, self.longest = 0, 0.0

    async def __aenter__(self):
        self.task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_):
        self.over.set()
        await self.task

    async def run(self):
        while not self.over.is_set():
            await self.one()
        await self.one()

    async def one(self):
        worker, path = self.worker, "/workspaces/caller"
        answer = await worker.insist("check", "POST", f"{path}/tokens", harness.ADMIN, settled=lambda a: a.status == 201)
        if answer is None:
            return
        made = answer.json()
        # Each gateway knows it, from its own cache.
        for gateway in worker.site.gateways:
            await worker.insist("check", "GET", path, made["token"], on=gateway, settled=lambda a: a.status == 200)
        # Not found: an attempt before, of whose answer nothing was seen.
        done = await worker.insist("check", "DELETE", f"{path}/tokens/{made['id']}", harness.ADMIN,
                                   settled=lambda a: a.status in (200, 404))
        if done is None:
            return
        acknowledged = time.monotonic()
        worker.ledger.revoked[made["token"]] = acknowledged
        await asyncio.gather(*(self.refused(gateway, path, made["token"], acknowledged) for gateway in worker.site.gateways))
        self.times += 1

    async def refused(self, gateway, path, token, acknowledged):
        """Asks until the gateway says that it does not know the token; for longer than it may still accept it, in any case."""
        worker, accepted, known = self.worker, 0.0, False
        while not known or time.monotonic() < acknowledged + WITHIN + 0.5:
            begun = time.monotonic() - acknowledged
            answer = await worker.ask("check", "GET", path, token, on=gateway, fine=("unauthenticated",))
            known = known or answer is not None and answer.status == 401
            if answer is not None and answer.status == 200:
                accepted = max(accepted, begun)
                if known:
                    worker.tally.breach("wrong", f"a revoked token was refused at {gateway.name}, then accepted, {begun:.2f} s after")
            if begun > 60 and not known:
                worker.tally.breach("stuck", f"gateway {gateway.name} does not say what a revoked token is worth")
                break
            await asyncio.sleep(PAUSE)
        self.longest = max(self.longest, accepted)
        if accepted > WITHIN:
            worker.tally.breach("wrong", f"a token was accepted at {gateway.name} {accepted:.2f} s after its revocation")
