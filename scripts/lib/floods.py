"""Honest callers beside floods that want all of what callers share. Started by `scripts/bench floods [SECONDS]`.

Each flood lives in a process of its own. Honest load (`wrk`) is measured undisturbed and beside each, in the same run; an
honest call that is not answered by 200 ends it.
"""

import asyncio
import json
import multiprocessing
import random
import signal
import socket
import statistics

import harness
import loads
import usage

(SECONDS,) = usage.GIVEN.values()
HONEST = 16
# Seconds from an answer to the next try, which is what `Retry-After` says: what is refused at once would otherwise be a
# flood of requests, which is the matter of `peers refusals`.
PAUSE = 1
# Rounds by turns beside an agent that fails, whose aim is closer to undisturbed.
ROUNDS = 3

# Answers of agents that fail: what each sends before it closes the connection; None: it sends nothing, and does not close.
FAILURES = {
    "hangs": None,
    "resets": b"",
    "answers 503": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "breaks HTTP": b"HTTP/1.1 abc\r\n\r\n",
    "cuts streams": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                    b"9\r\ndata: {}\n\r\n",
}


def head(method, path, token, length, more=""):
    credential = f"Authorization: Bearer {token}\r\n" if token else ""
    return (f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{credential}{more}Content-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {length}\r\n\r\n").encode()


def push(token, address):
    """A call that names a host which is never answered."""
    def wire():
        url = f"http://{random.getrandbits(64):x}.silent.test/"
        params = {"message": {"kind": "message", "messageId": "m", "role": "user", "parts": []},
                  "configuration": {"pushNotificationConfig": {"url": url}}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}).encode()
        return head("POST", address, token, len(body)) + body
    return wire


def unfinished(path, token):
    """Most of a body of 1 MB."""
    wire = head("POST", path, token, 1_000_000) + b" " * 900_000
    return lambda: wire


def floods(token, outsider):
    """By name: connections at once, and what each sends. `outsider` sees no events of those who are called."""
    return {
        "strangers' bodies to the control plane": (300, unfinished("/registry/register", "")),
        "one caller's bodies to the control plane": (300, unfinished("/registry/heartbeat", token)),
        "one caller's bodies of calls": (300, unfinished(harness.A2A, token)),
        "one caller's calls that hold places": (300, lambda: head("POST", "/workspaces/held/a2a", token, 2) + b"{}"),
        "one caller's push URLs without an answer": (200, push(token, harness.A2A)),
        "one caller's event streams": (300, lambda: head("GET", "/events", outsider, 0)),
    }


async def flooder(wire, end):
    loop = asyncio.get_running_loop()
    while loop.time() < end:
        with socket.socket() as one:
            one.setblocking(False)
            try:
                await loop.sock_connect(one, ("127.0.0.1", harness.GATEWAY))
                await asyncio.wait_for(loop.sock_sendall(one, wire()), 5)
                # Until it is answered to its end, or the flood is over.
                while await asyncio.wait_for(loop.sock_recv(one, 65536), max(0.1, end - loop.time())):
                    await asyncio.sleep(PAUSE)
            except (asyncio.TimeoutError, OSError):
                pass
        await asyncio.sleep(PAUSE)


def flood(connections, wire, seconds):
    for one in harness.SIGNALS:
        signal.signal(one, signal.SIG_DFL)

    async def run():
        end = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(flooder(wire, end) for _ in range(connections)))

    asyncio.run(run())


def failing(listener, answer):
    """Serves an agent that fails."""
    for one in harness.SIGNALS:
        signal.signal(one, signal.SIG_DFL)

    async def serve(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            if answer is None:
                await reader.read()
            writer.write(answer or b"")
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        # Closed with a reset.
        writer.transport.abort()

    async def run():
        server = await asyncio.start_server(serve, sock=listener)
        await server.serve_forever()

    asyncio.run(run())


def silent_dns():
    """A server of names that answers nothing."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    return server


def load(script, seconds):
    url = f"http://127.0.0.1:{harness.GATEWAY}{harness.A2A}"
    done = loads.wrk(url, script, HONEST, seconds)
    return {"p50": done["p50_us"] / 1000, "p99": done["p99_us"] / 1000, "rate": done["rate"]}


def main():
    dns = silent_dns()
    gateways = {"gateway": {"address.nameservers": f"127.0.0.1:{dns.getsockname()[1]}"}}
    with harness.Bench(gateways=gateways) as bench, socket.socket() as held:
        # An agent that takes connections and says nothing.
        held.bind(("127.0.0.1", 0))
        held.listen(1024)
        side = bench.sides["gateway"]
        token = harness.workspace(side, "flooder", "parent")
        made = {"id": "held", "name": "held", "parent_id": "parent", "liveness": "assumed",
                "url": f"http://127.0.0.1:{held.getsockname()[1]}/"}
        harness.call(side, "POST", "/workspaces", harness.ADMIN, made)
        card = {"name": "held", "description": "held", "version": "1", "protocolVersion": "0.3.0"}
        harness.call(side, "POST", "/registry/register", harness.ADMIN, {"id": "held", "url": made["url"], "agent_card": card})
        outsider = harness.workspace(side, "outsider")
        script = bench.wrk_script("gateway")
        load(script, 5)
        harness.progress("the honest ones, undisturbed")
        before = load(script, SECONDS)
        show("undisturbed", before)
        late = [name for name, (connections, wire) in floods(token, outsider).items()
                if beside(name, connections, wire, script, side) > 3 * before["p99"]]
        for failure, answer in FAILURES.items():
            beside_a_failing_agent(failure, answer, (script, side, token))
    if late:
        raise SystemExit(f"not held: p99 over 3 times undisturbed beside {', '.join(late)}")


def beside(name, connections, wire, script, side):
    """The p99 of honest callers beside a flood."""
    harness.progress(f"{name}: {connections} connections")
    flooding = multiprocessing.Process(target=flood, args=(connections, wire, SECONDS + 4))
    flooding.start()
    try:
        # Until all have come.
        flooding.join(timeout=3)
        got = load(script, SECONDS)
        resident = side.memory_kib()["rss"] / 1024
        flooding.join()
    finally:
        flooding.kill()
    show(f"beside {name} ({resident:.0f} MiB resident)", got)
    return got["p99"]


def beside_a_failing_agent(failure, answer, case):
    """Honest callers of one agent, by turns alone and beside 32 callers of another agent, which fails."""
    script, side, token = case
    workspace = failure.replace(" ", "-")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        made = {"id": workspace, "name": workspace, "parent_id": "parent", "liveness": "assumed",
                "url": f"http://127.0.0.1:{listener.getsockname()[1]}/"}
        harness.call(side, "POST", "/workspaces", harness.ADMIN, made)
        agent = multiprocessing.Process(target=failing, args=(listener, answer))
        agent.start()
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": {
        "kind": "message", "messageId": "m", "role": "user", "parts": []}}}).encode()
    wire = head("POST", f"/workspaces/{workspace}/a2a", token, len(body), "X-Timeout: 1\r\n") + body
    alone, disturbed = [], []
    try:
        for number in range(ROUNDS):
            harness.progress(f"an agent that {failure}, round {number + 1} of {ROUNDS}")
            alone.append(load(script, max(1, SECONDS // ROUNDS)))
            calling = multiprocessing.Process(target=flood, args=(32, lambda: wire, SECONDS // ROUNDS + 3))
            calling.start()
            calling.join(timeout=2)
            disturbed.append(load(script, max(1, SECONDS // ROUNDS)))
            calling.join()
    finally:
        agent.kill()
    p99 = [statistics.median(one["p99"] for one in side) for side in (alone, disturbed)]
    print(f"  beside an agent that {failure}: p99 {p99[1]:.2f} ms, {p99[1] / p99[0]:.2f} of {p99[0]:.2f} ms alone", flush=True)


def show(name, got):
    print(f"  {name}: p50 {got['p50']:.2f} ms, p99 {got['p99']:.2f} ms, {got['rate']:.0f} requests/s", flush=True)


if __name__ == "__main__":
    harness.end_well()
    main()
