"""Installs, upgrades and removes the Debian package on a clean machine: python run.py BINARY FOLDER PACKAGE NEWER.

FOLDER keeps the root folder of the machine. PACKAGE and NEWER are of the same program, with two versions. Prints each
check. The network of this process is its own: nothing else listens there.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts/lib"))

import stores  # noqa: E402
from crowd import Crowd  # noqa: E402
from machine import Machine, make_root  # noqa: E402

PORT = 8080
SETTINGS = "/etc/a2a-gateway/gateway.toml"

# Path, mode, owner and group after the installation.
INSTALLED = [
    ("/usr/bin/a2a-gateway", "755 root:root"),
    ("/usr/lib/systemd/system/a2a-gateway.service", "644 root:root"),
    ("/usr/share/man/man1/a2a-gateway.1.gz", "644 root:root"),
    ("/usr/share/man/man1/a2a-gateway-audit-verify.1.gz", "644 root:root"),
    ("/usr/share/bash-completion/completions/a2a-gateway", "644 root:root"),
    ("/usr/share/fish/vendor_completions.d/a2a-gateway.fish", "644 root:root"),
    ("/usr/share/zsh/vendor-completions/_a2a-gateway", "644 root:root"),
    ("/usr/share/doc/a2a-gateway/README.md", "644 root:root"),
    ("/usr/share/doc/a2a-gateway/guide/install.md", "644 root:root"),
    ("/usr/share/doc/a2a-gateway/copyright", "644 root:root"),
    ("/usr/share/doc/a2a-gateway/THIRD-PARTY.txt.gz", "644 root:root"),
    ("/etc/a2a-gateway", "750 root:a2a-gateway"),
    (SETTINGS, "640 root:a2a-gateway"),
    ("/etc/a2a-gateway/secrets", "600 root:root"),
    ("/var/lib/a2a-gateway", "700 a2a-gateway:a2a-gateway"),
    ("/var/lib/a2a-gateway/data/gateway.db", "600 a2a-gateway:a2a-gateway"),
]

# A setting that no version knows.
WRONG = "[server]\nlisen = 1\n"


class Packaged:
    """The package on a machine, and the callers outside of it."""

    def __init__(self, machine, binary, packages):
        self.machine, self.binary, self.packages = machine, binary, packages
        self.token = ""

    def install(self, package):
        """Installs a package; returns what dpkg printed."""
        return self.machine.run("dpkg", "--install", f"/packages/{package.name}")

    def process(self):
        return self.machine.run("systemctl", "show", "--property=MainPID", "--value", "a2a-gateway").strip()

    def state(self):
        return self.machine.run("systemctl", "is-active", "a2a-gateway", check=False).strip()

    def version(self):
        return self.machine.run("dpkg-query", "--show", "--showformat=${Version} ${Status}", "a2a-gateway")

    def configure(self, text, restart=True):
        """Other settings, in the file that the package installed: its owner and mode stay."""
        self.machine.path(SETTINGS).write_text(text)
        if restart:
            self.machine.run("systemctl", "restart", "a2a-gateway")

    def command(self, *arguments):
        """A command of the gateway, as a caller runs it elsewhere."""
        env = {**os.environ, "A2A_GATEWAY_TOKEN": self.token}
        return subprocess.run([str(self.binary), *arguments], env=env, capture_output=True, text=True)

    def answers(self):
        sent = self.command("send", "echo", "hello")
        return sent.returncode == 0 and sent.stdout == "echo: hello\n"

    def await_answer(self):
        self.machine.wait(30, self.answers, "no answer of the agent")


def block(page, heading, language, number=0):
    """A block of code of a document, below a heading."""
    below = (ROOT / page).read_text().split(f"\n{heading}\n")[1]
    return below.split(f"\n```{language}\n")[1 + number].split("\n```\n")[0]


def check_installation(it):
    """By the commands of the guide, in a folder with the package."""
    steps = block("docs/guide/install.md", "## Debian and Ubuntu", "sh")
    printed = it.machine.run("bash", "-euo", "pipefail", "-c",
                             f"cp /packages/{it.packages[0].name} /tmp/; cd /tmp\n{steps}")
    assert "\nready\n" in printed, printed
    assert it.state() == "active", it.machine.run("journalctl", "-u", "a2a-gateway", check=False)
    assert it.machine.run("systemctl", "is-enabled", "a2a-gateway").strip() == "enabled"
    name, _, number, _, _, home, shell = it.machine.run("getent", "passwd", "a2a-gateway").strip().split(":")
    assert int(number) < 1000 and home == "/var/lib/a2a-gateway" and shell.endswith("/nologin"), (name, number, home, shell)
    for path, wanted in INSTALLED:
        found = it.machine.run("stat", "--format=%a %U:%G", path).strip()
        assert found == wanted, f"{path}: {found}"
    assert it.machine.run("dpkg", "--verify", "a2a-gateway") == ""
    status = it.machine.run("cat", f"/proc/{it.process()}/status")
    assert f"\nUid:\t{number}\t{number}\t{number}\t{number}\n" in status, status
    assert "\nNoNewPrivs:\t1\n" in status and "\nCapEff:\t0000000000000000\n" in status, status
    assert it.machine.run("a2a-gateway", "health") == "ready\n"
    secrets = it.machine.path("/etc/a2a-gateway/secrets").read_text()
    it.token = secrets.strip().removeprefix("A2A_GATEWAY_ADMIN_TOKEN=")
    assert it.token.startswith("a2aa_") and len(it.token) == 48, "the operator's token"
    assert '"message"' in it.machine.run("journalctl", "-u", "a2a-gateway", "--output=cat")


def check_journal(it):
    """The journal of its own that the documents have."""
    for number in range(2):
        text = block("docs/reference/monitoring.md", "## Journal", "ini", number)
        file = it.machine.path(text.splitlines()[0].removeprefix("# "))
        file.parent.mkdir(exist_ok=True)
        file.write_text(text + "\n")
    it.machine.run("systemctl", "daemon-reload")
    it.machine.run("systemctl", "restart", "a2a-gateway")
    shown = it.machine.run("journalctl", "--namespace=a2a-gateway", "-u", "a2a-gateway", "--output=cat")
    assert '"message"' in shown, shown


def check_first_call(it):
    """The agents register by themselves, with the operator's token, and again with each store."""
    env = {**os.environ, "A2A_GATEWAY_ADMIN_TOKEN": it.token}
    agents = [subprocess.Popen([str(it.binary), "agent", kind, "--gateway", f"http://127.0.0.1:{PORT}", "--id", kind],
                               env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for kind in ("echo", "slow")]
    it.await_answer()
    return agents


def check_upgrade_on_sqlite(it):
    """One process has the file for itself: it is restarted. Changed settings and the state stay."""
    settings = it.machine.path(SETTINGS).read_text() + "\n[telemetry]\nlog = \"info,access=off\"\n"
    it.configure(settings, restart=False)
    before = it.process()
    it.install(it.packages[1])
    assert it.state() == "active" and it.process() != before
    assert it.version() == f"{version_of(it.packages[1])} install ok installed", it.version()
    assert it.machine.path(SETTINGS).read_text() == settings
    # The agent's heartbeats, or its next registration.
    it.await_answer()


def check_refused_settings(it):
    """A version that refuses the settings must not end the one that runs. And back: dpkg takes an older version, too."""
    settings, before = it.machine.path(SETTINGS).read_text(), it.process()
    it.configure(WRONG, restart=False)
    printed = it.install(it.packages[0])
    assert "refuses the settings" in printed and "did you mean `server.listen`?" in printed, printed
    assert it.process() == before and it.state() == "active" and it.answers()
    it.configure(settings)
    it.await_answer()


def check_upgrade_in_place(it, shared):
    """On PostgreSQL and Redis a new process takes over under load: no call fails, and every stream comes whole."""
    it.configure(f'[stores]\nsql = "{shared.sql_url}"\nshared = "{shared.redis_url}"\n'
                 '[keys]\ndir = "/var/lib/a2a-gateway/data/keys"\n[rate]\ncaller_per_second = 0\n')
    it.await_answer()
    it.machine.wait(20, lambda: it.command("send", "slow", "now").returncode == 0, "no answer of the slow agent")
    before = it.process()
    with Crowd(PORT, it.token) as crowd:
        it.machine.wait(30, lambda: crowd.calls > 200 and crowd.streams > 0, "no load")
        at_start, opened = crowd.calls, crowd.connections
        began = time.monotonic()
        it.install(it.packages[1])
        took = time.monotonic() - began
        assert it.process() != before, "no new process took over: " + it.machine.run(
            "journalctl", "-u", "a2a-gateway", "-n", "40", "--output=cat")
        meanwhile = crowd.calls - at_start
        at_end = crowd.calls, crowd.streams
        it.machine.wait(60, lambda: crowd.calls > at_end[0] + 200 and crowd.streams > at_end[1] + 3, "no load afterwards")
    assert not crowd.failures, crowd.failures[:5]
    assert meanwhile > 20 and crowd.connections > opened, (meanwhile, crowd.connections, opened)
    assert it.version().startswith(version_of(it.packages[1])), it.version()
    program = it.machine.run("readlink", f"/proc/{it.process()}/exe").strip()
    assert program == "/usr/bin/a2a-gateway", program
    it.machine.wait(100, lambda: not it.machine.runs("test", "-e", f"/proc/{before}"), "the process before goes on")
    assert it.state() == "active"
    print(f"       {crowd.calls} calls and {crowd.streams} streams over {crowd.connections} connections, none failed; "
          f"{meanwhile} calls during dpkg's {took:.1f} s")


def check_removal(it):
    """Settings, state and user stay for the next installation."""
    process = it.process()
    it.machine.run("dpkg", "--remove", "a2a-gateway")
    assert it.state() != "active" and not it.machine.runs("test", "-e", f"/proc/{process}")
    assert not it.answers()
    gone = [path for path, _ in INSTALLED if path.startswith("/usr/") and it.machine.path(path).exists()]
    assert not gone, gone
    for path in (SETTINGS, "/etc/a2a-gateway/secrets", "/var/lib/a2a-gateway/data/keys"):
        assert it.machine.path(path).exists(), path
    it.machine.run("getent", "passwd", "a2a-gateway")
    it.install(it.packages[1])
    it.await_answer()


def check_purge(it):
    it.machine.run("dpkg", "--purge", "a2a-gateway")
    for path in ("/etc/a2a-gateway", "/var/lib/a2a-gateway", "/usr/share/doc/a2a-gateway",
                 "/etc/systemd/system/multi-user.target.wants/a2a-gateway.service"):
        assert not os.path.lexists(it.machine.path(path)), path
    # Its number is not given to another user later.
    it.machine.run("getent", "passwd", "a2a-gateway")
    assert "a2a-gateway" not in it.machine.run("dpkg-query", "--list", check=False).replace("packaged", "")


def version_of(package):
    return package.name.split("_")[1]


def said(what, check, *arguments):
    """Runs a check, and prints what it took."""
    began = time.monotonic()
    result = check(*arguments)
    print(f"ok     {what} ({time.monotonic() - began:.1f} s)", flush=True)
    return result


def main(binary, folder, *packages):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    root = said("a clean root folder", make_root, folder)
    with tempfile.TemporaryDirectory(dir=folder) as work, stores.Stores(work) as shared:
        with Machine(root, packages[0].parent, work) as machine:
            said("a machine with systemd", machine.boot)
            it = Packaged(machine, binary, packages)
            said("the package is installed, the service runs as its user", check_installation, it)
            said("a journal of its own", check_journal, it)
            agents = said("an agent registers and is called", check_first_call, it)
            try:
                said("an upgrade on SQLite restarts, and keeps settings and state", check_upgrade_on_sqlite, it)
                said("settings that the new version refuses: the running one goes on", check_refused_settings, it)
                said("an upgrade in place under load", check_upgrade_in_place, it, shared)
                said("removed: settings, state and user stay, and count again", check_removal, it)
                said("purged: only the user stays", check_purge, it)
            finally:
                for agent in agents:
                    agent.kill()
                    agent.wait()


if __name__ == "__main__":
    main(*(pathlib.Path(argument).resolve() for argument in sys.argv[1:]))
