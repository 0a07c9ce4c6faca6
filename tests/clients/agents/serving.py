"""What the Python agents share: a port of their own, and a record of every request as it came."""

import base64
import json
import socket
import sys
from pathlib import Path

import uvicorn

sys.path.append(str(Path(__file__).parent.parent))
import tracing


class Recorder:
    """Writes one JSON line for each request, before it is answered."""

    def __init__(self, app, path):
        self.app = app
        self.log = open(path, "a", buffering=1)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        body, written = [], False

        async def reading():
            message = await receive()
            body.append(message.get("body", b""))
            return message

        async def answering(message):
            nonlocal written
            if not written:
                written = True
                self.write(scope, b"".join(body))
            await send(message)

        await self.app(scope, reading, answering)

    def write(self, scope, body):
        query = scope["query_string"].decode()
        self.log.write(json.dumps({
            "method": scope["method"],
            "target": scope["raw_path"].decode() + (f"?{query}" if query else ""),
            "fields": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
            "body": base64.b64encode(body).decode(),
        }) + "\n")


def serve(make):
    """Serves what `make` returns for the agent's own URL. Usage of an agent: FILE of the record; prints its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    traced = tracing.start("agent")
    app = Recorder(make(f"http://127.0.0.1:{port}"), sys.argv[1])
    if traced:
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

        app = OpenTelemetryMiddleware(app, exclude_spans=["receive", "send"])
    print(port, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


def word_and_number(text):
    """`stream 5` is ("stream", 5); without a number it is 1."""
    word, _, number = text.partition(" ")
    return word, int(number) if number.isdigit() else 1
