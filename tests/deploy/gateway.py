"""The rendered Deployment and the example agent, as processes: what their probes, metrics and calls answer."""

import contextlib
import pathlib
import re
import subprocess
import tempfile

import processes
from processes import free_port, get, post, running, until
from render import find

# Nothing listens on this port.
AWAY = {"sql-url": "postgres://a2a:secret@127.0.0.1:1/a2a", "shared-url": "redis://127.0.0.1:1/0"}


def stored(token):
    return {"a2a-gateway": {**AWAY, "admin-token": token}, "a2a-gateway-keys": processes.key_files()}


def settings(found, binary):
    """The settings of the rendered configuration, or why the program refuses it."""
    with tempfile.TemporaryDirectory() as root:
        pod = processes.Pod(found, pathlib.Path(root), binary, stored(processes.operator_token()))
        return pod.settings()


@contextlib.contextmanager
def served(pod, root, ports, environment):
    """The gateway of the pod on free ports of this machine."""
    public, admin = ports
    environment = {
        **pod.environment, **environment,
        "A2A_GATEWAY__SERVER__LISTEN": f"127.0.0.1:{public}",
        "A2A_GATEWAY__ADMIN__LISTEN": f"127.0.0.1:{admin}",
    }
    log = root / "gateway.log"
    with running([*pod.command, *pod.arguments], environment, pod.folder, log) as process:
        until(process, log, lambda: get(admin, "/version"))
        yield process, log


def probes_follow_the_stores(found, binary):
    """While no store answers, the container lives and takes no calls. It takes them once the stores answer."""
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        token = processes.operator_token()
        pod = processes.Pod(found, root, binary, stored(token))
        startup, liveness, readiness = pod.probes()
        public, admin = ports = free_port(), free_port()
        with served(pod, root, ports, {}):
            for path, wanted in [(startup, 200), (liveness, 200), (readiness, 503)]:
                status, text = get(admin, path)
                if status != wanted:
                    yield f"without stores {path} is {status}, not {wanted}: {text}"
        for name in ("SQL", "SHARED"):
            del pod.environment[f"A2A_GATEWAY__STORES__{name}_FILE"]
        embedded = {"A2A_GATEWAY__STORES__SQL": "sqlite:gateway.db", "A2A_GATEWAY__STORES__SHARED": "memory"}
        with served(pod, root, ports, embedded) as (process, log):
            until(process, log, lambda: get(admin, readiness)[0] == 200)
            # The port that the Service's name in a URL has is 80: no port in the field.
            for host, wanted in [("a2a-gateway", 404), ("a2a-gateway.a2a.svc", 404), ("other.example", 421)]:
                if (status := get(public, "/", Host=host)[0]) != wanted:
                    yield f"Host: {host} is {status}, not {wanted}"
            metrics = get(admin, "/metrics")[1]
            for one in find(found, "HorizontalPodAutoscaler"):
                for metric in one["spec"]["metrics"]:
                    name = metric.get("pods", {}).get("metric", {}).get("name")
                    if name and f"# TYPE {name} gauge\n" not in metrics:
                        yield f"HorizontalPodAutoscaler: {name} is no gauge of the gateway"


def agents_are_reached_through_the_sidecar(found, example, binary):
    """The gateway, the example's sidecar and agent: a call gets its answer, and one past the gateway is refused."""
    spec = find(example, "Deployment", "echo-agent")["spec"]["template"]["spec"]
    [sidecar], [agent] = spec["initContainers"], spec["containers"]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        root = pathlib.Path(folder)
        operator = processes.operator_token()
        pod = processes.Pod(found, root, binary, stored(operator))
        for name in ("SQL", "SHARED"):
            del pod.environment[f"A2A_GATEWAY__STORES__{name}_FILE"]
        embedded = {"A2A_GATEWAY__STORES__SQL": "sqlite:gateway.db", "A2A_GATEWAY__STORES__SHARED": "memory"}
        public, admin, guarded, alone = (free_port() for _ in range(4))
        process, log = stack.enter_context(served(pod, root, (public, admin), embedded))
        until(process, log, lambda: get(admin, "/readyz/traffic")[0] == 200)
        post(public, "/workspaces", operator, {"id": "echo", "name": "Echo"})
        token = post(public, "/workspaces/echo/tokens", operator, {})["token"]
        addresses = {
            "http://a2a-gateway": f"http://127.0.0.1:{public}",
            "http://echo-agent:8081": f"http://127.0.0.1:{guarded}",
            "0.0.0.0:8081": f"127.0.0.1:{guarded}",
            "127.0.0.1:8000": f"127.0.0.1:{alone}",
        }
        for one, environment in [(sidecar, {}), (agent, {"A2A_GATEWAY_TOKEN": token})]:
            arguments = one["args"]
            for name, address in addresses.items():
                arguments = [re.sub(rf"{re.escape(name)}(?![\w.-])", address, word) for word in arguments]
            log = root / f"{one['name']}.log"
            process = stack.enter_context(running([binary, *arguments], environment, root, log))
            port, path = (guarded, sidecar["readinessProbe"]["httpGet"]["path"]) if one is sidecar else (alone, "/")
            until(process, log, lambda: get(port, path)[0] in ((200,) if one is sidecar else (200, 404, 405)))
        command = [binary, "send", "echo", "hello", "--url", f"http://127.0.0.1:{public}", "--token", operator]

        def answered():
            nonlocal done
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            return done.returncode == 0

        done = None
        until(process, log, answered)
        if done.stdout.strip() != "echo: hello":
            yield f"the agent's answer through the sidecar: {done.stdout}"
        status, text = get(guarded, "/")
        if status != 401:
            yield f"past the gateway the sidecar answers {status}: {text}"
