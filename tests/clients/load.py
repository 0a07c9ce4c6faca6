"""What is many, long or large, and what never ends, through the gateway."""

from concurrent.futures import ThreadPoolExecutor

from expected import COMPLETED, STREAM, SUBMITTED, WORKING
from stage import SDKS

# What the Python agents would take a minute to say.
FAST = {"py03": "js03", "py13": "js13"}
# Each SDK with its own agent, over what it would choose itself; REST where it is a binding of its own.
CELLS = [("py03", "0.3", "JSONRPC"), ("js03", "0.3", "JSONRPC"), ("py13", "1.0", "JSONRPC"), ("js13", "1.0", "JSONRPC"),
         ("js13", "1.0", "HTTP+JSON")]
BIG = 9 << 20
GOT = {
    "crowd": {"streams": 50, "alike": True, "one": STREAM},
    # The task, that it works, the events, the artifact, the end.
    "long": 20_000 + 4,
    "big": [SUBMITTED, WORKING, {"artifact": f"{BIG} characters"}, COMPLETED],
}
CANNOT = {"js13": {"big": "this client takes 4 MiB for an event"}}
# An idle clock shorter than the stream's: the agent's pings count for it, and not for the other.
CLOCKS = {"timeouts.idle": "6s", "timeouts.stream": "12s"}


def judge(sdk, scenario, found):
    saw = found["saw"]
    if CANNOT.get(sdk, {}).get(scenario):
        return None if "4194304" in saw.get("error", "") else f"another outcome: {saw}"
    return None if saw.get("got") == GOT[scenario] else f"another outcome: {str(saw)[:600]}"


def judge_zombie(found):
    """It must end by the clock of the whole stream, with an error that the SDK shows."""
    saw, stream = found["saw"].get("got"), found["wire"][0]["body"]
    if not saw or saw["canceled"] != {"task": "canceled", "artifacts": []}:
        return f"not canceled: {found['saw']}"
    if '"AGENT_TIMEOUT"' not in stream or '"clock":"stream"' not in stream:
        return f"the stream's last event does not say that its clock passed: {stream[-600:]}"
    if ": ping" not in stream:
        return f"the agent did not ping: {stream}"
    return None if saw["error"] else "the SDK shows no error"


def run(stage):
    agents = stage.agents(*SDKS)
    patient, impatient = stage.gateway(), stage.gateway(**CLOCKS)
    seats = {sdk: (patient, patient.seat(agent)) for sdk, agent in agents.items()}
    zombie = (impatient, impatient.seat(agents["py03"]))
    failures = []

    def drive(sdk, seat, version, binding, scenarios):
        gateway, base = seat
        job = {"name": "load", "base": base, "token": gateway.tokens["alice"], "binding": binding, "version": version,
               "scenarios": scenarios}
        found = stage.drive(sdk, [job])["load"]
        for scenario in scenarios:
            why = CANNOT.get(sdk, {}).get(scenario)
            if scenario not in found:
                wrong = str(found["connect"])
            else:
                wrong = judge_zombie(found[scenario]) if scenario == "zombie" else judge(sdk, scenario, found[scenario])
            print(f"{sdk} {version} {binding:9} {scenario:6} {'FAILED' if wrong else f'impossible: {why}' if why else 'ok'}")
            if wrong:
                failures.append(f"{sdk} {version} {binding}, {scenario}: {wrong}")

    for sdk, version, binding in CELLS:
        drive(sdk, seats[sdk], version, binding, ["crowd", "big"])
        drive(sdk, seats[FAST.get(sdk, sdk)], version, binding, ["long"])
    # They mostly wait.
    with ThreadPoolExecutor(len(SDKS)) as pool:
        list(pool.map(lambda sdk: drive(sdk, zombie, "0.3", "JSONRPC", ["zombie"]), SDKS))
    return failures
