"""What being watched costs: the gateway with audit, traces and a scraper, each alone and all together, against
the gateway without. Started by `scripts/bench observed`.
"""

import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import harness
import path
import usage

SAMPLING = usage.GIVEN["SHARE_OF_TRACES"]


class Collector(BaseHTTPRequestHandler):
    """Takes every batch of spans and forgets it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def scrape():
    """As Prometheus does, but each second."""
    while True:
        time.sleep(1)
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{harness.CONTROL}/metrics", timeout=10).read()
        except OSError:
            pass


def main():
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    for work in (collector.serve_forever, scrape):
        threading.Thread(target=work, daemon=True).start()
    off = {"audit.enabled": "false"}
    traced = {"telemetry.otlp_endpoint": f"http://127.0.0.1:{collector.server_port}", "telemetry.sampling": SAMPLING}
    gateways = {"gateway": traced, "audited": {}, "traced": {**off, **traced}, "dark": off}
    print(f"gateway: audit, traces (share {SAMPLING}) and a scraper; audited, traced: one of them; dark: none")
    with harness.Bench(512, gateways) as bench:
        path.compare(bench, {side: bench.wrk_script(side) for side in bench.sides},
                     [("audited", "dark"), ("traced", "dark")])


if __name__ == "__main__":
    harness.end_well()
    main()
