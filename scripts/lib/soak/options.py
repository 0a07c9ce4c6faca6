"""What `scripts/soak` is asked for. What it cannot be is refused in one line, with exit status 64: 1 means that something
was lost. `scripts/soak` runs this first, before anything is installed, built or started.
"""

import math
import os
import random
import sys

import failovers
import usage


def minutes(given):
    """`None`: one round."""
    if not given:
        return None if SHORT else 30.0
    if len(given) > 1:
        usage.refuse(f"too many arguments: {' '.join(given[1:])}; it is scripts/soak [MINUTES]")
    try:
        if 0 < float(given[0]) < math.inf:
            return float(given[0])
    except ValueError:
        pass
    usage.refuse(f"MINUTES has to be a number over 0; it is {given[0]!r}")


def short():
    value = os.environ.get("SHORT", "")
    if value not in ("", "0", "1"):
        usage.refuse(f"SHORT has to be 1 or 0; it is {value!r}")
    return value == "1"


def seed():
    value = os.environ.get("SEED", "")
    if value and not (value.isascii() and value.isdigit()):
        usage.refuse(f"SEED has to be a whole number; it is {value!r}")
    return int(value) if value else random.SystemRandom().randrange(1 << 32)


def kind():
    value = os.environ.get("STORES") or "plain"
    if value not in failovers.KINDS:
        usage.refuse(f"STORES has to be {', '.join(failovers.KINDS)}; it is {value!r}")
    return value


def wanted():
    """Names of faults, in the order of the first round."""
    words = [word.strip().lower() for word in os.environ.get("FAULTS", "").split(",") if word.strip()]
    every = list(KIND.all)
    unknown = [word for word in words if not any(word in name.lower() for name in every)]
    if unknown:
        known = "; ".join(every)
        usage.refuse(f"no fault of STORES={STORES} has {' or '.join(map(repr, unknown))} in its name; there are: {known}")
    if not words:
        return every[:KIND.short] if SHORT else every
    return [name for name in every if any(word in name.lower() for word in words)]


SHORT = short()
MINUTES = minutes(sys.argv[1:])
SEED = seed()
STORES = kind()
KIND = failovers.KINDS[STORES]
FAULTS = wanted()
# Whether tokens are revoked while a store is broken. The version that each change runs has no time for it.
REVOKES = STORES != "plain" or not SHORT
if os.environ.get("BIN"):
    usage.executable("BIN", f"{os.environ['BIN']}/a2a-gateway", "cargo build --locked --release --bin a2a-gateway")
