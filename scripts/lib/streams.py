"""The delay of events in a stream: from the agent's write to the caller's read, in microseconds.

Started by `scripts/bench streams`. The agent, another process, writes its clock into each event; both read the
clock of the machine.
"""

import re
import socket
import statistics
import sys
import time

import harness

AGENT = sys.argv[1:2] == ["--agent"]
ROUNDS, EVENTS, PAUSE_MS = (0, int(sys.argv[2]), int(sys.argv[3])) if AGENT else (
    int(sys.argv[n]) if len(sys.argv) > n else default for n, default in ((1, 5), (2, 2000), (3, 2)))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SENT = re.compile(rb"@(\d+)@")


def agent(address):
    """Answers each request with EVENTS events, PAUSE_MS apart."""
    host, port = address.split(":")
    with socket.create_server((host, int(port))) as server:
        while True:
            with server.accept()[0] as connection:
                try:
                    answer(connection)
                except OSError:
                    pass


def answer(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    held = b""
    while b"\r\n\r\n" not in held:
        piece = connection.recv(65536)
        if not piece:
            return
        held += piece
    head, body = held.split(b"\r\n\r\n", 1)
    length = int(re.search(rb"(?i)content-length: *(\d+)", head).group(1))
    while len(body) < length:
        body += connection.recv(65536)
    connection.sendall(HEAD)
    for _ in range(EVENTS):
        time.sleep(PAUSE_MS / 1000)
        event = b'data: {"jsonrpc":"2.0","id":1,"result":{"kind":"status-update","taskId":"t","contextId":"c",' \
            b'"status":{"state":"working"},"final":false,"metadata":{"at":"@%d@"}}}\n\n' % time.monotonic_ns()
        connection.sendall(b"%x\r\n%s\r\n" % (len(event), event))
    connection.sendall(b"0\r\n\r\n")


def delays(port, request):
    """The delay of each event of one stream."""
    found, held = [], b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        while len(found) < EVENTS:
            piece = connection.recv(65536)
            now = time.monotonic_ns()
            if not piece:
                raise SystemExit(f"the stream ended after {len(found)} events: {held[-300:]!r}")
            held += piece
            end = 0
            for match in SENT.finditer(held):
                found.append((now - int(match.group(1))) / 1000)
                end = match.end()
            held = held[end:]
    return found


def at(sorted_delays, part):
    return sorted_delays[min(len(sorted_delays) - 1, int(len(sorted_delays) * part))]


def main():
    gateways = {"gateway": {}, "unlogged": {"stream.log_events": 0}}
    with harness.Bench(gateways=gateways, agent=[sys.executable, __file__, "--agent", str(EVENTS), str(PAUSE_MS)]) as bench:
        results = {name: [] for name in bench.sides}
        for number in range(ROUNDS + 1):
            for name, (_, port, path) in bench.sides.items():
                measured = sorted(delays(port, bench.request(path, "text/event-stream", name)))
                # The first round warms up.
                if number:
                    results[name].append(measured)
    print(f"{ROUNDS} alternating streams of {EVENTS} events, {PAUSE_MS} ms apart, {harness.THREADS} proxy thread(s);"
          " microseconds, medians of the rounds")
    parts = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    median = {name: {part: statistics.median(at(one, value) for one in rounds) for part, value in parts.items()}
              for name, rounds in results.items()}
    for name, of in median.items():
        print(f"  {name:8} " + "  ".join(f"{part} {of[part]:6.0f}" for part in parts))
    for other in [name for name in median if name != "gateway"]:
        print(f"  gateway - {other}: "
              + "  ".join(f"{part} {median['gateway'][part] - median[other][part]:+.0f}" for part in parts))


if AGENT:
    agent(sys.argv[4])
else:
    main()
