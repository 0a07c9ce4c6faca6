"""What the Python drivers share: reading jobs, the scenarios in terms of an SDK, and a record of what went over the wire.

A driver reads `{"jobs": [{"name", "base", "token", "binding", "version", "scenarios"}]}` from standard input and
prints `{name: {scenario: {"saw", "wire"}}}`. `saw` is what the SDK made of it, the same for every SDK.
"""

import asyncio
import json
import sys
from contextlib import aclosing, nullcontext
from pathlib import Path

import httpx

sys.path.append(str(Path(__file__).parent.parent))
import tracing

PATIENCE = 30
# For a scenario as a whole: 20,000 events take the SDK for Python a while.
SCENARIO_PATIENCE = 90
# Longer texts are told by their length.
TEXT_MAX = 64
UNKNOWN = "00000000-0000-4000-8000-000000000000"
HOOK = "http://127.0.0.1:9/hook"
# What `parts` sends beside its text.
DATA = {"n": 7, "deep": [1.5, None, "ü"]}
BYTES = "AP8="
PLACE = "http://127.0.0.1:9/f.png"


class NotOffered(Exception):
    """The SDK has no such call."""


class Tee(httpx.AsyncByteStream):
    def __init__(self, stream, entry):
        self.stream, self.entry = stream, entry

    async def __aiter__(self):
        async for piece in self.stream:
            self.entry["pieces"].append(piece)
            yield piece

    async def aclose(self):
        await self.stream.aclose()


class Recording(httpx.AsyncBaseTransport):
    """Writes down status, type and body of each answer, in the order of the requests."""

    def __init__(self):
        self.inner, self.entries = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=100)), []

    async def handle_async_request(self, request):
        entry = {"status": None, "type": None, "pieces": []}
        self.entries.append(entry)
        response = await self.inner.handle_async_request(request)
        entry.update(status=response.status_code, type=response.headers.get("content-type"))
        response.stream = Tee(response.stream, entry)
        return response

    def take(self):
        taken, self.entries = self.entries, []
        return [{"status": e["status"], "type": e["type"], "body": b"".join(e["pieces"]).decode()} for e in taken]


def state(name):
    """`TASK_STATE_INPUT_REQUIRED` and `input-required` are one."""
    return name.removeprefix("TASK_STATE_").lower().replace("_", "-")


def shown(text):
    return text if len(text) <= TEXT_MAX else f"{len(text)} characters"


def told(event):
    """An event without the ids, which differ from run to run, and without its place in an artifact."""
    return {name: value for name, value in event.items() if name not in ("task_id", "context_id", "append", "last")}


class Scenarios:
    """Each is a coroutine that returns what was seen. `sdk` is the driver's own adapter."""

    def __init__(self, sdk):
        self.sdk = sdk

    async def card(self):
        return await self.sdk.card()

    async def _one(self, text, **more):
        async with aclosing(self.sdk.send(text, stream=False, **more)) as events:
            return [event async for event in events][-1]

    async def _task(self):
        return await self._one("task")

    async def send(self):
        return told(await self._one("hello"))

    async def task(self):
        return told(await self._task())

    async def stream(self, text="stream 3"):
        async with aclosing(self.sdk.send(text, stream=True)) as events:
            return [told(event) async for event in events]

    async def pieces(self):
        """An artifact in pieces as they came, and the task with the whole of it."""
        async with aclosing(self.sdk.send("pieces", stream=True)) as events:
            seen = [event async for event in events]
        places = [[event["append"], event["last"]] for event in seen if "artifact" in event]
        task = told(await self.sdk.get(seen[-1]["task_id"]))
        return {"stream": [told(event) for event in seen], "places": places, "task": task}

    async def parts(self):
        return await self.sdk.parts()

    async def extended(self):
        return await self.sdk.extended()

    async def talk(self, texts):
        return await self.sdk.talk(texts)

    async def long(self):
        return len(await self.stream("stream 20000"))

    async def big(self):
        return await self.stream(f"big {9 << 20}")

    async def crowd(self):
        streams = await asyncio.gather(*(self.stream() for _ in range(50)))
        return {"streams": len(streams), "alike": all(events == streams[0] for events in streams), "one": streams[0]}

    async def get(self):
        return told(await self.sdk.get((await self._task())["task_id"]))

    async def ask(self):
        asked = await self._one("ask")
        answered = await self._one("answer", task=asked["task_id"], context=asked["context_id"])
        return [told(asked), told(answered)]

    async def fail(self):
        return told(await self._one("fail"))

    async def _begun(self, text, seen):
        """A task that waits, followed in the background: its id, and the following."""
        begun = asyncio.get_running_loop().create_future()

        async def follow():
            async with aclosing(self.sdk.send(text, stream=True)) as events:
                async for event in events:
                    seen.append(told(event))
                    # Working, not only submitted: then the agent is in its own code.
                    if "working" in event.values() and not begun.done():
                        begun.set_result(event["task_id"])

        following = asyncio.create_task(follow())
        await asyncio.wait([begun, following], return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            await following
        return await begun, following

    async def cancel(self):
        seen = []
        task_id, following = await self._begun("wait", seen)
        canceled = await self.sdk.cancel(task_id)
        await following
        return {"canceled": told(canceled), "stream": seen}

    async def zombie(self):
        seen = []
        task_id, following = await self._begun("zombie", seen)
        canceled = await self.sdk.cancel(task_id)
        error = None
        try:
            await following
        except Exception as failure:
            error = failed(failure)
        return {"canceled": told(canceled), "stream": seen, "error": error}

    async def resubscribe(self):
        seen = []
        task_id, following = await self._begun("wait", [])

        async def follow():
            async with aclosing(self.sdk.subscribe(task_id)) as events:
                async for event in events:
                    seen.append(told(event))

        before = len(self.sdk.recording.entries)
        again = asyncio.create_task(follow())
        # 0.3.26 says nothing at first: its ping, which comes after a second, shows that it follows the task. A client may try
        # another HTTP method before, which that one answers with 405.
        while not again.done() and not any(e["pieces"] for e in self.sdk.recording.entries[before:] if e["status"] == 200):
            await asyncio.sleep(0.01)
        await self.sdk.cancel(task_id)
        await asyncio.gather(following, again)
        return seen

    async def list(self):
        task = await self._task()
        return [told(one) for one in await self.sdk.list(task["context_id"])]

    async def push(self):
        task_id, following = await self._begun("wait", [])
        try:
            return await self.sdk.push(task_id, HOOK)
        finally:
            await self.sdk.cancel(task_id)
            await following

    async def unknown(self):
        return told(await self.sdk.get(UNKNOWN))

    async def terminal(self):
        return told(await self.sdk.cancel((await self._task())["task_id"]))

    async def ended(self):
        task = await self._task()
        return told(await self._one("more", task=task["task_id"], context=task["context_id"]))

    # Two callers: what one begins, and what another then tries on it.

    async def begin(self):
        task = await self._one("ask")
        return {"task_id": task["task_id"], "context_id": task["context_id"]}

    async def look(self, theirs):
        return told(await self.sdk.get(theirs["task_id"]))

    async def intrude(self, theirs):
        found = {}
        for name, attempt in {
            "get": lambda: self.sdk.get(theirs["task_id"]),
            "list": lambda: self._listed(theirs["context_id"]),
            "subscribe": lambda: self._subscribed(theirs["task_id"]),
            "push": lambda: self.sdk.push(theirs["task_id"], HOOK),
            "continue": lambda: self._one("more", task=theirs["task_id"], context=theirs["context_id"]),
            "cancel": lambda: self.sdk.cancel(theirs["task_id"]),
        }.items():
            found[name] = await outcome(attempt())
        return found

    async def _listed(self, context_id):
        return [task["task_id"] for task in await self.sdk.list(context_id)]

    async def _subscribed(self, task_id):
        async with aclosing(self.sdk.subscribe(task_id)) as events:
            async for event in events:
                return told(event)


def failed(failure):
    return f"{type(failure).__name__}: {failure}"


async def outcome(attempt):
    try:
        return {"got": await attempt}
    except NotOffered:
        return {"not_offered": True}
    except Exception as failure:
        return {"error": failed(failure)}


async def run(make):
    results = {}
    tracer = tracing.start("client")
    for job in json.load(sys.stdin)["jobs"]:
        recording = Recording()
        fields = dict(job.get("fields", {}))
        if job["token"]:
            fields["Authorization"] = f"Bearer {job['token']}"
        async with httpx.AsyncClient(transport=recording, headers=fields, timeout=PATIENCE) as http:
            if tracer:
                from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor

                HTTPXClientInstrumentor.instrument_client(http)
            sdk = make(http, job)
            sdk.recording = recording
            results[job["name"]] = found = {}
            try:
                await sdk.connect()
            except Exception as failure:
                found["connect"] = {"saw": {"error": failed(failure)}, "wire": recording.take()}
                continue
            recording.take()
            for scenario in job["scenarios"]:
                name, argument = scenario if isinstance(scenario, list) else (scenario, None)
                # Tells the agent's record which request belongs to what; gateways pass it on.
                http.headers["baggage"] = f"job={job['name']},scenario={name}"
                method = getattr(Scenarios(sdk), name)
                with tracer.start_as_current_span(f"{job['name']} {name}") if tracer else nullcontext():
                    saw = await outcome(asyncio.wait_for(method(argument) if argument else method(), SCENARIO_PATIENCE))
                found[name] = {"saw": saw, "wire": recording.take()}
    json.dump(results, sys.stdout)
