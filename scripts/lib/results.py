"""What a benchmark measured, as a file in bench/results/: the raw rounds, and all that is needed to judge them."""

import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time

import harness

FOLDER = "bench/results"
PROGRAMS = {
    "nginx": ["nginx", "-v"], "haproxy": ["haproxy", "-v"], "node": ["node", "--version"], "wrk": ["wrk", "-v"],
    "h2load": ["h2load", "--version"], "rustc": ["rustc", "--version"],
    "postgres": ["psql", "--version"], "redis": ["redis-server", "--version"],
    "gateway": [f"{harness.BIN}/a2a-gateway", "--version"],
}
# What the environment decides, and the raw data names.
SETTINGS = ("THREADS", "BIN", "BEFORE", "CASES", "SIDES", "BODIES", "CONNECTIONS", "RATE", "STREAMS", "PIN", "PROOF",
            "WORKSPACES", "CALLERS", "STORES", "SEED", "FAULTS", "PEERS")


def first_line(command):
    environment = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"}
    try:
        run = subprocess.run(command, capture_output=True, text=True, env=environment)
    except FileNotFoundError:
        return None
    return next(iter((run.stdout + run.stderr).strip().splitlines()), None)


def identity(binary):
    """Which one it was: with BIN or BEFORE, the commit of this folder says nothing of it."""
    try:
        with open(binary, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()[:12]
        modified = time.gmtime(os.path.getmtime(binary))
    except OSError:
        return None
    return {"sha256": digest, "modified": time.strftime("%Y-%m-%dT%H:%M:%SZ", modified)}


# As they are when the run begins.
BINARY = identity(f"{harness.BIN}/a2a-gateway")
BEFORE = harness.BEFORE and identity(harness.BEFORE)


def cpu_model():
    with open("/proc/cpuinfo") as info:
        return next((line.split(":")[1].strip() for line in info if line.startswith("model name")), platform.machine())


def about(script):
    with open("Cargo.lock") as lock:
        pingora = re.search(r'name = "pingora"\nversion = "(.*)"', lock.read())
    versions = {name: first_line(command) for name, command in PROGRAMS.items()}
    versions |= {"pingora": pingora and pingora.group(1), "python": platform.python_version()}
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": first_line(["git", "describe", "--always", "--dirty", "--abbrev=12"]),
        "binary": BINARY, **({"before": BEFORE} if BEFORE else {}),
        "command": shlex.join([*script, *sys.argv[1:]]),
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        "machine": {"cpu": cpu_model(), "cores": len(harness.CORES), "kernel": platform.release(),
                    "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
                    "load_average": list(os.getloadavg())},
        "versions": {name: version for name, version in versions.items() if version},
    }


def write(case, measured, script=None):
    """`script`: what was started, where that is not `scripts/bench` with the name of the file that runs."""
    script = script or ["scripts/bench", os.path.basename(sys.argv[0]).removesuffix(".py")]
    os.makedirs(FOLDER, exist_ok=True)
    file = f"{FOLDER}/{case}-{time.strftime('%Y-%m-%dT%H%M%S', time.gmtime())}.json"
    with open(file, "w") as out:
        json.dump({"case": case, **about(script), "measured": measured}, out, indent=1)
        out.write("\n")
    print(f"  written to {file}", flush=True)
