"""The table of faults, and what was left at the end."""

import bisect
import collections
import math
import time

# Gauges that count what is under way, and records that wait: none of it is left when nothing goes on.
ZERO = ["open_exchanges", "target_permits", "open_streams", "stream_readers", "lingering_streams", "jobs_running", "inbox_waiting",
        "inbox_readers{kind=\"wait\"}", "inbox_readers{kind=\"stream\"}", "event_readers{kind=\"socket\"}",
        "event_readers{kind=\"stream\"}", "queue_entries{queue=\"jobs\"}", "queue_entries{queue=\"events_kept\"}",
        "queue_entries{queue=\"events_passing\"}", "queue_entries{queue=\"task_notes\"}", "audit_waiting_records",
        "audit_spool_bytes", "stream_log_bytes"]

# What may be more than at the start: connections to stores (stores.sql_connections and Redis') and kept ones to agents.
MORE_DESCRIPTORS = 48

# Memory: caches, what the allocator keeps, and histograms. A leak of 1 KiB a request passes it within minutes.
MORE_MEMORY = 1.3
MORE_MEMORY_KIB = 48 * 1024

# Of what `Counts` tells.
UPGRADES = ("| Process exchanged | times | unary answered | unary failed | refused, then answered elsewhere | never begun, the same |"
            " streams whole | ended with their last event | broken otherwise | next one serves, longest | end of the one before, longest |\n"
            "|---|---|---|---|---|---|---|---|---|---|---|")


class Row:
    """A fault, over all rounds: when it began, when it had recovered, and how long that took since it was mended."""

    def __init__(self):
        self.rounds, self.remarks, self.skipped = [], collections.Counter(), None
        # Seconds until the thing served again. Of a store: how many tokens were revoked meanwhile, and the seconds for which
        # one was accepted after that.
        self.broken, self.revoked, self.accepted = [], 0, []

    def remark(self, text):
        if text:
            self.remarks[text] += 1

    def add(self, begun, recovered, recovery):
        self.rounds.append((begun, recovered, recovery))


def most(counts):
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none"


def leaks(gateway, base, now):
    """What is not back to its base."""
    found = [f"{name} is {now[series]:g}" for name in ZERO if now.get(series := f"a2a_gateway_{name}", 0) != 0]
    descriptors = now["process_open_fds"] - base["process_open_fds"]
    if descriptors > MORE_DESCRIPTORS:
        found.append(f"{descriptors:g} more descriptors")
    warm, resident = gateway.life[2], gateway.rss_kib()
    gateway.resident = resident
    if warm and resident > warm * MORE_MEMORY + MORE_MEMORY_KIB:
        found.append(f"RSS {warm // 1024} MiB when warm, {resident // 1024} MiB now")
    return found


class Counts:
    """What a crowd at a gateway saw while its process was exchanged, over all rounds of one way to do that."""

    def __init__(self):
        self.times = self.answered = self.elsewhere = self.connections = 0
        self.whole = self.last_event = 0
        # Reason → how often: unary calls and streams that the gateway had begun, or that a caller cannot ask again.
        self.failed, self.broken = collections.Counter(), collections.Counter()
        # Connections that ended before an answer began, of calls that no agent saw.
        self.unbegun = 0
        # Seconds from the signal to the end of the process before, and until the next one served.
        self.ended, self.served = [], []

    def line(self, name):
        return (f"| {name} | {self.times} | {self.answered} | {most(self.failed)} | {self.elsewhere} | {self.unbegun} | {self.whole} |"
                f" {self.last_event} | {most(self.broken)} | {max(self.served, default=0):.1f} s | {max(self.ended, default=0):.1f} s |")


def told_late(reason, since, begun):
    """Whether what was refused after `begun` is of an earlier fault: that a gateway died with a stream or a call with a key is
    known to who comes back for it when that one's lease is over."""
    return reason.endswith("agent_protocol_error") and since < begun


class Told:
    """What happened, by the fault that it fell into: errors until it had recovered, those later, and what is wrong."""

    def __init__(self, soak):
        self.rows = soak.rows
        starts = sorted((begun, recovered, name) for name, row in self.rows.items() for begun, recovered, _ in row.rounds)
        self.refused, self.later = (collections.defaultdict(collections.Counter) for _ in range(2))
        self.wrong, self.slowest = collections.Counter(), collections.defaultdict(float)
        for at, seconds in soak.tally.slow:
            name = starts[bisect.bisect(starts, (at, math.inf)) - 1][2]
            self.slowest[name] = max(self.slowest[name], seconds)
        for at, _, _, reason, since in soak.tally.errors:
            place = bisect.bisect(starts, (at, math.inf)) - 1
            if starts[place][2] in soak.harmless and told_late(reason, since, starts[place][0]):
                place -= 1
            _, recovered, name = starts[place]
            (self.refused if at <= recovered else self.later)[name][reason] += 1
        for at, _, _ in soak.tally.broken:
            self.wrong[starts[bisect.bisect(starts, (at, math.inf)) - 1][2]] += 1

    def line(self, name):
        row = self.rows[name]
        if row.skipped:
            return f"| {name} | skipped: {row.skipped} | | | | | | |"
        remark = f" ({most(row.remarks)})" if row.remarks else ""
        later = f"; later {most(self.later[name])}" if self.later[name] else ""
        recoveries = [recovery for *_, recovery in row.rounds if recovery is not None]
        longest = f"{max(recoveries):.1f} s" if recoveries else ""
        slowest = f"{self.slowest[name]:.1f} s" if self.slowest[name] else "under 0.5 s"
        refused = f"{most(self.refused[name])}{later}"
        broken = f"{max(row.broken):.1f} s" if row.broken else ""
        accepted = f"{max(row.accepted):.1f} s, of {row.revoked}" if row.accepted else ""
        return f"| {name}{remark} | {len(recoveries) or ''} | {refused} | {self.wrong[name]} | {broken} | {longest} | {accepted} | {slowest} |"


def raw(soak, seed):
    """All of it, for bench/results/."""
    told, tally = Told(soak), soak.tally
    faults = {name: {"times": len(row.rounds), "recoveries_s": [round(recovery, 2) for *_, recovery in row.rounds if recovery is not None],
                     "broken_s": [round(one, 2) for one in row.broken], "revoked": row.revoked,
                     "revoked_accepted_s": [round(one, 2) for one in row.accepted], "refused": told.refused[name], "refused_later": told.later[name], "lost": told.wrong[name],
                     "slowest_good_s": round(told.slowest[name], 2), "remarks": row.remarks, "skipped": row.skipped}
              for name, row in soak.rows.items()}
    gateways = {one.name: {"seconds": round(time.monotonic() - one.life[1]), "rss_warm_kib": one.life[2], "rss_end_kib": one.resident,
                           "descriptors_start": soak.base[one.name]["process_open_fds"], "descriptors_end": one.last["process_open_fds"]}
                for one in soak.gateways}
    return {"seed": seed, "seconds": round(soak.seconds), "good": tally.good, "refused": len(tally.errors), "faults": faults,
            "upgrades": {name: vars(counts) for name, counts in soak.upgrades.items()},
            "acknowledged_and_found": {name: kept.sizes() for name, kept in soak.shared.ledgers.items()},
            "keyed_unknown": sum(not answered for one in soak.shared.ledgers.values() for answered, _ in one.keyed.values()),
            "others": tally.odd, "gateways": gateways, "rss_kib": soak.memory, "audits": soak.audits, "wrong": [f"{kind}: {text}" for _, kind, text in tally.broken]}


def tell(soak, seed):
    """Prints it all; whether nothing was lost, stuck, leaked or wrong."""
    told, tally = Told(soak), soak.tally
    good = collections.Counter({kind: count for kind, count in tally.good.items() if kind not in ("check", "setup")})
    print(f"\n{sum(good.values())} requests of the honest load were good, {len(tally.errors)} refused, in {soak.seconds:.0f} s:"
          f" {most(good)}\n")
    print("| Fault | times | refused meanwhile | lost | broken, longest | recovery, longest | revoked token accepted, longest |"
          " slowest good answer |")
    print("|---|---|---|---|---|---|---|---|")
    for name in soak.rows:
        print(told.line(name))
    if soak.upgrades:
        print(f"\n{UPGRADES}")
        for name, counts in soak.upgrades.items():
            print(counts.line(name))
    print()
    for name, kept in soak.shared.ledgers.items():
        print(f"acknowledged and found at {name}: {', '.join(f'{count} {what}' for what, count in kept.sizes().items())}")
    unknown = sum(not answered for one in soak.shared.ledgers.values() for answered, _ in one.keyed.values())
    print(f"calls with a key whose outcome was said to be unknown: {unknown}")
    if tally.odd:
        print("what else came of calls: to misbehaving agents (agent: outcome), of strangers with a bad token, and of delegations;"
              " how many of each:")
    for what, count in sorted(tally.odd.items()):
        print(f"  {count:6} {what}")
    for gateway in soak.gateways:
        lost_records = sum(count for name, count in gateway.last.items() if name.startswith("a2a_gateway_audit_lost_total"))
        warm = f"{gateway.life[2] // 1024} MiB when warm, " if gateway.life[2] else ""
        print(f"gateway {gateway.name}, {time.monotonic() - gateway.life[1]:.0f} s old: RSS {warm}{gateway.resident // 1024} MiB at the end;"
              f" audit records lost and counted {lost_records:g}")
    for site in soak.sites:
        print(f"audit of {site.name}: {soak.audits[site.name]}")
    for kind, text in sorted((kind, text) for _, kind, text in tally.broken)[:40]:
        print(f"{kind.upper()}: {text}")
    whole = not tally.broken
    print(f"\n{'Nothing was lost, stuck or leaked' if whole else f'{len(tally.broken)} things are wrong'}; seed {seed}.")
    return whole
