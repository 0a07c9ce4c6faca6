"""Agents: one that behaves and counts what it ran, and those that die, stall, reset and lie."""

import asyncio
import collections
import json
import socket
import struct

# Of a stream of the agent that behaves.
EVENTS = 12
PAUSE = 0.06

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

# What the behaviours below may look like to callers while nothing else is wrong: the gateway's reason, `event:` and
# the reason of a stream's last event, `answered`, `cut`.
EXPECTED = {
    "absent": {"agent_unreachable"},
    "dies": {"agent_protocol_error"},
    "stalls": {"agent_timeout"},
    "resets": {"agent_protocol_error"},
    "short": {"agent_protocol_error"},
    "half_chunk": {"agent_protocol_error"},
    "garbage": {"agent_protocol_error"},
    "no_json": {"agent_protocol_error"},
    # Over the bound after its first bytes went out: broken off, so that nobody takes it for the whole.
    "endless": {"cut", "response_too_large"},
    "silent_stream": {"event:agent_silent"},
    "cut_event": {"event:agent_protocol_error"},
    "reset_stream": {"event:agent_protocol_error"},
}
STREAMED = {"silent_stream", "cut_event", "reset_stream"}


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(call, number, last):
    text = text_of(call)
    status = {"state": "completed" if last else "working"}
    result = {"kind": "status-update", "taskId": text, "contextId": "soak", "status": status, "final": last,
              "metadata": {"n": number}}
    return f"data: {json.dumps({'jsonrpc': '2.0', 'id': call.get('id'), 'result': result})}\n\n".encode()


def text_of(call):
    return call["params"]["message"]["parts"][0]["text"]


class Agents:
    """All of them, each on a port of its own. `runs`: how often the one that behaves got each text."""

    def __init__(self):
        self.runs = collections.Counter()
        self.ports = {}
        self.servers = []

    async def start(self):
        # Its port is kept and not listened on: a free one would be somebody else's one day.
        absent = socket.socket()
        absent.bind(("127.0.0.1", 0))
        self.servers.append(absent)
        self.ports["absent"] = absent.getsockname()[1]
        for name in ["honest", *(name for name in EXPECTED if name != "absent")]:
            server = await asyncio.start_server(self._served_by(getattr(self, f"_{name}")), "127.0.0.1", 0)
            self.ports[name] = server.sockets[0].getsockname()[1]
            self.servers.append(server)

    def close(self):
        for server in self.servers:
            server.close()

    def _served_by(self, behaviour):
        async def serve(reader, writer):
            try:
                while await self._one(reader, writer, behaviour):
                    pass
            except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError, asyncio.CancelledError):
                # The gateway went, or the soak is over.
                pass
            finally:
                writer.transport.abort()
        return serve

    async def _one(self, reader, writer, behaviour):
        """One request. Whether the connection is good for another."""
        raw = await reader.readuntil(b"\r\n\r\n")
        _, *lines = raw.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        if not raw.startswith(b"POST"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        return await behaviour(writer, json.loads(body))

    async def _honest(self, writer, call):
        text = text_of(call)
        self.runs[text] += 1
        if call["method"] == "message/stream":
            writer.write(STREAM)
            events = call["params"]["message"].get("metadata", {}).get("events", EVENTS)
            for number in range(1, events + 1):
                writer.write(chunk(event(call, number, number == events)))
                await writer.drain()
                await asyncio.sleep(PAUSE)
            writer.write(b"0\r\n\r\n")
            return True
        # Long enough that some calls are on their way whatever happens.
        await asyncio.sleep(0.005)
        parts = [{"kind": "text", "text": f"echo {text}"}]
        result = {"kind": "message", "messageId": text, "role": "agent", "parts": parts}
        answer = json.dumps({"jsonrpc": "2.0", "id": call.get("id"), "result": result}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(answer)}\r\n\r\n"
        writer.write(head.encode() + answer)
        await writer.drain()
        return True

    async def _dies(self, writer, call):
        return False

    async def _stalls(self, writer, call):
        await asyncio.sleep(30)
        return False

    async def _resets(self, writer, call):
        reset(writer)
        return False

    async def _short(self, writer, call):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"jsonrpc\"")
        await finish(writer)
        return False

    async def _half_chunk(self, writer, call):
        writer.write(CHUNKED + b"400\r\n{\"jsonrpc\"")
        await finish(writer)
        return False

    async def _garbage(self, writer, call):
        writer.write(b"this is no HTTP\r\n\r\n")
        await finish(writer)
        return False

    async def _no_json(self, writer, call):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\n<p>\xff\xfe")
        await writer.drain()
        return True

    async def _endless(self, writer, call):
        writer.write(CHUNKED + chunk(b'{"x": "'))
        while True:
            writer.write(chunk(b"x" * 65536))
            await writer.drain()

    async def _silent_stream(self, writer, call):
        writer.write(STREAM + chunk(event(call, 1, False)))
        await asyncio.sleep(60)
        return False

    async def _cut_event(self, writer, call):
        writer.write(STREAM + chunk(event(call, 1, False)) + chunk(event(call, 2, False)[:40]))
        await finish(writer)
        return False

    async def _reset_stream(self, writer, call):
        writer.write(STREAM + chunk(event(call, 1, False)))
        await writer.drain()
        await asyncio.sleep(0.05)
        reset(writer)
        return False


async def finish(writer):
    """All that was written goes out, and then the connection ends."""
    await writer.drain()
    writer.close()
    await writer.wait_closed()


def reset(writer):
    """RST instead of FIN."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
