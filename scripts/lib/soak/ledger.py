"""What was acknowledged, what went wrong, and, at the end, whether it is all there, once."""

import collections
import time

import harness


# Seconds. Shorter answers are not told of.
SLOW = 0.5


class Ledger:
    """Of one site. Each item carries when it was acknowledged, so that a loss can be told with the fault it fell into."""

    def __init__(self):
        # Entry, delegation or workspace id → when it was acknowledged (and more).
        self.inbox, self.replies, self.delegations = {}, {}, {}
        self.created, self.removed, self.revoked = {}, {}, {}
        # Text of a call with a key → whether it was answered (else its outcome is said to be unknown), and when.
        self.keyed = {}
        # What the agent that polls was given: entry id → how often.
        self.read = collections.Counter()
        # Texts that must not run twice.
        self.once = set()

    def sizes(self):
        return {
            "inbox entries": len(self.inbox), "replies": len(self.replies), "delegations": len(self.delegations),
            "calls with a key": len(self.keyed), "workspaces": len(self.created) + len(self.removed), "revoked tokens": len(self.revoked)}


class Tally:
    """How requests went, and what must not happen."""

    def __init__(self):
        self.good = collections.Counter()
        # (when, seconds) of good answers that took long, and (when, gateway, kind, reason, since) of those that were none:
        # `since` is when the caller began what it asks for, be it by other requests.
        self.slow, self.errors = [], []
        # Of what is no honest load, and what became of delegations: outcome → how often.
        self.odd = collections.Counter()
        # (when, kind, text): lost, twice, stuck, wrong
        self.broken = []

    def ok(self, kind, begun):
        """`begun`: when it was asked for, where how long it takes is the gateway's doing."""
        self.good[kind] += 1
        now = time.monotonic()
        if begun and kind not in ("poll", "check") and now - begun > SLOW:
            self.slow.append((now, now - begun))

    def error(self, gateway, kind, reason, since):
        self.errors.append((time.monotonic(), gateway, kind, reason, since))

    def breach(self, kind, text, at=None):
        self.broken.append((at or time.monotonic(), kind, text))

    def between(self, begin, end):
        """Errors of the honest load, by reason."""
        return collections.Counter(reason for at, _, _, reason, _ in self.errors if begin <= at < end)

    def last_error(self):
        return self.errors[-1][0] if self.errors else 0.0


async def whole_list(worker, path, token):
    """All pages of a list that answers arrays with `Link`."""
    found = []
    while path:
        answer = await worker.insist("check", "GET", path, token, settled=lambda answer: answer.status == 200)
        if answer is None:
            worker.tally.breach("stuck", f"{path} is not answered")
            return found
        found += answer.json()
        link = answer.fields.get("link")
        path = link[1:link.index(">")] if link else None
    return found


async def check(worker, ledger, runs, verdict_by):
    """Looks for everything in the ledger. `verdict_by`: until when unfinished work may still end."""
    await check_inbox(worker, ledger)
    await check_delegations(worker, ledger, runs, verdict_by)
    await check_workspaces(worker, ledger)
    breach = worker.tally.breach
    for text, (answered, at) in ledger.keyed.items():
        if answered and runs[text] != 1:
            breach("lost" if runs[text] == 0 else "twice", f"{text} was answered and ran {runs[text]} times", at)
    for text in ledger.once:
        if runs[text] > 1:
            breach("twice", f"{text} ran {runs[text]} times", None)
    for token, at in ledger.revoked.items():
        for gateway in worker.site.gateways:
            answer = await worker.insist("check", "GET", "/workspaces/caller", token, on=gateway, settled=lambda a: a.status in (200, 401))
            if answer is None or answer.status != 401:
                breach("lost", f"the revocation of {token[:8]} at {gateway.name}", at)


async def check_inbox(worker, ledger):
    breach = worker.tally.breach
    there = await whole_list(worker, "/workspaces/poller/activity?limit=500", worker.site.tokens["poller"])
    numbers = [entry["seq"] for entry in there]
    if numbers != list(range(numbers[0], numbers[-1] - 1, -1)):
        breach("lost", "the numbers of the inbox have a gap")
    by_id = {entry["id"]: entry for entry in there}
    for entry, (at, text) in ledger.inbox.items():
        if entry not in by_id:
            breach("lost", f"{text}, entry {entry}, is not in the inbox", at)
        elif ledger.read[entry] != 1:
            breach("lost" if ledger.read[entry] == 0 else "twice", f"{text}, entry {entry}, was read {ledger.read[entry]} times", at)
    messages = [entry["request_body"]["params"]["message"] for entry in there if entry["activity_type"] == "a2a_receive"]
    texts = collections.Counter(message["parts"][0]["text"] for message in messages)
    for text, count in texts.items():
        if count > 1:
            breach("twice", f"{text} is {count} times in the inbox")
    for entry, at in ledger.replies.items():
        if entry in by_id and by_id[entry]["status"] != "completed":
            breach("lost", f"the reply to {entry}: it is {by_id[entry]['status']}", at)


async def check_delegations(worker, ledger, runs, verdict_by):
    breach, token = worker.tally.breach, worker.site.tokens["caller"]
    for delegation, (at, text, target) in ledger.delegations.items():
        while True:
            answer = await worker.insist("check", "GET", f"/workspaces/caller/delegations/{delegation}", token,
                                         settled=lambda answer: answer.status in (200, 404))
            if answer is None or answer.status != 200:
                breach("lost", f"delegation {delegation} ({text})", at)
                break
            told = answer.json()
            state = told["status"]
            if state in ("pending", "dispatched"):
                if time.monotonic() < verdict_by:
                    await worker.pause(0.5, 0.5)
                    continue
                breach("stuck", f"delegation {delegation} ({text}) is {state}: {told}", at)
                break
            error = told.get("error") or {}
            worker.tally.odd[f"delegation to {target}: {state} {error.get('reason', '')} {error.get('delivered', '')}".strip()] += 1
            if state == "expired" or (state == "failed" and error.get("delivered") == "false"):
                breach("lost", f"delegation {delegation} ({text}) {state}: {error}", at)
            if target == "honest" and (runs[text] > 1 or (state == "completed" and runs[text] == 0)):
                breach("twice" if runs[text] else "lost", f"delegation {text} is {state} and ran {runs[text]} times", at)
            break
    told = collections.Counter()
    while True:
        entries = await whole_list(worker, "/workspaces/caller/activity?limit=500&type=delegate_result", token)
        told = collections.Counter(entry["response_body"]["delegation_id"] for entry in entries)
        if all(told[one] for one in ledger.delegations) or time.monotonic() > verdict_by:
            break
        await worker.pause(1, 1)
    for delegation, (at, text, _) in ledger.delegations.items():
        if told[delegation] != 1:
            breach("lost" if told[delegation] == 0 else "twice", f"the result of {delegation} ({text}) is {told[delegation]} times in the inbox", at)


async def check_workspaces(worker, ledger):
    for name, at in [*ledger.created.items(), *ledger.removed.items()]:
        answer = await worker.insist("check", "GET", f"/workspaces/{name}", harness.ADMIN, settled=lambda a: a.status in (200, 404, 410))
        state = answer and ("removed" if answer.status == 410 or answer.status == 200 and answer.json()["status"] == "removed" else answer.status)
        if state != ("removed" if name in ledger.removed else 200):
            worker.tally.breach("lost", f"workspace {name} is {state}", at)
