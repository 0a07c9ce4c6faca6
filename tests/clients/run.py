"""Real A2A SDKs against the real gateway. Started by tests/clients.rs: run.py GATEWAY PACKAGES PART."""

import argparse
import importlib
import sys

from stage import Stage

PARTS = ["matrix", "pocketpaw", "owners", "load", "completion", "documents", "polling", "refusals", "generations", "traces",
         "instances", "grpc_front", "grpc_behind"]
# Of a failure, in characters.
TOLD_MAX = 1500


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("gateway", help="the binary")
    options.add_argument("packages", help="what scripts/clients printed")
    options.add_argument("part", choices=PARTS)
    options = options.parse_args()
    with Stage(options.gateway, options.packages) as stage:
        failures = importlib.import_module(options.part).run(stage)
    for failure in failures:
        print(f"FAILED {' '.join(failure.split())[:TOLD_MAX]}")
    sys.exit(1 if failures else 0)


main()
