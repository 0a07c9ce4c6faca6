"""Validates objects against the published schemas: of Kubernetes, and of the custom resources beside it."""

import json
import pathlib
import subprocess

import kubernetes_validate
import referencing.exceptions
from kubernetes_validate import utils

# The newest versions of Kubernetes of which the package has schemas.
VERSIONS = 3

CUSTOM = {"monitoring.coreos.com", "gateway.networking.k8s.io"}


def versions():
    folder = pathlib.Path(utils.__file__).parent / "kubernetes-json-schema"
    names = (path.name.removeprefix("v").split(".")[:2] for path in folder.glob("v*-local-strict"))
    newest = sorted(tuple(map(int, name)) for name in names)[-VERSIONS:]
    assert len(newest) == VERSIONS, newest
    return [f"{major}.{minor}" for major, minor in newest]


def is_custom(one):
    return one["apiVersion"].split("/")[0] in CUSTOM


class Schemas:
    def __init__(self, packages):
        self.packages = packages
        self.versions = versions()
        # The problems of custom resources, which most sets of objects have in common.
        self.known = {}

    def problems(self, found):
        """Unknown fields count as problems, too: the API server would drop them."""
        for version in self.versions:
            for one in (one for one in found if not is_custom(one)):
                name = f"{one['kind']}/{one['metadata']['name']}"
                try:
                    kubernetes_validate.validate(one, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    path = ".".join(map(str, error.path))
                    yield f"schema of Kubernetes {version}: {name}: {path}: {error.message}"
                except (kubernetes_validate.SchemaNotFoundError, referencing.exceptions.Unresolvable) as error:
                    yield f"schema of Kubernetes {version}: {name}: no such kind: {error}"
        yield from self._custom([one for one in found if is_custom(one)])

    def _custom(self, found):
        text = json.dumps(found)
        if found and text not in self.known:
            done = subprocess.run(
                ["node", pathlib.Path(__file__).with_name("schemas.mjs"), self.packages],
                input=text, capture_output=True, text=True, timeout=120, check=False,
            )
            assert done.returncode == 0, done.stderr
            self.known[text] = done.stdout.splitlines()
        yield from (f"schema of the custom resource: {line}" for line in self.known.get(text, []))
