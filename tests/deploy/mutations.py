"""Spoilt manifests: each must be found, by the check that is meant to find it."""

import copy

from render import Refused, differences, find


def template(found):
    return find(found, "Deployment", "a2a-gateway")["spec"]["template"]


def container(found):
    return template(found)["spec"]["containers"][0]


def set_at(*path):
    """A change of one field. The path is of kind, name, the names of fields, and the value."""
    kind, name, *names, last, value = path

    def spoil(found):
        place = find(found, kind, name)
        for step in names:
            place = place[step]
        place[last] = value

    return spoil


def of_container(name, value):
    return lambda found: container(found).__setitem__(name, value)


def configured(old, new):
    def spoil(found):
        data = find(found, "ConfigMap", "a2a-gateway")["data"]
        assert old in data["config.toml"], old
        data["config.toml"] = data["config.toml"].replace(old, new)

    return spoil


def probe(path_or_port, value):
    return lambda found: container(found)["readinessProbe"]["httpGet"].__setitem__(path_or_port, value)


def rename_label(found):
    template(found)["metadata"]["labels"]["app.kubernetes.io/name"] = "gateway"


def add_secret(found):
    found.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sql"}, "stringData": {"url": "x"}})


def alert_expression(found):
    find(found, "PrometheusRule", "a2a-gateway")["spec"]["groups"][0]["rules"][0]["expr"] = "up{ == 0"


NAME = "a2a-gateway"
OF_SPEC = ("template", "spec")

# A name, the change, and what the complaint has.
ALL = [
    ("an unknown field of a container", of_container("reddinessProbe", {}), "schema of Kubernetes 1."),
    ("a field of a wrong type", set_at("Service", NAME, "spec", "ports", "80"), "schema of Kubernetes 1."),
    ("an old version of an API", set_at("PodDisruptionBudget", NAME, "apiVersion", "policy/v1beta1"), "no such kind"),
    ("an unknown field of a ServiceMonitor", set_at("ServiceMonitor", NAME, "spec", "endpoints", 0, "pourt", "admin"),
     "schema of the custom resource"),
    ("an interval that is none", set_at("ServiceMonitor", NAME, "spec", "endpoints", 0, "interval", "soon"),
     "must match pattern"),
    ("pods without the labels of the selector", rename_label, "Deployment a2a-gateway selects no pod"),
    ("a budget for other pods", set_at("PodDisruptionBudget", NAME, "spec", "selector", {"matchLabels": {"a": "b"}}),
     "PodDisruptionBudget a2a-gateway selects no pod"),
    ("a Service for a port that is not there", set_at("Service", NAME, "spec", "ports", 0, "targetPort", "web"),
     "no port web"),
    ("readiness that fails with the stores", probe("path", "/readyz"), "readinessProbe of a2a-gateway asks /readyz"),
    ("a probe of a port that is not there", probe("port", "http2"), "no port http2"),
    ("a policy for a port that is not there", set_at("NetworkPolicy", NAME, "spec", "ingress", 0, "ports", 0, "port",
                                                     "web"), "no port web"),
    ("an admin listener for all", set_at("NetworkPolicy", NAME, "spec", "ingress", 1, "from", []),
     "every pod reaches the admin listener"),
    ("an autoscaler of nothing", set_at("HorizontalPodAutoscaler", NAME, "spec", "scaleTargetRef", "name", "gateway"),
     "which is not there"),
    ("an autoscaler that waits for too many exchanges", set_at(
        "HorizontalPodAutoscaler", NAME, "spec", "metrics", 0, "pods", "target", "averageValue", "9000"),
     "cannot take those of both"),
    ("a monitor without a Service", set_at("ServiceMonitor", NAME, "spec", "selector", {"matchLabels": {"a": "b"}}),
     "finds 0 services"),
    ("a job that the alerts do not know", set_at("ServiceMonitor", NAME, "spec", "jobLabel", "job"), "the job is None"),
    ("a Secret in the manifests", add_secret, "a Secret is in the manifests"),
    ("secrets that all may read", lambda found: template(found)["spec"]["volumes"][1]["secret"].__setitem__(
        "defaultMode", 0o444), "not of the mode 0400"),
    ("a Secret without the key", lambda found: [
        variable.__setitem__("value", "/run/secrets/a2a-gateway/sql")
        for variable in container(found)["env"] if variable["name"].endswith("SQL_FILE")], "has no key for"),
    ("a writable root folder", lambda found: container(found)["securityContext"].pop("readOnlyRootFilesystem"),
     "readOnlyRootFilesystem"),
    ("a pod that may be root", lambda found: template(found)["spec"]["securityContext"].pop("runAsNonRoot"),
     "runAsNonRoot"),
    ("a roll-out that takes replicas away", set_at(
        "Deployment", NAME, "spec", "strategy", "rollingUpdate", "maxUnavailable", 1), "before others are ready"),
    ("an image of another version", of_container("image", "a2a-gateway:latest"), "the image is"),
    ("a grace period below the drain", set_at(
        "Deployment", NAME, "spec", *OF_SPEC, "terminationGracePeriodSeconds", 130),
     "terminationGracePeriodSeconds is below"),
    ("a longer drain than the grace period", configured('"130s"', '"300s"'), "terminationGracePeriodSeconds is below"),
    ("an unknown setting", configured("threads = 2", "treads = 2"), "check-config:"),
    ("a listener on another port", configured("0.0.0.0:9090", "0.0.0.0:9191"), "admin.listen is 0.0.0.0:9191"),
    ("an alert without an expression", alert_expression, "promtool:"),
    ("an alert that is not the repository's", lambda found: find(found, "PrometheusRule", NAME)["spec"]["groups"].pop(),
     "is not of grafana/alerts.yaml"),
    ("a dashboard that is missing", lambda found: found.remove(
        find(found, "ConfigMap", "a2a-gateway-dashboard-stores")), "dashboards:"),
]

# Values that the chart's schema refuses.
VALUES = [
    ("an unknown value", ["replicas=3"], "additional properties 'replicas' not allowed"),
    ("a value of a wrong type", ["autoscaling.minReplicas=two"], "got string, want integer"),
    ("a public URL without a scheme", ["publicUrl=gateway.example.com"], "does not match pattern"),
]


def outcome(checks, found, spoil, complaint):
    """No problem if the spoilt objects have the problem that they should have."""
    spoilt = copy.deepcopy(found)
    spoil(spoilt)
    told = []
    # Up to the wanted one: what comes behind a schema may rely on it.
    for problem in checks.problems(spoilt):
        if complaint in problem:
            return
        told.append(problem)
    yield f"nothing says {complaint!r}: {told}"


def noticed(kustomized, tools):
    """No problem if another value of the chart is found as a difference."""
    complaint = "HorizontalPodAutoscaler/a2a-gateway.spec.maxReplicas: '10' is not '9'"
    told = list(differences(kustomized, tools.helm("--set", "autoscaling.maxReplicas=9")))
    if len(told) != 1 or complaint not in told[0]:
        yield f"one difference is expected: {told}"


def refused(tools, values, complaint):
    try:
        tools.helm(*(word for value in values for word in ("--set", value)))
    except Refused as refusal:
        if complaint not in str(refusal):
            yield f"nothing says {complaint!r}: {refusal}"
    else:
        yield "the chart takes it"
