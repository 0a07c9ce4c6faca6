"""Makes deploy/kubernetes/monitoring/prometheusrule.yaml of grafana/alerts.yaml, since Kustomize reads no file into a
field."""

import pathlib
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy/kubernetes/monitoring/prometheusrule.yaml"
HEAD = """\
# Made of grafana/alerts.yaml by `scripts/manifests alerts`: change that file.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: a2a-gateway
spec:
"""


def text():
    alerts = (ROOT / "grafana/alerts.yaml").read_text()
    groups = alerts[alerts.index("groups:\n"):]
    return HEAD + textwrap.indent(groups, "  ")


if __name__ == "__main__":
    FILE.write_text(text())
