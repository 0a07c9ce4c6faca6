"""The load generators: `wrk` (closed loop), `h2load` (HTTP/2) and `examples/load` (paced, streams). Times in µs."""

import json
import re
import statistics
import subprocess
import tempfile

import harness


class Failed(SystemExit):
    """The load had errors, which no number should hide."""


UNITS = {"us": 1, "ms": 1e3, "s": 1e6, "m": 60e6}


def micros(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()
    return float(number) * UNITS[unit]


def wrk(url, script, connections, seconds, refused=False):
    """As fast as answers come. `refused`: all answers have to be refusals, else all have to be answers."""
    out = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "--latency", "-s", script, url],
        capture_output=True, text=True, check=True).stdout
    requests = int(re.search(r"(\d+) requests in", out).group(1))
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    errors = re.search(r"Socket errors: (.*)", out)
    if (int(bad.group(1)) if bad else 0) != (requests if refused else 0) or not requests or errors:
        raise Failed(f"the load had errors, or no answer in time, at {url}:\n{out}")
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", out).group(1))
    p50, p99 = (micros(re.search(rf"^ +{part}% +(\S+)", out, re.M).group(1)) for part in (50, 99))
    return {"requests": requests, "rate": rate, "p50_us": p50, "p99_us": p99}


def h2load(url, token, body, connections, streams, seconds):
    """HTTP/2, as fast as answers come: `streams` requests at once on each connection."""
    with tempfile.NamedTemporaryFile("w") as data, tempfile.NamedTemporaryFile("r") as log:
        data.write(body)
        data.flush()
        out = subprocess.run(
            ["h2load", "-t1", f"-c{connections}", f"-m{streams}", f"-D{seconds}", f"-d{data.name}",
             f"--log-file={log.name}", "-H", f"authorization: Bearer {token}", "-H", "content-type: application/json", url],
            capture_output=True, text=True, check=True).stdout
        # Start, status, and how long it took.
        answers = [line.split() for line in log]
    if "Application protocol: h2" not in out or any(status != "200" for _, status, _ in answers):
        raise Failed(f"the load had errors at {url}:\n{out}")
    done = int(re.search(r"(\d+) 2xx", out).group(1))
    rate = float(re.search(r"finished in \S+ ([\d.]+) req/s", out).group(1))
    taken = sorted(float(took) for *_, took in answers)
    return {"requests": done, "rate": rate, "p50_us": statistics.median(taken), "p99_us": taken[int(len(taken) * 0.99)]}


def _load(what, side, requests, *numbers, **options):
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\0".join(requests))
        file.flush()
        command = [f"{harness.BIN}/examples/load", what, f"127.0.0.1:{side.port}", file.name, *map(str, numbers)]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options).stdout)


def paced(side, requests, rate, seconds, connections):
    """That many requests a second, latency counted from when each was due. `rate` 0: each once."""
    told = _load("requests", side, requests, rate, seconds, connections)
    of = told["requests"]
    if of["refused"] or told["unanswered"] or told["dropped"]:
        raise Failed(f"the load had errors: {told}")
    took = {f"{name}_us": of[f"{name}_ms"] * 1000 for name in ("p50", "p99", "p999", "max")}
    return {"requests": of["ok"], "rate": of["ok"] / told["answered_in"], **took}


def refused(side, requests):
    """Each once, one after the other; all have to be refused."""
    # It prints the first refusal.
    told = _load("requests", side, requests, 0, 0, 1, stderr=subprocess.DEVNULL)
    count = told["requests"]["refused"]
    if told["requests"]["ok"] or told["unanswered"] or told["dropped"]:
        raise Failed(f"not all were refused: {told}")
    return {"requests": count, "mean_us": 1e6 * told["answered_in"] / count}


def streams(side, request, count):
    """The delay of events in streams that are read to their ends."""
    told = _load("streams", side, [request], count)
    if told["ended"] != count:
        raise Failed(f"streams did not end: {told}")
    return {**told, "rate": told["events"] / max(told["seconds"], 1e-9)}
