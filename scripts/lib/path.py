"""The whole path against bare pass-through. Started by `scripts/bench path`."""

import os
import re
import statistics
import sys
import urllib.request

import harness
import loads
import results

ROUNDS, SECONDS, CONNECTIONS, BODY_BYTES = (
    int(sys.argv[n]) if len(sys.argv) > n else default for n, default in ((1, 5), (2, 5), (3, 64), (4, 512)))


def store_operations():
    url = f"http://127.0.0.1:{harness.CONTROL}/metrics"
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    counts = re.findall(r"^a2a_gateway_store_seconds_count\{.*\} (\d+)", text, re.M)
    return sum(map(int, counts))


def main():
    with harness.Bench(BODY_BYTES) as bench:
        compare(bench, {side: bench.wrk_script(side) for side in bench.sides})


def compare(bench, scripts):
    for name, side in bench.sides.items():
        loads.wrk(side.url, scripts[name], CONNECTIONS, SECONDS)
    measured = {name: [] for name in bench.sides}
    operations = store_operations()
    for _ in range(ROUNDS):
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
    for other in [name for name in bench.sides if name != "gateway"]:
        rates = [g["rate"] / b["rate"] for g, b in zip(measured["gateway"], measured[other])]
        print(f"  gateway/{other}, requests per second: {median['gateway']['rate'] / median[other]['rate']:.3f}"
              f"  (round by round {', '.join(f'{r:.2f}' for r in rates)}; their median {statistics.median(rates):.3f})")
        print(f"  gateway/{other}, CPU per request:     {median['gateway']['cpu_us'] / median[other]['cpu_us']:.3f}")
    requests = sum(r["requests"] for r in measured["gateway"])
    print(f"  store operations during {requests} gateway requests: {operations}"
          " (the sweep and flush in the background included)")
    # `observed` and `console` compare in this way, too.
    results.write(os.path.basename(sys.argv[0]).removesuffix(".py"), {"sides": measured, "store_operations": operations})


if __name__ == "__main__":
    main()
