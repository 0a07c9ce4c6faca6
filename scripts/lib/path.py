"""The whole path against bare pass-through. Started by `scripts/bench path`."""

import re
import statistics
import subprocess
import sys
import urllib.request

import harness

ROUNDS, SECONDS, CONNECTIONS, BODY_BYTES = (
    int(sys.argv[n]) if len(sys.argv) > n else default for n, default in ((1, 5), (2, 5), (3, 64), (4, 512)))


def store_operations():
    url = f"http://127.0.0.1:{harness.CONTROL}/metrics"
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    counts = re.findall(r"^a2a_gateway_store_seconds_count\{.*\} (\d+)", text, re.M)
    return sum(map(int, counts))


def load(port, path, script):
    out = subprocess.run(
        ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "--latency", "-s", script,
         f"http://127.0.0.1:{port}{path}"],
        capture_output=True, text=True, check=True,
    ).stdout
    requests = int(re.search(r"(\d+) requests in", out).group(1))
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", out).group(1))
    p50 = re.search(r"50%\s+(\S+)", out).group(1)
    p99 = re.search(r"99%\s+(\S+)", out).group(1)
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    errors = re.search(r"Socket errors: (.*)", out)
    if bad or (errors and not re.fullmatch(r"connect 0, read 0, write 0, timeout 0", errors.group(1))):
        raise SystemExit(f"the load had errors:\n{out}")
    return {"requests": requests, "rate": rate, "p50": p50, "p99": p99}


def main():
    with harness.Bench(BODY_BYTES) as bench:
        compare(bench, {side: bench.wrk_script(side) for side in bench.sides})


def compare(bench, scripts):
    for name, (_, port, path) in bench.sides.items():
        load(port, path, scripts[name])
    results = {name: [] for name in bench.sides}
    operations = store_operations()
    for _ in range(ROUNDS):
        for name, (pid, port, path) in bench.sides.items():
            before = harness.cpu_seconds(pid)
            result = load(port, path, scripts[name])
            result["cpu_us"] = 1e6 * (harness.cpu_seconds(pid) - before) / result["requests"]
            results[name].append(result)
    operations = store_operations() - operations
    print(f"{ROUNDS} alternating rounds of {SECONDS} s, {CONNECTIONS} connections, "
          f"{len(bench.body)} B body, {harness.THREADS} proxy thread(s)")
    median = {}
    for name, rounds in results.items():
        median[name] = {key: statistics.median(r[key] for r in rounds) for key in ("rate", "cpu_us")}
        print(f"  {name:8} {median[name]['rate']:9.0f} requests/s  {median[name]['cpu_us']:6.1f} us CPU/request"
              f"  p50 {rounds[-1]['p50']}  p99 {rounds[-1]['p99']}")
    for other in [name for name in bench.sides if name != "gateway"]:
        rates = [g["rate"] / b["rate"] for g, b in zip(results["gateway"], results[other])]
        print(f"  gateway/{other}, requests per second: {median['gateway']['rate'] / median[other]['rate']:.3f}"
              f"  (round by round {', '.join(f'{r:.2f}' for r in rates)}; their median {statistics.median(rates):.3f})")
        print(f"  gateway/{other}, CPU per request:     {median['gateway']['cpu_us'] / median[other]['cpu_us']:.3f}")
    requests = sum(r["requests"] for r in results["gateway"])
    print(f"  store operations during {requests} gateway requests: {operations}"
          " (the sweep and flush in the background included)")


if __name__ == "__main__":
    main()
