"""A Debian machine of its own, with systemd, as a container: its root folder, its processes, commands in it."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

# What a small Debian has, and nothing of the gateway.
PACKAGES = "systemd-sysv,adduser,init-system-helpers"

ENVIRONMENT = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"]


def sources():
    """The release of this machine, and lines for sources.list: what apt here takes Debian's own packages from."""
    indexes = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN)\t$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)",
         "Created-By: Packages"],
        capture_output=True, text=True, check=True).stdout
    release = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
    codename, origin = release["VERSION_CODENAME"].strip('"'), release["ID"].strip('"')
    lines = []
    for line in indexes.splitlines():
        named, address, suite, component = line.split("\t")
        if named.lower() == origin and suite.split("-")[0].split("/")[0] == codename:
            lines.append(f"deb {address.rstrip('/')}/ {suite} {component}")
    if not lines:
        raise SystemExit(f"apt has no packages of {origin} {codename}: run apt-get update")
    return codename, sorted(set(lines))


def make_root(folder):
    """A clean root folder, kept for later runs on the same release."""
    codename, lines = sources()
    root = folder / f"root-{codename}"
    if not root.exists():
        unfinished = folder / f"root-{codename}.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        listed = folder / "sources.list"
        listed.write_text("\n".join(lines) + "\n")
        # The clock of a mirror may differ from ours.
        lax = ["--aptopt=Acquire::Check-Valid-Until \"false\"", "--aptopt=Acquire::Check-Date \"false\""]
        made = subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=apt", "--mode=root", *lax, f"--include={PACKAGES}", codename,
             str(unfinished), str(listed)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if made.returncode != 0:
            raise SystemExit(f"mmdebstrap: {made.stderr}")
        # dpkg's own files only: no address of a mirror stays.
        (unfinished / "etc/apt/sources.list").unlink(missing_ok=True)
        unfinished.rename(root)
    return root


class Machine:
    """Runs the root folder with what changes in another one, and shares the network of this process. Ends it when left."""

    def __init__(self, root, packages, folder):
        self.folder = pathlib.Path(folder)
        self.root = self.folder / "root"
        subprocess.run(["cp", "-a", "--reflink=auto", str(root), str(self.root)], check=True)
        self.log = self.folder / "console"
        self.nspawn = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "--boot", f"--directory={self.root}", "--register=no", "--keep-unit",
             "--link-journal=no", "--resolv-conf=off", "--timezone=off", "--machine=packaged",
             f"--bind-ro={packages}:/packages"],
            stdin=subprocess.DEVNULL, stdout=self.log.open("w"), stderr=subprocess.STDOUT)
        self.leader = None

    def __enter__(self):
        return self

    def boot(self):
        """Waits until systemd has started all units."""
        self.wait(60, self._has_booted, "systemd does not start")

    def __exit__(self, *_):
        if self.leader and self.nspawn.poll() is None:
            # SIGRTMIN+4 asks systemd to power off.
            os.kill(self.leader, signal.SIGRTMIN + 4)
            try:
                self.nspawn.wait(timeout=20)
            except subprocess.TimeoutExpired:
                pass
        if self.nspawn.poll() is None:
            self.nspawn.kill()
        self.nspawn.wait()

    def _has_booted(self):
        if self.nspawn.poll() is not None:
            raise SystemExit(f"systemd-nspawn: {self.log.read_text()}")
        if self.leader is None:
            self.leader = self._init()
        if self.leader is None:
            return False
        state = self.run("systemctl", "is-system-running", check=False).strip()
        return state in ("running", "degraded")

    def _init(self):
        """The process 1 of the machine: the only child of systemd-nspawn that has become systemd."""
        path = pathlib.Path(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children")
        for child in path.read_text().split():
            if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
        return None

    def run(self, *command, check=True, env=()):
        """Runs a command as root and returns what it prints."""
        enter = ["nsenter", f"--target={self.leader}", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--root", "--wd=/"]
        done = subprocess.run([*enter, "--", *ENVIRONMENT, *env, *command], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}")
        return done.stdout

    def runs(self, *command):
        """True if a command ends well."""
        return self.run("sh", "-c", '"$@" >/dev/null 2>&1; echo $?', "sh", *command).strip() == "0"

    def path(self, path):
        """A file of the machine, seen from outside."""
        return self.root / path.lstrip("/")

    @staticmethod
    def wait(seconds, condition, complaint):
        """Asks until the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(complaint)
            time.sleep(0.1)
