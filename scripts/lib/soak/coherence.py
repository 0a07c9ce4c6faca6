"""Revocations while a store is broken, one after the other: a second after one was acknowledged no gateway accepts the
token."""

import asyncio
import time

import harness

# Of the contract, in seconds.
WITHIN = 1.0
# Between two questions to one gateway, until it refused the token and then: refusals of one address are counted.
PAUSES = 0.05, 0.4
# Longer than any fault and its recovery.
GIVEN_UP = 60


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
        answer = await worker.insist("check", "POST", f"{path}/tokens", harness.ADMIN,
                                     settled=lambda a: a.status == 201)
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
        gateways = worker.site.gateways
        await asyncio.gather(*(self.refused(gateway, path, made["token"], acknowledged) for gateway in gateways))
        self.times += 1

    async def refused(self, gateway, path, token, acknowledged):
        """Asks until the gateway refuses the token, and for longer than it may accept it in any case."""
        worker, accepted, known = self.worker, 0.0, False
        while not known or time.monotonic() < acknowledged + WITHIN + 0.5:
            begun = time.monotonic() - acknowledged
            answer = await worker.ask("check", "GET", path, token, on=gateway, fine=("unauthenticated",))
            known = known or answer is not None and answer.status == 401
            if answer is not None and answer.status == 200:
                accepted = max(accepted, begun)
                if known:
                    self.wrong(f"a revoked token was refused at {gateway.name}, and accepted after {begun:.2f} s")
            if begun > GIVEN_UP and not known:
                self.wrong(f"a revoked token was not refused at {gateway.name} in {GIVEN_UP} s")
                break
            await asyncio.sleep(PAUSES[known])
        self.longest = max(self.longest, accepted)
        if accepted > WITHIN:
            self.wrong(f"a token was accepted at {gateway.name} {accepted:.2f} s after its revocation")

    def wrong(self, text):
        self.worker.tally.breach("wrong", text)
