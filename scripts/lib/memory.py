"""Memory per idle connection and per open stream, of the gateway and of bare Pingora pass-through.

Started by `scripts/bench memory`. Resident memory is read from /proc before and after; the agent that
keeps the streams open is another process.
"""

import os
import resource
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


def warmed(pid, port, unary):
    """Resident memory after some traffic, so that lazily made things are not counted."""
    warm = connect(port, 64)
    ask(warm, unary, b'"result"')
    for one in warm:
        one.close()
    return settle(pid)


def idle(name, pid, port, unary):
    base = warmed(pid, port, unary)
    sockets = connect(port, IDLE)
    fresh = settle(pid)
    ask(sockets, unary, b'"result"')
    used = settle(pid)
    print(f"  {name:8} idle connection {(fresh - base) / IDLE:6.1f} KiB before its first request,"
          f" {(used - base) / IDLE:6.1f} KiB after it")


def streams(name, pid, port, unary, stream):
    base = warmed(pid, port, unary)
    sockets = connect(port, STREAMS)
    ask(sockets, stream, b"data:")
    opened = settle(pid)
    for one in sockets:
        one.close()
    time.sleep(10)
    end = rss_kib(pid)
    print(f"  {name:8} open stream {(opened - base) / STREAMS:6.1f} KiB"
          f"  (RSS {base / 1024:.0f} MiB, {opened / 1024:.0f} MiB with the streams, {end / 1024:.0f} MiB 10 s after)")


def main():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"{IDLE} idle connections, {STREAMS} open streams, {harness.THREADS} proxy thread(s),"
          f" {os.environ.get('ALLOCATOR', 'jemalloc')}")
    # Each in a fresh process: freed memory that was not given back would hide what comes next.
    for measured in (idle, streams):
        with harness.Bench() as bench:
            for name, (pid, port, path) in bench.sides.items():
                requests = [bench.request(path, "application/json")]
                if measured is streams:
                    requests.append(bench.request(path, "text/event-stream"))
                measured(name, pid, port, *requests)


main()
