"""Memory per idle connection and per open stream, of the gateway and of bare Pingora pass-through.

Started by `scripts/bench memory`. Resident memory is read from /proc before and after; the agent that
keeps the streams open is another process.
"""

import os
import resource
import selectors
import socket
import time

import harness

IDLE, STREAMS = 2000, 1000


def rss_kib(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def connect(port, count):
    sockets = []
    for _ in range(count):
        sockets.append(socket.create_connection(("127.0.0.1", port), timeout=20))
    return sockets


def ask(sockets, request, until):
    """Sends `request` on each and reads until `until` was seen, a hundred at a time."""
    for start in range(0, len(sockets), 100):
        batch = sockets[start:start + 100]
        for one in batch:
            one.sendall(request)
        for one in batch:
            held = b""
            while until not in held:
                piece = one.recv(65536)
                if not piece:
                    raise SystemExit(f"closed after {held!r}")
                held += piece


def settle(pid):
    time.sleep(1.5)
    return rss_kib(pid)


def measure(name, pid, port, unary, stream):
    warm = connect(port, 64)
    ask(warm, unary, b'"result"')
    for one in warm:
        one.close()
    base = settle(pid)
    idle = connect(port, IDLE)
    fresh = settle(pid)
    ask(idle, unary, b'"result"')
    used = settle(pid)
    for one in idle:
        one.close()
    after = settle(pid)
    streams = connect(port, STREAMS)
    ask(streams, stream, b"data:")
    opened = settle(pid)
    for one in streams:
        one.close()
    time.sleep(10)
    end = rss_kib(pid)
    print(f"  {name:8} idle connection {(fresh - base) / IDLE:6.1f} KiB new, {(used - base) / IDLE:6.1f} KiB after a request;"
          f"  open stream {(opened - after) / STREAMS:6.1f} KiB"
          f"  (RSS {base / 1024:.0f} -> {opened / 1024:.0f} MiB at {STREAMS} streams, {end / 1024:.0f} MiB 10 s after)")


def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))
    with harness.Bench() as bench:
        print(f"{IDLE} idle connections, {STREAMS} open streams, {harness.THREADS} proxy thread(s),"
              f" {os.environ.get('ALLOCATOR', 'jemalloc')}")
        for name, (pid, port, path) in bench.sides.items():
            unary = bench.request(path, "application/json")
            stream = bench.request(path, "text/event-stream")
            measure(name, pid, port, unary, stream)


main()
