"""Honest callers beside very many that drip. Started by `scripts/bench slow [CONNECTIONS] [SECONDS]`.

The dripping ones live in a process of their own, and come back whenever they were let go: a quarter
each says nothing, drips a head, drips a body, and reads no answer. Honest load (`wrk`) is measured
before them and beside them, in the same run.
"""

import asyncio
import collections
import multiprocessing
import signal
import socket
import subprocess
import time

import harness
import loads
import usage

CONNECTIONS, SECONDS = usage.GIVEN.values()
HONEST = 16

# Seconds between two first arrivals: a flood is another matter.
STAGGER = 0.01

# Seconds that the default configuration gives each kind; a body's refusal may be read for 5 s more. One
# that does not read has 30 s for each answer, and kernels take some more bytes now and then, each of
# which lets one answer out: seen up to three times that.
CLOCKS = {"silent": 10, "head": 10, "body": 35, "blind": 95}
SLACK = 5


def rss_kib(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def open_sockets(pid):
    """Connections of callers that the gateway has open."""
    out = subprocess.run(["ss", "-Htn", "state", "established", f"( sport = :{harness.GATEWAY} )"],
                         capture_output=True, text=True, check=True).stdout
    return len(out.splitlines())


async def connect():
    one = socket.socket()
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", harness.GATEWAY))
    return one


async def caller(kind, number, wires, end, lives):
    """Comes back until `end`; notes how long each of its connections was borne."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(number * STAGGER)
    while time.monotonic() < end:
        one = await connect()
        begun = time.monotonic()
        try:
            await asyncio.wait_for(loop.sock_sendall(one, wires[kind]), 3)
        except (asyncio.TimeoutError, OSError):
            pass
        while True:
            await asyncio.sleep(1)
            try:
                if kind in ("head", "body"):
                    one.send(b"x")
                if kind == "blind":
                    # Not read: a write says when the gateway has gone.
                    one.send(b"\r\n")
                elif one.recv(65536) == b"":
                    break
            except BlockingIOError:
                pass
            except OSError:
                break
        lives[kind].append(time.monotonic() - begun)
        one.close()


def drip(wires, seconds, results):
    for one in harness.SIGNALS:
        signal.signal(one, signal.SIG_DFL)

    async def run():
        lives = collections.defaultdict(list)
        end = time.monotonic() + seconds
        kinds = list(CLOCKS)
        await asyncio.gather(*(caller(kinds[n % len(kinds)], n, wires, end, lives) for n in range(CONNECTIONS)))
        return dict(lives)

    results.put(asyncio.run(run()))


def load(script, seconds):
    url = f"http://127.0.0.1:{harness.GATEWAY}{harness.A2A}"
    done = loads.wrk(url, script, HONEST, seconds)
    return {"p50": done["p50_us"] / 1000, "p99": done["p99_us"] / 1000, "rate": done["rate"]}


def wires(bench):
    """What each kind sends at once."""
    head = f"POST {harness.A2A} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    refused = f"{head}Content-Length: 2\r\n\r\n{{}}"
    return {
        "silent": b"",
        "head": f"{head}X-Drip: ".encode(),
        "body": f"{head}Authorization: Bearer {bench.token}\r\nContent-Length: 100000\r\n\r\n".encode(),
        "blind": refused.encode() * 400,
    }


def main():
    with harness.Bench() as bench:
        script = bench.wrk_script("gateway")
        pid = bench.sides["gateway"].roots[0]
        harness.progress("the honest ones, undisturbed")
        load(script, 5)
        before = load(script, 20)
        rss = rss_kib(pid)
        results = multiprocessing.Queue()
        arriving = CONNECTIONS * STAGGER + 5
        dripping = multiprocessing.Process(target=drip, args=(wires(bench), SECONDS + arriving, results))
        harness.progress(f"those that drip arrive, in {arriving:.0f} s")
        dripping.start()
        try:
            measure(bench, script, dripping, results, before, rss, arriving)
        finally:
            dripping.kill()


def measure(bench, script, dripping, results, before, rss, arriving):
    """Beside those that drip, and after them."""
    pid = bench.sides["gateway"].roots[0]
    time.sleep(arriving)
    peak_open, began = open_sockets(pid), time.monotonic()
    harness.progress(f"the honest ones beside them, {SECONDS} s")
    beside = load(script, SECONDS)
    at_most, still = rss_kib(pid), open_sockets(pid)
    harness.progress(f"until the last was let go, up to {max(CLOCKS.values())} s")
    lives = results.get(timeout=300)
    dripping.join()
    waited = time.monotonic() - began
    time.sleep(2)
    left, after = open_sockets(pid), rss_kib(pid)
    report(before, beside, lives, (rss, at_most, after), (peak_open, still, left), waited)


def report(before, beside, lives, memory, opened, waited):
    print(f"{CONNECTIONS} connections that drip, {SECONDS} s, beside {HONEST} honest ones,"
          f" {harness.THREADS} proxy thread(s)")
    for name, got in (("undisturbed", before), ("beside them", beside)):
        print(f"  honest, {name}: p50 {got['p50']:.2f} ms, p99 {got['p99']:.2f} ms, {got['rate']:.0f} requests/s")
    ratio = beside["p99"] / before["p99"]
    print(f"  p99 beside/undisturbed: {ratio:.2f}")
    late = 0
    for kind, clock in CLOCKS.items():
        spans = sorted(lives[kind])
        late += sum(span > clock + SLACK for span in spans)
        print(f"  {kind:6} let go {len(spans)} times, after {spans[0]:.1f} to {spans[-1]:.1f} s (clock {clock} s)")
    print("  resident before %.0f MiB, with them %.0f MiB, after them %.0f MiB" % tuple(m / 1024 for m in memory))
    print(f"  connections open: {opened[0]} at the start, {opened[1]} at the end, {opened[2]} left"
          f" ({waited:.0f} s)")
    if ratio > 3 or late or opened[2]:
        raise SystemExit(f"not held: p99 ratio {ratio:.2f}, {late} let go late, {opened[2]} left open")


if __name__ == "__main__":
    harness.end_well()
    main()
