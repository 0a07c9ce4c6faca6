"""An agent that behaves as PocketPaw's documents say (A2A 0.2.5, in its own spelling): `type` parts, snake case, no `kind` and no
`contextId` in tasks, routes of its own beside JSON-RPC, two error codes with a meaning of its own."""

import asyncio
import json
import uuid
from collections import OrderedDict

from serving import serve, word_and_number
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

TASKS_MAX = 1000
TERMINAL = {"completed", "failed", "canceled", "rejected"}


class Fault(Exception):
    def __init__(self, code, message):
        self.body = {"code": code, "message": message}


class Paw:
    """The tasks, in memory, the oldest forgotten first."""

    def __init__(self):
        self.tasks = OrderedDict()

    def find(self, task_id):
        if task_id not in self.tasks:
            raise Fault(-32001, "Task not found")
        return self.tasks[task_id]

    def begin(self, params):
        message = params.get("message")
        parts = message.get("parts") if isinstance(message, dict) else None
        if not isinstance(parts, list) or not parts or any(part.get("type", part.get("kind")) not in ("text", "data", "file") for part in parts):
            raise Fault(-32602, "message.parts must be a list of parts with a type")
        configuration = params.get("configuration") or {}
        modes = configuration.get("accepted_output_modes", configuration.get("acceptedOutputModes"))
        if modes and not {"text/plain", "text/*", "*/*"} & set(modes):
            raise Fault(-32005, "Incompatible output modes: only text/plain is produced")
        task_id = message.get("taskId")
        if task_id is None:
            task_id = str(uuid.uuid4())
            self.tasks[task_id] = {"id": task_id, "status": {"state": "submitted"}, "history": [], "artifacts": []}
            while len(self.tasks) > TASKS_MAX:
                self.tasks.popitem(last=False)
        task = self.find(task_id)
        if task["status"]["state"] in TERMINAL:
            raise Fault(-32003, "Task not modifiable: it has ended")
        task["history"].append(message)
        return task, " ".join(part.get("text", "") for part in parts)

    async def work(self, task, text):
        """The events of the work; the task changes as they come."""
        def moved(state):
            task["status"] = {"state": state}
            return {"id": task["id"], "status": task["status"], "final": state in TERMINAL or state == "input-required"}

        word, number = word_and_number(text)
        yield moved("working")
        if word == "wait":
            while task["status"]["state"] == "working":
                await asyncio.sleep(0.01)
            yield moved(task["status"]["state"])
        elif word == "ask":
            yield moved("input-required")
        elif word == "fail":
            yield moved("failed")
        else:
            for n in range(1, number + 1) if word == "stream" else ():
                yield {**moved("working"), "metadata": {"n": n}}
            artifact = {"name": "result", "parts": [{"type": "text", "text": "hello, too" if word == "hello" else "made"}]}
            task["artifacts"].append(artifact)
            yield {"id": task["id"], "artifact": artifact}
            yield moved("completed")

    async def send(self, params):
        task, text = self.begin(params)
        async for _ in self.work(task, text):
            pass
        return task

    def get(self, params):
        task = dict(self.find(params.get("id")))
        length = params.get("history_length", params.get("historyLength"))
        if length is not None:
            task["history"] = task["history"][-length:] if length else []
        return task

    def cancel(self, params):
        task = self.find(params.get("id"))
        if task["status"]["state"] in TERMINAL:
            raise Fault(-32002, "Task not cancelable")
        task["status"] = {"state": "canceled"}
        return task


def stream(events, around=lambda event: event):
    async def lines():
        async for event in events:
            yield f"event: message\ndata: {json.dumps(around(event))}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def make(url):
    paw = Paw()

    async def rpc(request):
        try:
            asked = json.loads(await request.body())
        except ValueError:
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}})
        if not isinstance(asked, dict) or "jsonrpc" not in asked or "method" not in asked:
            fault = {"code": -32600, "message": "missing jsonrpc or method"}
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": fault})
        around = lambda result: {"jsonrpc": "2.0", "id": asked.get("id"), "result": result}  # noqa: E731
        params = asked.get("params") or {}
        try:
            match asked["method"]:
                case "message/send":
                    return JSONResponse(around(await paw.send(params)))
                case "message/stream":
                    return stream(paw.work(*paw.begin(params)), around)
                case "tasks/get":
                    return JSONResponse(around(paw.get(params)))
                case "tasks/cancel":
                    return JSONResponse(around(paw.cancel(params)))
                case "tasks/pushNotificationConfig/set" | "tasks/resubscribe":
                    raise Fault(-32004, "Unsupported operation")
                case _:
                    raise Fault(-32601, "Method not found")
        except Fault as fault:
            return JSONResponse({"jsonrpc": "2.0", "id": asked.get("id"), "error": fault.body})

    def plain(act):
        async def answer(request):
            try:
                return await act(request)
            except Fault as fault:
                return JSONResponse({"error": fault.body}, 404 if fault.body["code"] == -32001 else 400)
        return answer

    @plain
    async def send(request):
        return JSONResponse(await paw.send(await request.json()))

    @plain
    async def send_stream(request):
        return stream(paw.work(*paw.begin(await request.json())))

    @plain
    async def get(request):
        length = request.query_params.get("history_length")
        return JSONResponse(paw.get({"id": request.path_params["id"], "history_length": None if length is None else int(length)}))

    @plain
    async def cancel(request):
        return JSONResponse(paw.cancel({"id": request.path_params["id"]}))

    async def card(_):
        return JSONResponse({
            "name": "pocketpaw", "description": "like PocketPaw", "version": "0.2.5", "url": url, "protocol_version": "0.2.5",
            "protocol_binding": "jsonrpc-over-https", "capabilities": {"streaming": True, "push_notifications": False},
            "default_output_modes": ["text/plain"], "skills": [{"id": "act", "name": "act", "description": "does what it is told"}],
        })

    return Starlette(routes=[
        Route("/a2a", rpc, methods=["POST"]),
        Route("/a2a/tasks/send", send, methods=["POST"]),
        Route("/a2a/tasks/send/stream", send_stream, methods=["POST"]),
        Route("/a2a/tasks/{id}", get),
        Route("/a2a/tasks/{id}/cancel", cancel, methods=["POST"]),
        Route("/.well-known/agent.json", card),
        Route("/.well-known/agent-card.json", card),
    ])


serve(make)
