"""The gateway beside its peers, each case in one run: same agent, same load, alternating rounds, medians.

Started by `scripts/bench peers [ROUNDS] [SECONDS]`; CASES, SIDES, BODIES and CONNECTIONS narrow it. The sides are in
sides.py; each case is written to bench/results/.
"""

import statistics
import sys

import harness
import loads
import memory
import results
import sides
import streams
import usage

ROUNDS, SECONDS = usage.GIVEN["ROUNDS"], usage.GIVEN["SECONDS"]
TAIL_CONNECTIONS = (1, 8, 64)
# The p99 with the audit, as a multiple of that without.
TAIL_MAX = 1.5
# Bounds that were exceeded.
exceeded = []


def asked(case, besides=()):
    """Those of a case's sides that are wanted, without those `besides`."""
    wanted = usage.sides("peers")
    return [name for name in usage.PEERS[case] if name in wanted and name not in besides]


def alternate(bench, measure, rows=None):
    """Rounds of every row by turns, `measure(row, side, seconds)` each, and what the side's processes used meanwhile.

    `rows`: the side of each by its name; without them, each side is one. One whose load has errors is left out, aloud.
    """
    rows = dict(rows or bench.sides)
    measured = {name: [] for name in rows}
    for number in range(ROUNDS + 1):
        harness.progress(f"{', '.join(rows)}: {f'round {number} of {ROUNDS}' if number else 'they warm up'}")
        for name, side in list(rows.items()):
            before = side.cpu_seconds()
            try:
                done = measure(name, side, SECONDS)
            except loads.Failed as failure:
                print(f"  {name} is left out: {failure}", file=sys.stderr, flush=True)
                del rows[name], measured[name]
                continue
            done["cpu_us"] = 1e6 * (side.cpu_seconds() - before) / done["requests"]
            # The first round warms up.
            if number:
                measured[name].append(done)
    return measured


def medians(rounds):
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def ratio(measured, key, name, against):
    """Median of the ratios round by round, which a slow minute of the machine does not move."""
    pairs = [(mine[key], theirs[key]) for mine, theirs in zip(measured[name], measured[against])]
    return statistics.median(mine / theirs for mine, theirs in pairs if theirs) if any(b for _, b in pairs) else 0.0


def tell(title, measured, against=None):
    """The table of one comparison."""
    if not measured:
        return
    against = against or next(iter(measured))
    print(f"{title}; {ROUNDS} rounds of {SECONDS} s, {harness.THREADS} proxy thread(s); x: against {against}")
    for name, rounds in measured.items():
        of = medians(rounds)
        tail = f"  p99.9 {of['p999_us']:8.0f}" if "p999_us" in of else ""
        print(f"  {name:20} {of['rate']:8.0f}/s  x {ratio(measured, 'rate', name, against):5.2f}"
              f"  CPU {of['cpu_us']:7.1f} us  x {ratio(measured, 'cpu_us', name, against):5.2f}"
              f"  p50 {of['p50_us']:8.0f}  p99 {of['p99_us']:8.0f}{tail} us", flush=True)


def unary():
    """As fast as answers come; call and answer of each length, at each number of connections."""
    told = []
    # 512 bodies of 1 MB are more than one caller may have at once.
    roomy = {name: {**settings, "limits.bodies_bytes": "4GiB"} for name, settings in sides.GATEWAYS.items()}
    with sides.Peers(asked("unary"), roomy) as bench:
        for length in usage.numbers("peers", "BODIES"):
            bench.body = harness.body_of(length)
            bench.restart_agent(length)
            scripts = {name: bench.wrk_script(name) for name in bench.sides}
            for connections in usage.numbers("peers", "CONNECTIONS"):
                # So that each connection gets some answers, also of 1 MB on 512 connections.
                at_least = length * connections // 20_000_000
                measured = alternate(bench, lambda name, side, seconds: loads.wrk(
                    side.url, scripts[name], connections, max(seconds, at_least)))
                tell(f"{len(bench.body)} B, {connections} connections", measured)
                told.append({"bytes": len(bench.body), "connections": connections, "sides": measured})
        memory_now = {name: side.memory_kib() for name, side in bench.sides.items()}
        print("  memory afterwards: " + ", ".join(f"{name} {of['rss'] / 1024:.0f} MiB RSS, {of['pss'] / 1024:.0f} PSS"
                                                for name, of in memory_now.items()))
    results.write("unary", {"comparisons": told, "memory_kib": memory_now})


def latency():
    """What each adds to a call at one connection, and the tail of few and of many."""
    told = {}
    with sides.Peers(asked("latency")) as bench:
        scripts = {name: bench.wrk_script(name) for name in bench.sides}
        for connections in TAIL_CONNECTIONS:
            measured = told[connections] = alternate(
                bench, lambda name, side, seconds: loads.wrk(side.url, scripts[name], connections, seconds))
            tell(f"{len(bench.body)} B, {connections} connection(s)", measured)
    measured = told[1]
    if "direct" in measured:
        added = {name: [mine["p50_us"] - direct["p50_us"] for mine, direct in zip(rounds, measured["direct"])]
                 for name, rounds in measured.items() if name != "direct"}
        for name, of in added.items():
            beside = f"  x {statistics.median(of) / statistics.median(added['nginx']):.2f} of nginx's" if "nginx" in added else ""
            print(f"  {name:20} adds {statistics.median(of):6.0f} us at p50{beside}"
                  f"  (round by round {', '.join(f'{one:.0f}' for one in of)})")
    results.write("latency", told)
    check_tail(told)


def check_tail(told):
    """The audit may lengthen the tail by half."""
    for connections, measured in told.items():
        if {"gateway", "gateway-plain"} <= set(measured):
            times = ratio(measured, "p99_us", "gateway", "gateway-plain")
            print(f"  p99 at {connections} connection(s) x {times:.2f} of that without audit; at most {TAIL_MAX}")
            if times > TAIL_MAX:
                exceeded.append(f"p99 at {connections} connection(s): x {times:.2f} of that without audit")


def paced():
    """Latency at a fixed rate, counted from when each request was due."""
    rate = usage.number("peers", "RATE")
    with sides.Peers(asked("paced")) as bench:
        requests = {name: [bench.request(side.path, "application/json", name)] for name, side in bench.sides.items()}
        measured = alternate(
            bench, lambda name, side, seconds: loads.paced(side, requests[name], rate, seconds, 64))
    tell(f"{len(bench.body)} B, {rate} calls/s whether or not they are answered, 64 connections", measured)
    results.write("paced", {"rate": rate, "sides": measured})


def refusals():
    """What a refusal costs against an answer: of nobody (401), of a stranger (403), and of too many of the first."""
    gateways = {"gateway": {"rate.failures_per_second": 0}, "gateway-limited": {}}
    with sides.Peers(asked("refusals"), gateways) as bench:
        told = {}
        for name in bench.sides:
            if name == "gateway-limited":
                # Where failures are limited, the twenty-first of a second is a 429.
                credentials = {"answered": None, "401 or 429": sides.UNKNOWN}
            else:
                credentials = {"answered": None, "401": sides.UNKNOWN, "403": bench.outsider}
            told[name] = refused(bench, name, credentials)
    results.write("refusals", told)


def refused(bench, name, credentials):
    side = bench.sides[name]
    scripts = {kind: bench.wrk_script(name, token) for kind, token in credentials.items()}
    measured = alternate(
        bench, lambda kind, side, seconds: loads.wrk(side.url, scripts[kind], 64, seconds, refused=kind != "answered"),
        {kind: side for kind in scripts})
    tell(f"{name}: {len(bench.body)} B, 64 connections", measured)
    return measured


def tls():
    """HTTP/1.1 and HTTP/2 over TLS, and a connection for each call."""
    told = {}
    with sides.Peers(asked("tls"), tls=True) as bench:
        kept = {name: bench.wrk_script(name) for name in bench.sides}
        closed = {name: bench.wrk_script(name, fields={"Connection": "close"}) for name in bench.sides}
        loaded = {
            "HTTP/1.1, 64 connections": lambda name, side, seconds: loads.wrk(side.url, kept[name], 64, seconds),
            "HTTP/2, 16 connections of 4 calls at once": lambda name, side, seconds: loads.h2load(
                side.url, side.token, bench.body, 16, 4, seconds),
            "a connection for each call, 16 at once": lambda name, side, seconds: loads.wrk(
                side.url, closed[name], 16, seconds),
        }
        for what, measure in loaded.items():
            told[what] = alternate(bench, measure)
            tell(f"TLS, {len(bench.body)} B, {what}", told[what])
    results.write("tls", told)


def events():
    """What each adds to the delay of an event, and how many it can carry."""
    told, names = {}, asked("streams")
    unlogged = {"gateway-unlogged": {"stream.log_events": 0}}
    for count, pause_ms in ((1, 2), (100, 50), (1000, 1000)) if names else ():
        number = max(4, SECONDS * 1000 // pause_ms)
        with sides.Peers(names, unlogged, streaming=True, agent=(512, number, pause_ms)) as bench:
            measured = streams.delays(bench, bench.sides, ROUNDS, count)
        print(f"{count} streams, an event every {pause_ms} ms on each; {ROUNDS} rounds of {number} events,"
              f" {harness.THREADS} proxy thread(s); us, and what is more than {names[0]}")
        streams.tell(measured, names[0])
        told[f"{count} streams"] = measured
    number = 5000
    names = asked("streams", ["direct"])
    if not names:
        return results.write("streams", told)
    with sides.Peers(names, unlogged, streaming=True, agent=(512, number, 0)) as bench:
        measured = streams.delays(bench, bench.sides, ROUNDS, 16)
    print(f"16 streams of {number} events without a pause: events a second, CPU for each; x: against {names[0]}")
    for name, rounds in measured.items():
        of = medians(rounds)
        print(f"  {name:20} {of['rate']:8.0f}/s  x {ratio(measured, 'rate', name, names[0]):5.2f}"
              f"  CPU {of['cpu_us']:5.2f} us  x {ratio(measured, 'cpu_us', name, names[0]):5.2f}", flush=True)
    results.write("streams", {**told, "flow": measured})


def held():
    """Memory of open streams, and whether it comes back."""
    told = {}
    gateways = {"gateway": {"server.max_exchanges": 20000}, "gateway-unlogged": {
        "server.max_exchanges": 20000, "stream.log_events": 0, "stream.linger": "0s"}}
    for count in usage.numbers("peers", "STREAMS"):
        # Each side has two sockets for each stream, and some files of its own.
        count = min(count, (harness.LIMIT - 1000) // 2)
        print(f"{count} open streams, {harness.THREADS} proxy thread(s), {harness.LIMIT} open files", flush=True)
        with sides.Peers(asked("memory"), gateways, streaming=True) as bench:
            measured = {name: memory.streams(bench, name, count) for name in bench.sides}
            memory.fallen(bench, measured, 60)
        told[count] = measured
    results.write("memory", told)


def caches():
    """The first call of each of CALLERS workspaces to its sibling after a start, against the next ones."""
    count = usage.number("peers", "CALLERS")
    harness.progress(f"{count} workspaces are made")
    told = {"cold": [], "warm": []}
    with sides.Peers(["gateway"]) as bench:
        side = bench.sides["gateway"]
        tokens = [harness.workspace(side, f"many-{n}", "parent") for n in range(count)]
        requests = [bench.request(f"/workspaces/many-{(n + 1) % count}/a2a", "application/json", token=token)
                    for n, token in enumerate(tokens)]
        for number in range(ROUNDS):
            harness.progress(f"round {number + 1} of {ROUNDS}")
            bench.restart_gateway("gateway")
            for kind, rounds in told.items():
                before = side.cpu_seconds()
                done = loads.paced(side, requests, 0, 0, 16)
                rounds.append({**done, "cpu_us": 1e6 * (side.cpu_seconds() - before) / done["requests"]})
    tell(f"{count} callers, each to a target of its own, SQLite, 16 connections, each call once", told, "warm")
    results.write("caches", told)


CASES = {"unary": unary, "latency": latency, "paced": paced, "refusals": refusals, "tls": tls, "streams": events,
         "memory": held, "caches": caches}


def main():
    for name in usage.names("peers", "CASES"):
        if asked(name):
            harness.progress(f"case {name}")
            CASES[name]()
        else:
            print(f"{name} is left out: it has only {', '.join(usage.PEERS[name])}", file=sys.stderr, flush=True)
    if exceeded:
        raise SystemExit("\n".join(exceeded))


if __name__ == "__main__":
    harness.end_well()
    main()
