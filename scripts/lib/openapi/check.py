"""Holds docs/openapi.yaml against itself, then against the running gateway. Started by `scripts/check-openapi`.

The document says what is tested: a route that is added to it is covered without a change here. Everything is on
loopback, on free ports, with the embedded stores in a temporary folder, and ends with this script.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import yaml

import document
from gateway import Gateway

DOCUMENT = Path("docs/openapi.yaml")
HOOKS = Path(__file__).with_name("hooks.py")

# Cases for each operation in the random phase, and seconds for a whole run: a gateway that hangs ends the run, too.
EXAMPLES = int(os.environ.get("EXAMPLES", "15"))
# Other cases than the usual ones, the same for the same number.
SEED = os.environ.get("SEED") or None
RUN_SECONDS_MAX = 600
# Which statuses each check takes for good, beside its own.
CHECKS = {
    # A valid request may still be refused for what it meets: an unknown id, a conflict, an agent that is away.
    "positive_data_acceptance": ["2xx", "401", "403", "404", "409", "410", "502", "503"],
    # The target's state comes before the body, so a bad body may be answered with an agent that is away.
    "negative_data_rejection": ["4xx", "502", "503"],
    "missing_required_header": ["4xx"],
    # A failing agent is the agent's. What a healthy gateway never says, `hooks.py` knows by its reason.
    "not_a_server_error": ["2xx", "3xx", "4xx", "502", "503", "504"],
}


def main():
    described = yaml.safe_load(DOCUMENT.read_text())
    complaints = document.complaints(described)
    for complaint in complaints:
        print(f"{DOCUMENT}: {complaint}")
    if complaints:
        raise SystemExit(f"{len(complaints)} complaints about {DOCUMENT}")
    print(f"{DOCUMENT}: valid OpenAPI, {document.count(described)} operations, every example is what its schema says")
    with tempfile.TemporaryDirectory(prefix="a2a-openapi-") as folder, Gateway(folder) as gateway:
        with Heart(gateway):
            failed = [listener for listener, port in gateway.listeners.items()
                      if not run(described, gateway, listener, port, folder)]
        log = gateway.log()
    if failed:
        print(log[-4000:], file=sys.stderr)
        raise SystemExit(f"the gateway and {DOCUMENT} disagree; what is above says where")


class Heart:
    """Heartbeats in the background: agents stay online, and a stream of events has some to end with."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()

    def _beat(self):
        while not self.stopped.wait(0.2):
            for workspace in self.gateway.workspaces:
                self.gateway.beat(workspace)


def run(described, gateway, listener, port, folder):
    """One run of schemathesis, over the operations of one listener. Whether it found nothing."""
    config = Path(folder) / f"{listener}.toml"
    config.write_text(settings(described, gateway))
    admin = "--include-tag" if listener == "admin" else "--exclude-tag"
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", str(DOCUMENT), *(["--seed", SEED] if SEED else []),
        "--url", f"http://127.0.0.1:{port}", admin, "admin",
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS), "PYTHONPATH": str(HOOKS.parent), "PYTHONDONTWRITEBYTECODE": "1", **gateway.environment()}
    try:
        done = subprocess.run(command, env=environment, timeout=RUN_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        print(f"the run on the {listener} listener took more than {RUN_SECONDS_MAX} s")
        return False
    return done.returncode == 0


def settings(described, gateway):
    """The configuration of schemathesis, as TOML: JSON values are TOML values."""
    ids = list(gateway.workspaces)
    lines = [
        "continue-on-failure = true",
        "request-timeout = 10",
        "color = false",
        "[output.sanitization]", "enabled = true",
        "[output.truncation]", "enabled = true",
        "[cache]", "enabled = false",
        # Always the same cases: what fails, fails again.
        "[generation]", f"max-examples = {EXAMPLES}", 'database = "none"', "no-shrink = true",
        *(["deterministic = true"] if SEED is None else []),
        # Unknown fields, parameters and cookies are passed over: that is no mistake.
        "allow-extra-parameters = false",
        *(f"[auth.openapi.{name}]\nbearer = {json.dumps(gateway.admin_token)}" for name in document.bearers(described)),
        "[dictionaries.workspaces]", f"values = {json.dumps(ids)}",
        "[dictionaries.agents]", f"values = {json.dumps(gateway.agents)}",
        "[parameters]",
        '"path.id" = {dictionary = "workspaces", probability = 0.8}',
        '"path.org" = {dictionary = "workspaces", probability = 0.5}',
        *(f'"body.{member}" = {{dictionary = "workspaces", probability = 0.8}}'
          for member in ("workspace_id", "parent_id", "caller_id", "target_id")),
        *(f'"body.{member}" = {{dictionary = "agents", probability = 0.9}}'
          for member in ("url", "internal_url", "card_url")),
        "[checks]", "enabled = true",
    ]
    for check, statuses in CHECKS.items():
        lines += [f"[checks.{check}]", f"expected-statuses = {json.dumps(statuses)}"]
    for name in document.endless(described):
        # A stream that does not end by itself is read until a few events came, and no longer than this.
        lines += ["[[operations]]", f"include-operation-id = {json.dumps(name)}",
                  "request-timeout = 5", "max-stream-events = 2"]
    for name in document.upgrades(described):
        # This client speaks no WebSocket: it gets refusals only, and those are held against the document.
        lines += ["[[operations]]", f"include-operation-id = {json.dumps(name)}",
                  "[operations.checks.positive_data_acceptance]", "enabled = false"]
    # Which methods these have, the agent decides: what is not described may be forwarded, and `Allow` names all that can be.
    lines += ["[[operations]]", 'include-tag = "http-json"',
              *(f"[operations.checks.{check}]\nenabled = false" for check in ("unsupported_method", "allow_header_conformance"))]
    return "\n".join(lines) + "\n"


main()
