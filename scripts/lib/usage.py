"""What `scripts/bench` can be asked for: arguments, names, binaries. What it cannot is refused in one line, with exit
status 64. `scripts/bench` runs this first (`usage.py NAME ARGUMENT…`), before anything is installed, built or started.
"""

import os
import sys

PROXIES = ["bare", "gateway", "nginx", "haproxy"]
ALL = ["bare", "gateway", "gateway-pair", "gateway-plain", "nginx", "haproxy", "diy", "diy-cached"]
# Given by their binaries in PEERS, with the sides that each has.
GIVEN_PEERS = {"agentgateway": ["agentgateway", "agentgateway-key", "agentgateway-jwt"],
               "envoy": ["envoy", "envoy-full"]}
OF_PEERS = [side for sides in GIVEN_PEERS.values() for side in sides]
# The sides that each case of `peers` has.
PEERS = {
    "unary": [*ALL, *OF_PEERS], "latency": ["direct", *ALL, *OF_PEERS], "paced": ["direct", *ALL, *OF_PEERS], "refusals": ["gateway", "gateway-limited", "diy"],
    "tls": ["nginx", "gateway", "haproxy"], "streams": ["direct", *PROXIES, "gateway-unlogged", *OF_PEERS],
    "memory": [*PROXIES, "gateway-unlogged", *OF_PEERS], "caches": ["gateway"]}
NAMES = {
    "peers": {"CASES": list(PEERS), "SIDES": ["direct", *ALL, "gateway-unlogged", "gateway-limited", *OF_PEERS]},
    "cores": {"SIDES": [*ALL, *OF_PEERS]},
    "scale": {"STORES": ["postgres", "sqlite"],
              "CASES": ["start", "warm", "deepest", "idle", "callers", "caches", "hearing"]}}
ONE_OF = {"CASES": "case", "SIDES": "side", "STORES": "kind of stores"}

# With their defaults, in the order in which they are given.
ARGUMENTS = {
    "path": {"ROUNDS": 5, "SECONDS": 5, "CONNECTIONS": 64, "BODY_BYTES": 512},
    "bridged": {"ROUNDS": 5, "SECONDS": 5, "CONNECTIONS": 64, "BODY_BYTES": 512},
    "guards": {"ROUNDS": 5, "SECONDS": 5, "CONNECTIONS": 64},
    "peers": {"ROUNDS": 5, "SECONDS": 5},
    "cores": {"ROUNDS": 5, "SECONDS": 5},
    "streams": {"ROUNDS": 5, "EVENTS": 2000, "PAUSE_MS": 2},
    "observed": {"ROUNDS": 5, "SECONDS": 5, "CONNECTIONS": 64, "SHARE_OF_TRACES": 0.1},
    "console": {"ROUNDS": 5, "SECONDS": 5, "CONNECTIONS": 64},
    "profile": {"SECONDS": 6},
    "memory": {},
    "beats": {"WORKSPACES": 300_000, "RATE": 10_000, "SECONDS": 30, "DISCOVER_RATE": 100},
    "scale": {"ROUNDS": 5, "SECONDS": 5},
    "slow": {"CONNECTIONS": 2000, "SECONDS": 60},
    "floods": {"SECONDS": 15}}
# Numbers, and lists of them, that come by the environment.
SETTINGS = {
    "peers": {"RATE": 2000, "CALLERS": 2000},
    "scale": {"WORKSPACES": 1_000_000, "CALLERS": 100_000, "RATE": 1000},
    "console": {"WORKSPACES": 5000, "RATE": 200}}
LISTS = {"peers": {"BODIES": [512, 10_000, 100_000, 1_000_000], "CONNECTIONS": [1, 64, 512], "STREAMS": [1000, 10_000]}}
# Where it is not 1.
LEAST = {"PAUSE_MS": 0, "DISCOVER_RATE": 0}

PROGRAMS = {"beats": ["load"], "scale": ["upstream", "load"], "streams": ["upstream", "passthrough", "load"],
            "peers": ["upstream", "passthrough", "load"], "cores": ["upstream", "passthrough", "load"]}


def refuse(text):
    print(text, file=sys.stderr)
    raise SystemExit(64)


def whole(name, text):
    least = LEAST.get(name, 1)
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        refuse(f"{name} has to be a whole number, at least {least}; it is {text!r}")
    return int(text)


def share(name, text):
    try:
        if 0 <= float(text) <= 1:
            return float(text)
    except ValueError:
        pass
    refuse(f"{name} has to be a number from 0 to 1; it is {text!r}")


def arguments(what, given):
    """By name."""
    form = ARGUMENTS[what]
    if len(given) > len(form):
        names = "".join(f" [{name}]" for name in form)
        refuse(f"too many arguments: {' '.join(given[len(form):])}; it is scripts/bench {what}{names}")
    told = {name: (share if isinstance(default, float) else whole)(name, text)
            for (name, default), text in zip(form.items(), given)}
    return {**form, **told}


def number(what, name):
    """Of the environment."""
    value = os.environ.get(name)
    return whole(name, value) if value else SETTINGS[what][name]


def numbers(what, name):
    value = os.environ.get(name)
    return [whole(name, one.strip()) for one in value.split(",")] if value else LISTS[what][name]


def names(what, setting):
    known, value = NAMES[what][setting], os.environ.get(setting)
    wanted = [one.strip() for one in value.split(",")] if value else known
    unknown = [one for one in wanted if one not in known]
    if unknown:
        refuse(f"no such {ONE_OF[setting]}: {', '.join(unknown)}; there are {', '.join(known)}")
    return wanted


def peers():
    """The binaries of PEERS by the names of the peers."""
    told = {}
    for one in filter(None, (one.strip() for one in os.environ.get("PEERS", "").split(","))):
        name, _, binary = one.partition(":")
        if name not in GIVEN_PEERS:
            refuse(f"PEERS: there is no configuration for {name!r}; it is NAME:/path, and NAME is {', '.join(GIVEN_PEERS)}")
        executable("PEERS", binary, f"the {name} project")
        told[name] = binary
    return told


def sides(what):
    """Those that are asked for; of given peers, those whose binary is given."""
    has = [side for peer in peers() for side in GIVEN_PEERS[peer]]
    missing = [side for side in OF_PEERS if side not in has]
    asked = names(what, "SIDES")
    if os.environ.get("SIDES") and set(asked) & set(missing):
        refuse(f"{', '.join(side for side in asked if side in missing)}: give the binary, PEERS=NAME:/path")
    plain = ["bare", "gateway", "nginx"] if what == "cores" and not os.environ.get("SIDES") else asked
    return [side for side in asked if side not in missing and (side in plain or side in has)]


def executable(setting, file, build):
    if not os.access(file, os.X_OK) or os.path.isdir(file):
        refuse(f"{setting}: there is no program {file}; it is built by `{build}`")


def check(what, given):
    """All of it."""
    told = arguments(what, given)
    for setting in NAMES.get(what, {}):
        names(what, setting)
    for setting in SETTINGS.get(what, {}):
        number(what, setting)
    for setting in LISTS.get(what, {}):
        numbers(what, setting)
    if what in ("peers", "cores"):
        wanted = sides(what)
    if what == "peers":
        cases = names(what, "CASES")
        if not any(set(PEERS[case]) & set(wanted) for case in cases):
            has = "; ".join(f"{case} has {', '.join(PEERS[case])}" for case in cases)
            refuse(f"none of the cases has a side {', '.join(wanted)}: {has}")
    if what == "scale":
        few, many = number(what, "CALLERS"), number(what, "WORKSPACES")
        if many < 2000 or few > many:
            refuse(f"WORKSPACES has to be at least 2000 and CALLERS at most as many; they are {many} and {few}")
    if (os.environ.get("PROOF") or "pair") not in ("pair", "request"):
        refuse(f"PROOF is pair or request; it is {os.environ['PROOF']!r}")
    if os.environ.get("BIN"):
        for program in ["a2a-gateway", *(f"examples/{name}" for name in PROGRAMS.get(what, ["upstream", "passthrough"]))]:
            executable("BIN", f"{os.environ['BIN']}/{program}", "cargo build --locked --release --examples, then --bins")
    if os.environ.get("BEFORE"):
        executable("BEFORE", os.environ["BEFORE"], "cargo build --locked --release --bin a2a-gateway")
    return told


THREADS = whole("THREADS", os.environ.get("THREADS") or "1")
# The benchmark that runs, and its arguments.
WHAT = os.path.basename(sys.argv[0]).removesuffix(".py")
GIVEN = arguments(WHAT, sys.argv[1:]) if WHAT in ARGUMENTS else {}

if __name__ == "__main__":
    check(sys.argv[1], sys.argv[2:])
