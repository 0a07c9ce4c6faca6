"""Memory per idle connection and per open stream, of the gateway and of bare Pingora pass-through.

Started by `scripts/bench memory`; `scripts/bench peers` measures the streams of its sides. Memory is read from /proc
before and after, of all processes of a side; the agent that keeps the streams open is another process.
"""

import os
import socket
import time

import harness
import results

IDLE, STREAMS = 2000, 1000


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


def settle(side):
    time.sleep(1.5)
    return side.memory_kib()


def warmed(side, unary):
    """Memory after some traffic, so that lazily made things are not counted."""
    warm = connect(side.port, 64)
    ask(warm, unary, b'"result"')
    for one in warm:
        one.close()
    return settle(side)


def each(more, base, count):
    return {name: (more[name] - base[name]) / count for name in base}


def idle(bench, name):
    harness.progress(f"{name}: {IDLE} idle connections")
    side = bench.sides[name]
    unary = bench.request(side.path, "application/json", name)
    base = warmed(side, unary)
    sockets = connect(side.port, IDLE)
    fresh = each(settle(side), base, IDLE)
    ask(sockets, unary, b'"result"')
    used = each(settle(side), base, IDLE)
    for one in sockets:
        one.close()
    print(f"  {name:14} idle connection {fresh['rss']:6.1f} KiB before its first request,"
          f" {used['rss']:6.1f} KiB after it", flush=True)
    return {"fresh_kib": fresh, "used_kib": used}


def streams(bench, name, count):
    """Opens that many streams at a side, measures, and closes them."""
    harness.progress(f"{name}: {count} streams are opened, and closed")
    side = bench.sides[name]
    base = warmed(side, bench.request(side.path, "application/json", name))
    stream, sockets = bench.request(side.path, "text/event-stream", name), []
    while len(sockets) < count:
        # Not all at once: a connection has ten seconds until its first request.
        batch = connect(side.port, min(100, count - len(sockets)))
        ask(batch, stream, b"data:")
        sockets += batch
    opened = settle(side)
    for one in sockets:
        one.close()
    closed = time.monotonic()
    time.sleep(10)
    return {"streams": count, "each_kib": each(opened, base, count), "before_kib": base, "open_kib": opened,
            "after_10s_kib": side.memory_kib(), "closed": closed}


def fallen(bench, measured, seconds):
    """Memory so long after the streams of each were closed, and what there is to tell."""
    harness.progress(f"{seconds} s after they were closed")
    for name, of in measured.items():
        time.sleep(max(0, of.pop("closed") + seconds - time.monotonic()))
        of[f"after_{seconds}s_kib"] = bench.sides[name].memory_kib()
        shown = [of[key]["rss"] / 1024 for key in ("before_kib", "open_kib", "after_10s_kib", f"after_{seconds}s_kib")]
        print(f"  {name:14} open stream {of['each_kib']['rss']:6.1f} KiB RSS, {of['each_kib']['pss']:6.1f} PSS"
              "  (RSS %.0f MiB, %.0f with the streams, %.0f 10 s after, %.0f %d s after)" % (*shown, seconds), flush=True)


def main():
    print(f"{IDLE} idle connections, {STREAMS} open streams, {harness.THREADS} proxy thread(s),"
          f" {os.environ.get('ALLOCATOR', 'jemalloc')}")
    # Each in a fresh process: freed memory that was not given back would hide what comes next.
    with harness.Bench() as bench:
        of_idle = {name: idle(bench, name) for name in bench.sides}
    with harness.Bench() as bench:
        of_streams = {name: streams(bench, name, STREAMS) for name in bench.sides}
        fallen(bench, of_streams, 60)
    results.write("memory", {"idle": of_idle, "streams": of_streams})


if __name__ == "__main__":
    harness.end_well()
    main()
