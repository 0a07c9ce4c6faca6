"""Runs the program as the rendered pods do: their arguments, environment, user and mounted files."""

import base64
import contextlib
import http.client
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import time

from render import NAMESPACE, find

POD = "a2a-gateway-7c9d8f6b5d-x2x4z"
FIELDS = {"metadata.namespace": NAMESPACE, "metadata.name": POD}

# Seconds until a process serves, or has ended.
SERVES_MAX = 60


def operator_token():
    return "a2aa_" + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")


def free_port():
    """One below the ephemeral range, so that no outgoing connection takes it before it is listened on."""
    while True:
        port = random.randrange(12_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def key_files():
    """The files of the Secret a2a-gateway-keys, as the guide makes them."""
    files = {"seal.key": base64.b64encode(secrets.token_bytes(32)).decode()}
    for name in ("active.pem", "next.pem"):
        command = ["openssl", "genpkey", "-algorithm", "ed25519"]
        files[name] = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return files


def mount(folder, files, mode):
    """Lays files out as the kubelet does: links to a folder that one link names."""
    real = folder / "..2026_11_27"
    real.mkdir(parents=True)
    (folder / "..data").symlink_to(real.name)
    for name, text in files.items():
        (real / name).write_text(text)
        (real / name).chmod(mode)
        (folder / name).symlink_to(f"..data/{name}")


class Pod:
    """The container of the gateway's Deployment, with its volumes below `root`. A test that is root runs it as its user."""

    def __init__(self, found, root, binary, stored):
        spec = find(found, "Deployment", "a2a-gateway")["spec"]["template"]["spec"]
        [self.container] = spec["containers"]
        root.chmod(0o755)
        self.command = [binary]
        if os.geteuid() == 0:
            user = spec["securityContext"]
            ids = [f"--reuid={user['runAsUser']}", f"--regid={user['runAsGroup']}", f"--groups={user['fsGroup']}"]
            self.command = ["setpriv", *ids, binary]
        self.paths = {}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        # Longer paths first: one may be the beginning of another.
        for one in sorted(self.container["volumeMounts"], key=lambda one: -len(one["mountPath"])):
            self.paths[one["mountPath"]] = root / one["name"]
        for one in self.container["volumeMounts"]:
            volume = volumes[one["name"]]
            if "configMap" in volume:
                files = find(found, "ConfigMap", volume["configMap"]["name"])["data"]
                files = {name: self.moved(text) for name, text in files.items()}
                mount(root / one["name"], files, 0o644)
            elif "secret" in volume:
                # `fsGroup` gives the group what the owner has.
                mount(root / one["name"], stored[volume["secret"]["secretName"]], 0o440)
            else:
                (root / one["name"]).mkdir()
            self._own(root / one["name"], spec["securityContext"]["fsGroup"], one.get("readOnly", False))
        self.folder = self.paths["/var/lib/a2a-gateway"]
        self.arguments = [self.moved(word) for word in self.container["args"]]
        self.environment = {"PATH": os.environ["PATH"]}
        for variable in self.container["env"]:
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            value = FIELDS[field] if field else variable["value"]
            for name, known in list(self.environment.items()):
                value = value.replace(f"$({name})", known)
            self.environment[variable["name"]] = self.moved(value)

    @staticmethod
    def _own(folder, group, is_read_only):
        """`fsGroup`, and nothing to write where the mount is read only."""
        for path in [folder, *folder.rglob("*")]:
            if os.geteuid() == 0:
                os.chown(path, 0, group, follow_symlinks=False)
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o750 if is_read_only else 0o770)

    def moved(self, text):
        for path, folder in self.paths.items():
            text = text.replace(path, str(folder))
        return text

    def settings(self):
        """The settings in force, as `check-config` says them; its complaint for a configuration that is refused."""
        done = subprocess.run(
            [*self.command, "check-config", self.arguments[-1]], env=self.environment, cwd=self.folder,
            capture_output=True, text=True, timeout=60, check=False,
        )
        if done.returncode:
            return None, (done.stdout + done.stderr).strip()
        lines = (line.split("  #")[0].split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)
        return {name.strip(): value.strip().strip('"') for name, value in lines}, ""

    def probes(self):
        """Path of each probe. All of them are on the port `admin`, which the rules compare."""
        names = ("startupProbe", "livenessProbe", "readinessProbe")
        return [self.container[name]["httpGet"]["path"] for name in names]


def get(port, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def post(port, path, token, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status < 300, f"{path}: {answer.status} {text}"
        return json.loads(text)


def until(process, log, condition):
    """Polls until the condition holds while the process runs."""
    end = time.monotonic() + SERVES_MAX
    while time.monotonic() < end:
        assert process.poll() is None, f"ended with {process.returncode}: {log.read_text()}"
        with contextlib.suppress(OSError):
            if condition():
                return
        time.sleep(0.05)
    raise AssertionError(f"in vain for {SERVES_MAX} s: {log.read_text()}")


@contextlib.contextmanager
def running(command, environment, folder, log):
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=SERVES_MAX)
        assert code == 0, f"{command} ended with {code}: {log.read_text()}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
