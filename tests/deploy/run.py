"""Renders deploy/ by Kustomize and Helm and checks the result: python run.py PACKAGES BINARY. Prints each check."""

import pathlib
import shutil
import sys
import tempfile

import alerts
import gateway
import guide
import mutations
import render
import rules
import values
from render import ROOT, find
from schemas import Schemas


class Checks:
    """All checks of one set of objects, so that a spoilt one can be put in its place."""

    def __init__(self, packages, binary):
        self.tools = render.Tools(packages)
        self.schemas = Schemas(packages)
        self.binary = binary

    def problems(self, found, with_monitoring=True):
        """The checks that start no gateway."""
        yield from self.schemas.problems(found)
        for rule in rules.OF_PODS + (rules.OF_MONITORING if with_monitoring else []):
            yield from rule(found)
        settings, refused = gateway.settings(found, self.binary)
        if settings is None:
            yield f"check-config: {refused}"
            return
        drain = settings["server.drain"]
        assert drain.endswith("s"), drain
        yield from rules.grace_is_above_the_drain(found, int(drain.removesuffix("s")))
        [container] = find(found, "Deployment", "a2a-gateway")["spec"]["template"]["spec"]["containers"]
        declared = {port["name"]: port["containerPort"] for port in container["ports"]}
        for name, key in [("http", "server.listen"), ("admin", "admin.listen")]:
            if settings[key] != f"0.0.0.0:{declared[name]}":
                yield f"{key} is {settings[key]}, the port {name} of the pod {declared[name]}"
        for one in find(found, "HorizontalPodAutoscaler"):
            wanted = int(one["spec"]["metrics"][0]["pods"]["target"]["averageValue"])
            if 2 * wanted > int(settings["server.max_exchanges"]):
                yield f"HorizontalPodAutoscaler: one of two replicas at {wanted} exchanges cannot take those of both"


def said(what, problems):
    """Prints the outcome of a check and returns its problems."""
    found = list(problems)
    print(f"{'ok    ' if not found else 'FAILED'} {what}", flush=True)
    for problem in found:
        print(f"       {problem}", flush=True)
    return found


def main(packages, binary):
    with tempfile.TemporaryDirectory() as folder:
        # The user of the pods may have no access to the folder that the binary is in.
        pathlib.Path(folder).chmod(0o755)
        return 1 if check_all(packages, pathlib.Path(shutil.copy2(binary, folder))) else 0


def check_all(packages, binary):
    """Returns all problems."""
    checks = Checks(packages, binary)
    tools = checks.tools
    base = tools.kustomize(ROOT / "deploy/kubernetes/base")
    monitoring = tools.kustomize(ROOT / "deploy/kubernetes/monitoring")
    example = tools.kustomize(ROOT / "deploy/kubernetes/examples/agent-with-sidecar")
    tools.lint()
    helm = tools.helm()
    helm_monitored = tools.helm("--set", "monitoring.enabled=true")
    named = ", ".join(sorted({one["kind"] for one in base + monitoring}))
    print(f"schemas of Kubernetes {', '.join(checks.schemas.versions)}; {len(base + monitoring)} objects: {named}")

    failed = said("the base alone needs no custom resource", checks.problems(base, with_monitoring=False))
    failed += said("the base with monitoring", checks.problems(base + monitoring))
    failed += said("the chart with monitoring", checks.problems(helm_monitored))
    failed += said("the chart with every value set, and with a long name", values.problems(checks))
    failed += said("Kustomize and Helm render the same", [
        *render.differences(base, helm), *render.differences(base + monitoring, helm_monitored)])
    failed += said("the example agent with its sidecar", [
        problem for check in (checks.schemas.problems, *rules.OF_PODS) for problem in check(base + example)])
    with tempfile.TemporaryDirectory() as folder:
        failed += said("the guide's overlay, ingress and adapter", guide.problems(checks, pathlib.Path(folder)))
    failed += said("prometheusrule.yaml is current", [] if alerts.FILE.read_text() == alerts.text() else [
        "it is not made of grafana/alerts.yaml: scripts/manifests alerts"])
    failed += said("probes, hosts and metrics of the running pod", gateway.probes_follow_the_stores(base, binary))
    failed += said("a call through the example's sidecar",
                   gateway.agents_are_reached_through_the_sidecar(base, example, binary))
    print(f"{len(mutations.ALL)} spoilt manifests, and values that the chart refuses:")
    for what, spoil, complaint in mutations.ALL:
        failed += said(what, mutations.outcome(checks, base + monitoring, spoil, complaint))
    failed += said("a chart that differs from Kustomize", mutations.noticed(base, tools))
    for what, given, complaint in mutations.VALUES:
        failed += said(what, mutations.refused(tools, given, complaint))
    return failed


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()))
