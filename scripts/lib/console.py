"""What an open console costs the gateway, and how the page stands 5,000 workspaces and 200 exchanges a second. Started by
`scripts/bench console`, which names the folder of the browser's packages in PAGES_PACKAGES.
"""

import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time

import harness
import path
import usage

WORKSPACES, RATE = (usage.number("console", name) for name in ("WORKSPACES", "RATE"))

# Connections that share the paced load.
LANES = 8


def fill(port, count):
    """Workspaces in a tree, each child's parent made before it; every one can be called."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"authorization": f"Bearer {harness.ADMIN}", "content-type": "application/json"}
    for n in range(count):
        made = {"id": f"ws-{n:05}", "name": f"Workspace {n}", "max_concurrent": 256, "liveness": "assumed",
                "url": f"http://127.0.0.1:{harness.AGENT}/", "parent_id": f"ws-{(n - 1) // 8:05}" if n else None}
        connection.request("POST", "/workspaces", json.dumps(made), headers)
        answer = connection.getresponse()
        if answer.status != 201:
            raise SystemExit(f"{answer.status} {answer.read().decode()}")
        answer.read()


class Reader(threading.Thread):
    """A console without a page: reads the feed, and counts its bytes."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.bytes, self.began = port, 0, time.time()
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/console/feed", headers={"authorization": f"Bearer {harness.ADMIN}"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{answer.status} {answer.read().decode()}")
        while piece := answer.read1(65536):
            self.bytes += len(piece)


class Lane(threading.Thread):
    """A part of the paced load: one call after another, at any of the workspaces, until it is told to end."""

    def __init__(self, body, ending):
        super().__init__(daemon=True)
        self.body, self.ending, self.sent = body, ending, 0
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", harness.GATEWAY, timeout=30)
        headers = {"authorization": f"Bearer {harness.ADMIN}", "content-type": "application/json"}
        due = time.monotonic()
        while not self.ending.is_set():
            # Every tenth goes to nobody, and is refused.
            target = f"ws-{random.randrange(WORKSPACES):05}" if random.random() < 0.9 else "nobody"
            connection.request("POST", f"/workspaces/{target}/a2a", self.body, headers)
            connection.getresponse().read()
            self.sent += 1
            due += LANES / RATE
            time.sleep(max(0, due - time.monotonic()))


def look(body):
    """The page in a browser, while the load goes on."""
    ending = threading.Event()
    began = time.time()
    lanes = [Lane(body, ending) for _ in range(LANES)]
    here = os.path.dirname(__file__)
    environment = {**os.environ, "CONSOLE": f"http://127.0.0.1:{harness.CONTROL}", "TOKEN": harness.ADMIN,
                   "WORKSPACES": str(WORKSPACES)}
    node = subprocess.Popen(["node", f"{here}/console.mjs"], env=environment)
    try:
        if node.wait():
            raise SystemExit("the page was not measured")
    finally:
        # With its browser.
        harness.end(node)
        ending.set()
        rate = sum(lane.sent for lane in lanes) / (time.time() - began)
        print(f"  {rate:.0f} exchanges/s went through meanwhile")


def main():
    print(f"gateway: with an open console; unwatched: without; {WORKSPACES} workspaces each")
    with harness.Bench(512, {"gateway": {}, "unwatched": {}}) as bench:
        for name in ("gateway", "unwatched"):
            harness.progress(f"{name}: {WORKSPACES} workspaces are made")
            fill(bench.sides[name].port, WORKSPACES)
        harness.progress("the page, in a browser")
        look(bench.body)
        reader = Reader(harness.CONTROL)
        path.compare(bench, {side: bench.wrk_script(side) for side in bench.sides})
        rate = reader.bytes / (time.time() - reader.began)
        print(f"  the feed: {reader.bytes} bytes, {rate / 1024:.1f} KiB/s")


if __name__ == "__main__":
    harness.end_well()
    sys.stdout.reconfigure(line_buffering=True)
    main()
