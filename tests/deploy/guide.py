"""The blocks of docs/guide/run-on-kubernetes.md: overlay, Helm command, ingresses, Secrets, rule for an adapter."""

import re
import shutil
import subprocess

import render
import rules
from render import ROOT, find, objects

PAGE = ROOT / "docs/guide/run-on-kubernetes.md"

# A custom resource of which no reachable package has a schema.
WITHOUT_SCHEMA = {"gateway.envoyproxy.io"}


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)


def overlay(tools, text, folder):
    """Renders the overlay in a copy of the repository's folders, where the guide puts it."""
    for name in ("deploy", "grafana"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    production = folder / "deploy/kubernetes/production"
    production.mkdir()
    shutil.copy(ROOT / "deploy/kubernetes/base/config.toml", production)
    (production / "kustomization.yaml").write_text(text)
    return tools.kustomize(production)


def secrets(tools, text, folder):
    """The Secrets that the guide's commands make, without a cluster."""
    program = tools.folder / "kubectl"
    dry = f'kubectl() {{ "{program}" "$@" --dry-run=client -o yaml; echo ---; }}\n'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", dry + text],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def problems(checks, folder):
    written = [one for text in blocks("yaml") for one in objects(text)]
    [page_overlay] = [text for text in blocks("yaml") if "kind: Kustomization" in text]
    rendered = overlay(checks.tools, page_overlay, folder)
    yield from checks.schemas.problems(rendered)
    for rule in rules.OF_PODS:
        if rule is not rules.images_are_of_this_version:
            yield from rule(rendered)
    yield from rules.dashboards_are_those_of_the_repository(rendered)
    for one in rendered:
        if one["metadata"].get("namespace") != "a2a":
            yield f"the overlay leaves {one['kind']}/{one['metadata']['name']} in another namespace"
        if one["apiVersion"].startswith("monitoring.") and "release" not in one["metadata"]["labels"]:
            yield f"the overlay does not label {one['kind']}/{one['metadata']['name']}"
    if len(find(rendered, "NetworkPolicy", "a2a-gateway")["spec"]["egress"]) != 4:
        yield "the overlay adds no rule to the NetworkPolicy"

    values = re.findall(r"--set (\S+)", next(text for text in blocks("console") if "helm upgrade" in text))
    charted = checks.tools.helm(*(word for value in values for word in ("--set", value)))
    yield from checks.schemas.problems(charted)
    if {render.key(one) for one in charted} != {render.key(one) for one in rendered}:
        yield "the guide's helm command makes other objects than its overlay"

    ingresses = [one for one in written if one.get("kind") in ("HTTPRoute", "Ingress")]
    yield from checks.schemas.problems(ingresses)
    service = find(rendered, "Service", "a2a-gateway")
    ports = {value for port in service["spec"]["ports"] for value in (port["name"], port["port"])}
    text = str(ingresses)
    if len(ingresses) != 2 or text.count(f"'name': '{service['metadata']['name']}', 'port': ") != 2:
        yield f"the ingresses do not name the Service: {text}"
    for port in re.findall(r"'port': (?:\{'name': '(\w+)'\}|(\d+))", text):
        value = port[0] or int(port[1])
        if value not in ports:
            yield f"an ingress names the port {value} of the Service, which has {ports}"
    others = {one["apiVersion"].split("/")[0] for one in written if "apiVersion" in one}
    known = {"kustomize.config.k8s.io", "gateway.networking.k8s.io", "networking.k8s.io"}
    if others - known != WITHOUT_SCHEMA:
        yield f"the guide has objects that are not checked: {others - known}"

    made = {one["metadata"]["name"]: set(one["data"]) for one in secrets(checks.tools, "".join(blocks("sh")), folder)}
    wanted = {name: keys for name, keys in rules.SECRETS.items() if name != "echo-agent"}
    if made != wanted:
        yield f"the guide's commands make the Secrets {made}, the Deployment wants {wanted}"

    [adapter] = [one["rules"] for one in written if "rules" in one]
    metric = find(rendered, "HorizontalPodAutoscaler", "a2a-gateway")["spec"]["metrics"][0]["pods"]["metric"]["name"]
    if adapter[0]["name"]["matches"] != metric or not adapter[0]["seriesQuery"].startswith(metric + "{"):
        yield f"the adapter's rule is not for {metric}"
