"""Agents that poll: a handler for each message, in Python and in JavaScript."""

import signal
from concurrent.futures import ThreadPoolExecutor

from joined import Process, gateway_of, message, status, texts, workspace
from stage import call, eventually

AGENTS = {"poll-python": "poller", "poll-javascript": "poller.mjs"}
WAIT = {"Prefer": "wait=20"}


def asked(gateway, name, text):
    answer = call("POST", f"{gateway.origin}/workspaces/{name}/a2a", gateway.tokens["alice"], message(text), WAIT)
    assert answer.status == 200, f"{name}: {answer}"
    return answer.json()


def run(stage, built, told):
    with ThreadPoolExecutor() as pool:
        for line in pool.map(lambda name: polled(gateway_of(stage), built, name), AGENTS):
            told(line)


def polled(gateway, built, name):
    token = workspace(gateway, name, delivery_mode="poll")
    agent = Process(gateway, built, AGENTS[name], name, token, {}).start()
    agent.await_status("online")
    first = asked(gateway, name, "hello")
    assert "alice said hello" in texts(first), f"{name}: {first}\n{agent.log.read_text()[-2000:]}"
    for word in ("fail", "empty"):
        failed = asked(gateway, name, word)
        assert failed.get("error", {}).get("message") == "the agent failed", f"{name}: {failed}"
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: asked(gateway, name, f"number {n}"), range(20)))
    assert [texts(answer) for answer in answers] == [[f"alice said number {n}"] for n in range(20)], answers
    # What comes while it is dead waits for it.
    agent.stop()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asked, gateway, name, "are you back?")
        agent.start()
        assert "alice said are you back?" in texts(waiting.result()), f"{name}: {waiting.result()}"
    gateway.restart()
    eventually(lambda: answered(gateway, name), f"{name} answers again")
    agent.stop(signal.SIGTERM)
    assert agent.child.returncode == 0, f"{name}: {agent.child.returncode}\n{agent.log.read_text()[-2000:]}"
    assert status(gateway, name) == "offline", name
    return f"{name}: a handler has each message once, also of the time in which it was dead"


def answered(gateway, name):
    """Whether the agent answers: it reads the feed of a gateway that was killed again, when that is back."""
    try:
        return "alice said again" in texts(asked(gateway, name, "again"))
    except (AssertionError, OSError):
        return False
