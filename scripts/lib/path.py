"""The whole path against bare pass-through. Started by `scripts/bench path`."""

import re
import statistics
import urllib.request

import harness
import loads
import results
import usage

ROUNDS, SECONDS, CONNECTIONS = (usage.GIVEN[name] for name in ("ROUNDS", "SECONDS", "CONNECTIONS"))


def store_operations():
    url = f"http://127.0.0.1:{harness.CONTROL}/metrics"
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    counts = re.findall(r"^a2a_gateway_store_seconds_count\{.*\} (\d+)", text, re.M)
    return sum(map(int, counts))


def main():
    with harness.Bench(usage.GIVEN["BODY_BYTES"]) as bench:
        compare(bench, {side: bench.wrk_script(side) for side in bench.sides})


def compare(bench, scripts, against=()):
    """Rounds by turns, and the ratios of the gateway to each other side; `against`: pairs of other sides besides."""
    harness.progress(f"{', '.join(bench.sides)}, {SECONDS} s each: they warm up")
    for name, side in bench.sides.items():
        loads.wrk(side.url, scripts[name], CONNECTIONS, SECONDS)
    measured = {name: [] for name in bench.sides}
    operations = store_operations()
    for number in range(ROUNDS):
        harness.progress(f"round {number + 1} of {ROUNDS}")
        for name, side in bench.sides.items():
            before = side.cpu_seconds()
            result = loads.wrk(side.url, scripts[name], CONNECTIONS, SECONDS)
            result["cpu_us"] = 1e6 * (side.cpu_seconds() - before) / result["requests"]
            measured[name].append(result)
    operations = store_operations() - operations
    print(f"{ROUNDS} alternating rounds of {SECONDS} s, {CONNECTIONS} connections, "
          f"{len(bench.body)} B body, {harness.THREADS} proxy thread(s)")
    median = {}
    for name, rounds in measured.items():
        median[name] = {key: statistics.median(r[key] for r in rounds) for key in ("rate", "cpu_us")}
        print(f"  {name:8} {median[name]['rate']:9.0f} requests/s  {median[name]['cpu_us']:6.1f} us CPU/request"
              f"  p50 {rounds[-1]['p50_us']:.0f}  p99 {rounds[-1]['p99_us']:.0f} us")
    for one, other in [*(("gateway", name) for name in bench.sides if name != "gateway"), *against]:
        rates = [mine["rate"] / theirs["rate"] for mine, theirs in zip(measured[one], measured[other])]
        print(f"  {one}/{other}, requests per second: {median[one]['rate'] / median[other]['rate']:.3f}"
              f"  (round by round {', '.join(f'{r:.2f}' for r in rates)}; their median {statistics.median(rates):.3f})")
        print(f"  {one}/{other}, CPU per request:     {median[one]['cpu_us'] / median[other]['cpu_us']:.3f}")
    requests = sum(r["requests"] for r in measured["gateway"])
    print(f"  store operations during {requests} gateway requests: {operations}"
          " (the sweep and flush in the background included)")
    # `observed` and `console` compare in this way, too.
    results.write(usage.WHAT, {"sides": measured, "store_operations": operations})


if __name__ == "__main__":
    harness.end_well()
    main()
