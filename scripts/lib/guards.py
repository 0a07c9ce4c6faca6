"""What guards cost: patterns, and a service over loopback that passes all. Started by `scripts/bench guards`."""

import asyncio
import concurrent.futures
import json
import multiprocessing
import signal
import socket
import statistics
import time
import urllib.error
import urllib.request

import harness
import loads
import path
import usage

ROUNDS, SECONDS, CONNECTIONS = (usage.GIVEN[name] for name in ("ROUNDS", "SECONDS", "CONNECTIONS"))
# Callers of the target whose guard hangs.
HUNG = 32
VERDICT = b'{"action":"pass"}'
PATTERNS = {"name": "patterns", "builtin": "patterns", "patterns": [
    {"name": "aws-key", "regex": "AKIA[0-9A-Z]{16}"},
    {"name": "private-key", "regex": "-----BEGIN [A-Z ]*PRIVATE KEY-----"},
    {"name": "email", "regex": "[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+", "action": "mask"}]}


class Guard(asyncio.Protocol):
    """Answers each question once its body is there."""

    def connection_made(self, transport):
        self.transport, self.held = transport, b""

    def data_received(self, data):
        self.held += data
        while b"\r\n\r\n" in self.held:
            head, body = self.held.split(b"\r\n\r\n", 1)
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            if len(body) < length:
                return
            self.held = body[length:]
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                                 b"Content-Length: %d\r\n\r\n%s" % (len(VERDICT), VERDICT))


def serve(listener):
    for one in harness.SIGNALS:
        signal.signal(one, signal.SIG_DFL)

    async def run():
        server = await asyncio.get_running_loop().create_server(Guard, sock=listener)
        await server.serve_forever()

    asyncio.run(run())


def main():
    answering, hanging = (socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(2))
    guard = multiprocessing.Process(target=serve, args=(answering,), daemon=True)
    guard.start()
    service, spared = ({"name": "service", "url": f"http://127.0.0.1:{one.getsockname()[1]}/", "phases": ["request"]}
                       for one in (answering, hanging))
    spared["targets"] = ["other"]
    gateways = {"gateway": {"guard": json.dumps([PATTERNS])}, "plain": {}, "service": {"guard": json.dumps([service])},
                "spared": {"guard": json.dumps([spared])}}
    print("gateway: three patterns in every phase; service: a guard over loopback for requests; plain: none; "
          "spared: a guard that hangs, for another target")
    try:
        with harness.Bench(512, gateways) as bench:
            scripts = {side: bench.wrk_script(side) for side in bench.sides}
            path.compare(bench, scripts, [("gateway", "plain"), ("service", "plain")])
            latency(bench, scripts)
            beside(bench, scripts)
    finally:
        guard.kill()


def latency(bench, scripts):
    """One connection: the delay that each adds to that of none at p50."""
    taken = {side: [] for side in ("plain", "gateway", "service")}
    for number in range(ROUNDS):
        harness.progress(f"one connection, round {number + 1} of {ROUNDS}")
        for side, rounds in taken.items():
            rounds.append(loads.wrk(bench.sides[side].url, scripts[side], 1, SECONDS)["p50_us"])
    plain = taken.pop("plain")
    print(f"  one connection: plain p50 {statistics.median(plain):.0f} us")
    for side, rounds in taken.items():
        added = [mine - theirs for mine, theirs in zip(rounds, plain)]
        print(f"    {side}: +{statistics.median(added):.0f} us (round by round {', '.join(f'{us:.0f}' for us in added)})")


def beside(bench, scripts):
    """Callers of a target without a guard, alone and beside callers of one whose guard does not answer."""
    side = bench.sides["spared"]
    harness.workspace(side, "other", "parent")
    other = side.url.replace("/target/", "/other/")
    alone, disturbed = [], []
    for number in range(ROUNDS):
        harness.progress(f"beside a guard that hangs, round {number + 1} of {ROUNDS}")
        alone.append(loads.wrk(side.url, scripts["spared"], CONNECTIONS, SECONDS))
        with concurrent.futures.ThreadPoolExecutor(HUNG) as pool:
            callers = [pool.submit(refused, other, side.token, bench.body) for _ in range(HUNG)]
            disturbed.append(loads.wrk(side.url, scripts["spared"], CONNECTIONS, SECONDS))
            for caller in callers:
                caller.result()
    for figure in ("rate", "p99_us"):
        ratios = [mine[figure] / theirs[figure] for mine, theirs in zip(disturbed, alone)]
        print(f"  a target without a guard beside one whose guard hangs, {figure}: {statistics.median(ratios):.3f} of alone "
              f"(round by round {', '.join(f'{ratio:.2f}' for ratio in ratios)})")


def refused(url, token, body):
    """Calls until the time is over, with the pause that `Retry-After` asks for."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        request = urllib.request.Request(url, body.encode(), {"Authorization": f"Bearer {token}",
                                                              "Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request, timeout=30)
            raise loads.Failed("a call passed a guard that hangs")
        except urllib.error.HTTPError as refusal:
            refusal.read()
        time.sleep(1)


if __name__ == "__main__":
    harness.end_well()
    main()
