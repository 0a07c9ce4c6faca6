"""Two instances of an agent, started again one after the other under load: no call is lost."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from joined import Process, gateway_of, send, workspace
from stage import PATIENCE, eventually, listens

AGENTS = ["py13", "js13"]
CALLERS = 4


class Load:
    """Callers that call one after the other, until it is over."""

    def __init__(self, gateway, name):
        self.gateway, self.name = gateway, name
        self.calls, self.lost, self.over = 0, [], threading.Event()
        self.threads = [threading.Thread(target=self.call, daemon=True) for _ in range(CALLERS)]
        for thread in self.threads:
            thread.start()

    def call(self):
        while not self.over.is_set():
            try:
                assert "alice" in send(self.gateway, self.name)
            except (AssertionError, OSError) as error:
                self.lost.append(str(error))
            self.calls += 1

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()


def instances(gateway, name):
    found = gateway.operate("GET", f"/workspaces/{name}", None).get("instances", [])
    return {one["instance_id"]: one["status"] for one in found}


def run(stage, built, told):
    gateway = gateway_of(stage)
    with ThreadPoolExecutor() as pool:
        for line in pool.map(lambda name: rolled(gateway, built, name), AGENTS):
            told(line)


def rolled(gateway, built, name):
    try:
        return rolled_well(gateway, built, name)
    except AssertionError as error:
        logs = [log.read_text()[-2000:] for log in gateway.stage.folder.glob(f"{name}-*.log")]
        raise AssertionError(f"{error}\n{instances(gateway, name)}\n{logs}") from None


def rolled_well(gateway, built, name):
    token = workspace(gateway, name)
    both = [Process(gateway, built, name, name, token, {"A2A_GATEWAY_INSTANCE": f"{name}-{n}", "WORK": "0.05"}) for n in (1, 2)]
    for process in both:
        process.start()
    eventually(lambda: list(instances(gateway, name).values()) == ["online", "online"], f"both of {name} are online")
    load = Load(gateway, name)
    time.sleep(0.5)
    for number, process in enumerate(both, 1):
        before = load.calls
        process.child.send_signal(signal.SIGTERM)
        eventually(lambda: instances(gateway, name).get(f"{name}-{number}") == "draining", f"{name}-{number} drains")
        assert listens(process.port), f"{name}-{number} closes its port before its last calls have come"
        assert process.child.wait(PATIENCE) is not None
        assert f"{name}-{number}" not in instances(gateway, name), f"{name}: {instances(gateway, name)}"
        process.start()
        eventually(lambda: instances(gateway, name).get(f"{name}-{number}") == "online", f"{name}-{number} is back")
        assert load.calls > before
    load.end()
    assert not load.lost, f"{name}: {len(load.lost)} of {load.calls} calls were lost, as {load.lost[0]}"
    return f"{name}: {load.calls} calls while both instances were started again, none was lost"
