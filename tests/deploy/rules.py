"""Rules that no schema knows: each function yields the problems of a set of objects."""

import json
import re
import subprocess
import tempfile

import yaml

from render import ROOT, find

# Secrets that a user makes, with their keys, as docs/guide/run-on-kubernetes.md has them.
SECRETS = {
    "a2a-gateway": {"sql-url", "shared-url", "admin-token"},
    "a2a-gateway-keys": {"active.pem", "next.pem", "seal.key"},
    "echo-agent": {"token"},
}

# A ConfigMap of which `kubectl apply` keeps a copy in an annotation must leave room for it.
CONFIG_BYTES_MAX = 200_000

# Seconds that the grace period leaves for what follows after preStop and server.drain.
SPARE = 10


def pods(found):
    """The pod templates: name, labels, spec."""
    for one in find(found, "Deployment"):
        template = one["spec"]["template"]
        yield one["metadata"]["name"], template["metadata"]["labels"], template["spec"]


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


def container_of_gateway(found):
    return find(found, "Deployment", "a2a-gateway")["spec"]["template"]["spec"]["containers"][0]


def matches(selector, labels):
    wanted = selector.get("matchLabels", {})
    return bool(wanted) and wanted.items() <= labels.items()


def selected(found, selector):
    return [spec for _, labels, spec in pods(found) if matches(selector, labels)]


def port_names(specs):
    return {port["name"] for spec in specs for one in containers(spec) for port in one.get("ports", [])}


def selectors_match_pods(found):
    for name, labels, spec in pods(found):
        deployment = find(found, "Deployment", name)
        named = [("Deployment", deployment["spec"]["selector"])]
        named += [("topologySpread", one["labelSelector"]) for one in spec.get("topologySpreadConstraints", [])]
        for kind, selector in named:
            if not matches(selector, labels):
                yield f"{kind} {name} selects no pod"
    for kind, key in [("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")]:
        for one in find(found, kind):
            if not selected(found, one["spec"][key]):
                yield f"{kind} {one['metadata']['name']} selects no pod"
    for one in find(found, "Service"):
        if not selected(found, {"matchLabels": one["spec"]["selector"]}):
            yield f"Service {one['metadata']['name']} selects no pod"


def ports_are_those_of_pods(found):
    for one in find(found, "Service"):
        there = port_names(selected(found, {"matchLabels": one["spec"]["selector"]}))
        for port in one["spec"]["ports"]:
            if port["targetPort"] not in there:
                yield f"Service {one['metadata']['name']}: no port {port['targetPort']}"
    for name, _, spec in pods(found):
        for one in containers(spec):
            there = {port["name"] for port in one.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                port = one.get(probe, {}).get("httpGet", {}).get("port")
                if port is not None and port not in there:
                    yield f"{probe} of {name}: no port {port}"
    for one in find(found, "NetworkPolicy"):
        there = port_names(selected(found, one["spec"]["podSelector"]))
        for rule in one["spec"].get("ingress", []):
            for port in rule["ports"]:
                if port["port"] not in there:
                    yield f"NetworkPolicy {one['metadata']['name']}: no port {port['port']}"


def probes_ask_for_what_they_decide(found):
    """docs/reference/monitoring.md: /readyz fails at all replicas at once while a store is away."""
    wanted = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz/traffic"}
    for probe, path in wanted.items():
        asked = container_of_gateway(found)[probe]["httpGet"]["path"]
        if asked != path:
            yield f"{probe} of a2a-gateway asks {asked}"


def admin_port_is_for_monitoring(found):
    for one in find(found, "NetworkPolicy"):
        for rule in one["spec"].get("ingress", []):
            if any(port["port"] == "admin" for port in rule["ports"]) and not rule.get("from"):
                yield f"NetworkPolicy {one['metadata']['name']}: every pod reaches the admin listener"


def monitors_find_their_service(found):
    alerts = (ROOT / "grafana/alerts.yaml").read_text()
    jobs = set(re.findall(r'job="([^"]+)"', alerts))
    for one in find(found, "ServiceMonitor"):
        spec = one["spec"]
        services = [
            service for service in find(found, "Service") if matches(spec["selector"], service["metadata"]["labels"])
        ]
        if len(services) != 1:
            yield f"ServiceMonitor {one['metadata']['name']} finds {len(services)} services"
            continue
        names = {port["name"] for port in services[0]["spec"]["ports"]}
        for endpoint in spec["endpoints"]:
            if endpoint["port"] not in names:
                yield f"ServiceMonitor {one['metadata']['name']}: no port {endpoint['port']}"
        job = services[0]["metadata"]["labels"].get(spec.get("jobLabel"))
        if {job} != jobs:
            yield f"ServiceMonitor {one['metadata']['name']}: the job is {job}, the alerts have {jobs}"


def references_lead_to_objects(found):
    there = {(one["kind"], one["metadata"]["name"]) for one in found}
    for one in find(found, "HorizontalPodAutoscaler"):
        target = one["spec"]["scaleTargetRef"]
        if (target["kind"], target["name"]) not in there:
            yield f"HorizontalPodAutoscaler scales {target['kind']} {target['name']}, which is not there"
        elif "replicas" in find(found, target["kind"], target["name"])["spec"]:
            yield "the Deployment sets replicas beside the HorizontalPodAutoscaler"
    for name, _, spec in pods(found):
        account = spec.get("serviceAccountName")
        if account and ("ServiceAccount", account) not in there:
            yield f"{name}: no ServiceAccount {account}"
        for volume in spec.get("volumes", []):
            config = volume.get("configMap", {}).get("name")
            if config and ("ConfigMap", config) not in there:
                yield f"{name}: no ConfigMap {config}"


def secrets_are_references(found):
    for one in find(found, "Secret"):
        yield f"a Secret is in the manifests: {one['metadata']['name']}"
    for name, _, spec in pods(found):
        mounts = [mount for one in containers(spec) for mount in one.get("volumeMounts", [])]
        mounted = {mount["name"]: mount["mountPath"] for mount in mounts}
        for volume in spec.get("volumes", []):
            if "secret" not in volume:
                continue
            secret = volume["secret"]
            keys = SECRETS.get(secret["secretName"])
            if keys is None:
                yield f"{name}: the guide makes no Secret {secret['secretName']}"
            if secret.get("defaultMode") != 0o400:
                yield f"{name}: the Secret {secret['secretName']} is not of the mode 0400"
            files = [value for one in containers(spec) for value in values(one) if value.startswith("/run/secrets/")]
            folder = mounted[volume["name"]] + "/"
            for file in files:
                if file.startswith(folder) and file.removeprefix(folder) not in (keys or ()):
                    yield f"{name}: the Secret {secret['secretName']} has no key for {file}"
        for one in containers(spec):
            for variable in one.get("env", []):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                if reference and reference["key"] not in SECRETS.get(reference["name"], ()):
                    yield f"{name}: the guide makes no Secret {reference['name']} with the key {reference['key']}"
                if "TOKEN" in variable["name"] and not variable["name"].endswith("_FILE") and "value" in variable:
                    yield f"{name}: {variable['name']} has its value in the manifest"


def values(container):
    return [variable["value"] for variable in container.get("env", []) if "value" in variable]


def pods_are_restricted(found):
    """The profile `restricted` of the Pod Security Standards, and a root folder that is read only."""
    for name, _, spec in pods(found):
        general = spec.get("securityContext", {})
        for wanted, value in [
            ("runAsNonRoot", general.get("runAsNonRoot") is True),
            ("seccompProfile", general.get("seccompProfile", {}).get("type") == "RuntimeDefault"),
            ("automountServiceAccountToken", spec.get("automountServiceAccountToken") is False),
        ]:
            if not value:
                yield f"{name}: {wanted}"
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(key):
                yield f"{name}: {key}"
        for volume in spec.get("volumes", []):
            if not volume.keys() - {"name"} <= {"configMap", "emptyDir", "secret"}:
                yield f"{name}: the volume {volume['name']}"
        for one in containers(spec):
            own = one.get("securityContext", {})
            for wanted, value in [
                ("allowPrivilegeEscalation", own.get("allowPrivilegeEscalation") is False),
                ("readOnlyRootFilesystem", own.get("readOnlyRootFilesystem") is True),
                ("capabilities", own.get("capabilities") == {"drop": ["ALL"]}),
                ("a memory limit", "memory" in one.get("resources", {}).get("limits", {})),
            ]:
                if not value:
                    yield f"{name}/{one['name']}: {wanted}"


def roll_outs_lose_no_replica(found):
    for one in find(found, "HorizontalPodAutoscaler"):
        if one["spec"]["minReplicas"] < 2:
            yield "HorizontalPodAutoscaler: a single replica"
        name = one["spec"]["scaleTargetRef"]["name"]
        for deployment in find(found, "Deployment"):
            rolling = deployment["spec"].get("strategy", {}).get("rollingUpdate", {})
            if deployment["metadata"]["name"] == name and rolling.get("maxUnavailable") != 0:
                yield "the Deployment takes replicas away before others are ready"


def images_are_of_this_version(found):
    version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    for name, _, spec in pods(found):
        for one in containers(spec):
            if one["image"] != f"a2a-gateway:{version}":
                yield f"{name}: the image is {one['image']}, the version {version}"


def grace_is_above_the_drain(found, drain):
    """`drain` is what the program says of the ConfigMap's configuration, in seconds."""
    spec = find(found, "Deployment", "a2a-gateway")["spec"]["template"]["spec"]
    stop = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    if spec["terminationGracePeriodSeconds"] < stop + drain + SPARE:
        yield f"terminationGracePeriodSeconds is below preStop ({stop}) + server.drain ({drain}) + {SPARE}"


def dashboards_are_those_of_the_repository(found):
    ours = {path.name: json.loads(path.read_text()) for path in (ROOT / "grafana/dashboards").glob("*.json")}
    theirs = {}
    for one in find(found, "ConfigMap"):
        if one["metadata"]["labels"].get("grafana_dashboard") == "1":
            theirs |= {name: json.loads(text) for name, text in one["data"].items()}
        size = sum(map(len, one["data"].values()))
        if size > CONFIG_BYTES_MAX:
            yield f"ConfigMap {one['metadata']['name']} has {size} bytes"
    if ours != theirs:
        yield f"dashboards: {sorted(ours)} are not {sorted(theirs)}, or differ"


def alerts_are_those_of_the_repository(found):
    ours = yaml.safe_load((ROOT / "grafana/alerts.yaml").read_text())
    [rule] = find(found, "PrometheusRule")
    if rule["spec"] != ours:
        yield "the PrometheusRule is not of grafana/alerts.yaml: scripts/manifests alerts"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(rule["spec"], file)
        file.flush()
        done = subprocess.run(
            ["promtool", "check", "rules", file.name], capture_output=True, text=True, timeout=60, check=False
        )
    if done.returncode:
        yield f"promtool: {(done.stdout + done.stderr).strip()}"


OF_PODS = [
    selectors_match_pods,
    ports_are_those_of_pods,
    probes_ask_for_what_they_decide,
    admin_port_is_for_monitoring,
    monitors_find_their_service,
    references_lead_to_objects,
    secrets_are_references,
    pods_are_restricted,
    roll_outs_lose_no_replica,
    images_are_of_this_version,
]

OF_MONITORING = [dashboards_are_those_of_the_repository, alerts_are_those_of_the_repository]
