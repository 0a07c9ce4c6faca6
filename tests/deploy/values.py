"""The chart with every value set to another one, and with a long name of the release."""

import pathlib

import yaml

import render
import rules
from render import CHART, ROOT, find

VALUES = pathlib.Path(__file__).with_name("values.yaml")

# Maps whose names are the user's.
FREE = {"resources", "podAnnotations", "nodeSelector", "labels"}

# The most that server.replica, which is the pod's name, may have; and what a pod's name adds to its Deployment's.
REPLICA_MAX = 48
POD_NAME = "-7c9d8f6b5d-x2x4z"

# The longest name of a release that Helm takes.
RELEASE_MAX = 53

# Rules of the defaults: names of Secrets, the image, and the names of the first release.
OF_DEFAULTS = {rules.secrets_are_references, rules.images_are_of_this_version, rules.probes_ask_for_what_they_decide}


def leaves(values, path=""):
    for name, value in values.items():
        if isinstance(value, dict) and name not in FREE:
            yield from leaves(value, f"{path}{name}.")
        else:
            yield path + name, value


def problems(checks):
    defaults = dict(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    others = dict(leaves(yaml.safe_load(VALUES.read_text())))
    for name in sorted(defaults.keys() | others.keys()):
        if defaults.get(name) == others.get(name):
            yield f"{VALUES.relative_to(ROOT)} has no other value for {name}"
    for arguments in (["--values", VALUES], ["--values", VALUES, "--set", "networkPolicy.enabled=true"]):
        rendered = checks.tools.helm(*arguments)
        yield from checks.schemas.problems(rendered)
        for rule in rules.OF_PODS:
            if rule not in OF_DEFAULTS:
                yield from rule(rendered)
        text = yaml.safe_dump_all(rendered)
        for word in ("registry.example.com/a2a-gateway:0.2.0", "https://agents.example.com", "gateway.internal:8443"):
            if word not in text:
                yield f"the chart does not use {word}"
    if find(checks.tools.helm("--values", VALUES), "NetworkPolicy"):
        yield "networkPolicy.enabled=false leaves the NetworkPolicy"

    long = checks.tools.helm("--set", "monitoring.enabled=true", release="a-release-with-a-long-name".ljust(RELEASE_MAX, "x"))
    yield from checks.schemas.problems(long)
    for rule in rules.OF_PODS:
        if rule not in OF_DEFAULTS:
            yield from rule(long)
    [deployment] = find(long, "Deployment")
    name = deployment["metadata"]["name"] + POD_NAME
    if len(name) > REPLICA_MAX:
        yield f"server.replica would be {name}, which is longer than {REPLICA_MAX}"
