"""Where a call's CPU time, allocations and system calls go, at the gateway and at bare pass-through.

Started by `scripts/bench profile [SECONDS]`, as root: `perf record` for the time by thread and library, uprobes on the
allocator for the allocations, `strace -c` for the calls. The binaries need their symbols; the script says how.
"""

import collections
import os
import re
import signal
import subprocess
import tempfile
import time

import harness
import loads
import memory
import results
import usage

SECONDS = usage.GIVEN["SECONDS"]
CALLS = 2000
# Where the allocator keeps the length that is asked for: its second argument, or its first.
PROBES = ["m=_rjem_malloc size=%di", "c=_rjem_calloc n=%di size=%si", "x=_rjem_mallocx size=%di",
          "r=_rjem_rallocx size=%si", "e=_rjem_realloc size=%si"]


# What a library belongs to, on all threads but those of the audit; bare pass-through's own code is Pingora's proxy.
AUDIT = ("BG audit", "sqlx-sqlite-wor")
PARTS = {
    "kernel": ["kernel"],
    "signature and hashes": ["aws-lc (signature, hashes)"],
    "audit, all of its threads": [],
    "own code (bare: pingora_proxy)": ["a2a_gateway", "pingora_proxy"],
    "tokio, core, alloc, std, clocks": ["tokio", "core", "alloc", "std", "[vdso]"],
    "allocator and libc": ["allocator", "libc.so.6"],
    "pingora, http, bytes": ["pingora_core", "pingora_http", "http", "bytes"],
    "caches and the rest": []}


def parts(shares):
    """The shares of each thread and library, by part."""
    found = dict.fromkeys(PARTS, 0.0)
    for (thread, what), share in shares.items():
        part = next((part for part, libraries in PARTS.items() if what in libraries), "caches and the rest")
        found["audit, all of its threads" if thread in AUDIT else part] += share
    return found


def sample(side, folder, load):
    """What share of the samples each thread and library has while `load` runs."""
    data = f"{folder}/perf.data"
    perf = subprocess.Popen(
        ["perf", "record", "-q", "-e", "cpu-clock", "-F", "1999", "-p", str(side.roots[0]), "-o", data,
         "--", "sleep", str(SECONDS)], stderr=subprocess.DEVNULL)
    used, done = side.cpu_seconds(), load(SECONDS + 1)
    used = 1e6 * (side.cpu_seconds() - used) / done["requests"]
    perf.wait()
    lines = subprocess.run(["perf", "script", "-i", data, "-F", "comm,ip,sym,dso"],
                           capture_output=True, text=True).stdout.splitlines()
    found = collections.Counter()
    for line in lines:
        parts = re.match(r"\s*(\S.*?)\s+[0-9a-f]+\s+(.*)\s+\((.*)\)$", line)
        if parts:
            thread, symbol, image = parts.groups()
            found[thread.strip(), library(symbol, image)] += 1
    total = max(1, found.total())
    return used, {key: used * count / total for key, count in found.items()}


def library(symbol, image):
    if "kernel" in image or symbol.startswith("[k]"):
        return "kernel"
    if symbol.startswith(("_rjem", "je_", "do_rallocx", "extent_", "emap_")):
        return "allocator"
    if "curve25519" in symbol or "edwards25519" in symbol or "aws_lc" in symbol or "bignum" in symbol:
        return "aws-lc (signature, hashes)"
    if symbol.startswith("sqlite3") or "libsqlite" in symbol:
        return "sqlite"
    crate = re.search(r"([a-z_0-9]+)::", symbol)
    return crate.group(1) if crate else os.path.basename(image)


def allocations(side, ask):
    """Allocations and bytes of each call, by thread; growing one counts as one."""
    binary = os.readlink(f"/proc/{side.roots[0]}/exe")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["perf", "probe", "-q", "-d", "a2a_bench:*"], **quiet)
    for probe in PROBES:
        if subprocess.run(["perf", "probe", "-q", "-x", binary, f"a2a_bench:{probe}"], **quiet).returncode:
            return None
    try:
        with tempfile.NamedTemporaryFile() as data:
            perf = subprocess.Popen(["perf", "record", "-q", "-e", "a2a_bench:*", "-m", "8M",
                                     "-p", str(side.roots[0]), "-o", data.name], **quiet)
            time.sleep(2)
            for _ in range(CALLS):
                ask()
            time.sleep(1)
            perf.send_signal(signal.SIGINT)
            perf.wait()
            lines = subprocess.run(["perf", "script", "-i", data.name, "-F", "comm,trace"],
                                   capture_output=True, text=True).stdout.splitlines()
    finally:
        subprocess.run(["perf", "probe", "-q", "-d", "a2a_bench:*"], **quiet)
    counts, lengths = collections.Counter(), collections.Counter()
    for line in lines:
        parts = re.match(r"\s*(\S.*?)\s+\([0-9a-f]+\)\s*(?:n=(\S+) )?size=(\S+)", line)
        if parts:
            thread, number, size = parts.groups()
            counts[thread.strip()] += 1
            lengths[thread.strip()] += int(size, 16) * int(number or "1", 16)
    return {thread: {"count": count / CALLS, "bytes": lengths[thread] / CALLS}
            for thread, count in counts.most_common(6)}


def system_calls(side, folder, load):
    """System calls of each request, by name."""
    told = f"{folder}/strace.txt"
    strace = subprocess.Popen(["strace", "-f", "-c", "-p", str(side.roots[0]), "-o", told], stderr=subprocess.DEVNULL)
    time.sleep(1)
    done = load(SECONDS)["requests"]
    strace.send_signal(signal.SIGINT)
    strace.wait()
    with open(told) as file:
        rows = [line.split() for line in file]
    return {row[-1]: int(row[3]) / done for row in rows if len(row) >= 5 and row[3].isdigit() and row[-1] != "total"}


def main():
    measured = {}
    with harness.Bench(pinned=True) as bench:
        for name, side in bench.sides.items():
            script = bench.wrk_script(name)

            def load(seconds):
                return loads.wrk(side.url, script, 64, seconds)

            harness.progress(f"{name}: CPU time, {SECONDS} s")
            load(2)
            used, shares = sample(side, bench.folder, load)
            harness.progress(f"{name}: system calls, {SECONDS} s")
            calls = system_calls(side, bench.folder, load)
            harness.progress(f"{name}: allocations of {CALLS} calls")
            one, request = memory.connect(side.port, 1), bench.request(side.path, "application/json", name)
            counted = allocations(side, lambda: memory.ask(one, request, b'"result"'))
            measured[name] = {
                "cpu_us": used, "shares_us": {" / ".join(key): share for key, share in shares.items()},
                "system_calls": calls, "allocations": counted}
            print(f"{name}: {used:.1f} us of CPU a request")
            for part, share in parts(shares).items():
                print(f"  {share:6.1f} us  {part}")
            print("  the same by thread and library, the largest:")
            for (thread, what), share in sorted(shares.items(), key=lambda one: -one[1])[:24]:
                print(f"  {share:6.1f} us  {thread:16} {what}")
            print("  system calls: " + ", ".join(f"{call} {count:.2f}" for call, count in calls.items() if count >= 0.05))
            if counted is None:
                print("  no symbols: build with `cargo rustc --release --bin a2a-gateway -- -C strip=none`"
                      " and the same with `--example passthrough`")
            for thread, of in (counted or {}).items():
                print(f"  allocations: {thread:16} {of['count']:6.1f}  {of['bytes']:8.0f} B", flush=True)
    results.write("profile", measured)


if __name__ == "__main__":
    harness.end_well()
    main()
