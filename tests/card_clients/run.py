"""Clients that read a card without a credential, against the real gateway: run.py GATEWAY PACKAGES."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
GATEWAY, PACKAGES = sys.argv[1], Path(sys.argv[2])
PYTHON = PACKAGES / "python/bin/python"
ADMIN = "a2aa_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
# Chosen below the ephemeral range.
PORT, ADMIN_PORT = 11_807, 11_808
ORIGIN = f"http://127.0.0.1:{PORT}"
PATIENCE = 60


def call(method, path, token=None, body=None):
    request = urllib.request.Request(ORIGIN + path, method=method, data=json.dumps(body).encode() if body else None)
    request.add_header("Content-Type", "application/json")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


def ready(folder):
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{ADMIN_PORT}/readyz", timeout=1)
        except OSError:
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)


def start(command, **options):
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, command)], text=True, **options)


def main(folder):
    sets = {
        "server.listen": f"127.0.0.1:{PORT}", "admin.listen": f"127.0.0.1:{ADMIN_PORT}",
        "stores.sql": f"sqlite:{folder}/gateway.db", "keys.dir": folder / "keys",
        # fasta2a cannot read the security requirements of A2A 1.0.
        "card.declare_security": "false",
    }
    environment = {**os.environ, "A2A_GATEWAY_ADMIN_TOKEN": ADMIN}
    command = [GATEWAY, "serve", *(f"--set={key}={value}" for key, value in sets.items())]
    start(command, env=environment, stderr=open(folder / "log", "w"), cwd=folder)
    agent = start([PYTHON, HERE / "agent.py"], stdout=subprocess.PIPE)
    url = agent.stdout.readline().strip()
    ready(folder)
    for name, below in (("echo", ""), ("wrapped", "wrapped")):
        made = {"id": name, "name": name, "url": url + below, "liveness": "assumed", "card_access": "public"}
        call("POST", "/workspaces", ADMIN, made)
    made = call("POST", "/workspaces", ADMIN, {"id": "caller", "name": "caller", "delivery_mode": "poll"})
    registration = {"id": "caller", "delivery_mode": "poll", "agent_card": {"name": "caller"}}
    token = call("POST", "/registry/register", made["enrolment_token"], registration)["token"]
    # Modules are looked for beside the file that imports them.
    shutil.copy(HERE / "node.mjs", folder)
    (folder / "node_modules").symlink_to(PACKAGES / "node_modules")
    echo, wrapped = (f"{ORIGIN}/workspaces/{name}/a2a" for name in ("echo", "wrapped"))
    failed = 0
    for command in ([PYTHON, "-B", HERE / "python.py", echo, wrapped], ["node", folder / "node.mjs", echo]):
        environment = {**os.environ, "A2A_TOKEN": token}
        command = list(map(str, command))
        ran = subprocess.run(command, env=environment, timeout=2 * PATIENCE, text=True, capture_output=True)
        print(ran.stdout, ran.stderr[-600:] if ran.returncode else "")
        failed |= ran.returncode
    # The same card without card_access is nobody's to read.
    call("PATCH", "/workspaces/echo", ADMIN, {"card_access": "private"})
    try:
        call("GET", "/workspaces/echo/a2a/.well-known/agent-card.json")
        failed = 1
    except urllib.error.HTTPError as refused:
        failed |= refused.code != 401
    sys.exit(failed)


scratch = Path(tempfile.mkdtemp(prefix="a2a-card-clients-"))
try:
    main(scratch)
finally:
    shutil.rmtree(scratch, ignore_errors=True)
