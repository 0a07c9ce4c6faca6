"""HTTP/1.1 as callers speak it: connections that are used again, streams of events, a word for each failure."""

import asyncio
import json
import time

# Seconds that a connection of ours may lie unused: less than the gateway's `server.keepalive`.
IDLE = 20

LARGEST_HEAD = 1 << 20


class Broken(Exception):
    """There is no whole answer. `reason` is one of `connect_refused`, `connection_lost` (before an answer began),
    `cut` (in the middle of it) and `no_answer` (our deadline passed)."""

    def __init__(self, reason):
        super().__init__(reason)
        self.reason = reason


class Answer:
    def __init__(self, status, fields, body):
        self.status, self.fields, self.body = status, fields, body

    def json(self):
        return json.loads(self.body)

    def refusal(self):
        """The gateway's reason and its facts, or `None` of an answer that is the agent's or good."""
        if self.status < 400:
            return None
        try:
            said = self.json()
            if "reason" in said:
                return said["reason"], said
            return refusal_in(said) or (f"status_{self.status}", {})
        except (ValueError, TypeError, KeyError):
            return f"status_{self.status}", {}

    def reason(self):
        refusal = self.refusal()
        return refusal and refusal[0]

    def fact(self, name):
        refusal = self.refusal()
        return refusal and refusal[1].get(name)


def refusal_in(call):
    """Reason and facts in a JSON-RPC error of the gateway; `None` of anything else."""
    error = call.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("data"), list) or not error["data"]:
        return None
    info = error["data"][0]
    if info.get("domain") != "a2a-gateway":
        return None
    return info["reason"].lower(), info.get("metadata", {})


def head_of(method, path, token, body, fields):
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (fields or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def read_head(reader):
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw.decode("latin-1").split("\r\n")
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.lower()] = value.strip()
    return int(first.split(" ")[1]), fields


async def pieces(reader, fields):
    """The body, as it comes."""
    if fields.get("transfer-encoding") == "chunked":
        while True:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
            piece = await reader.readexactly(size + 2)
            if size == 0:
                return
            yield piece[:-2]
    elif "content-length" in fields:
        yield await reader.readexactly(int(fields["content-length"]))
    else:
        while piece := await reader.read(65536):
            yield piece


class Client:
    """Connections to gateways, by port."""

    def __init__(self):
        self.idle = {}
        # Connections so far.
        self.opened = 0

    def close(self):
        for connections in self.idle.values():
            for _, writer, _ in connections:
                writer.transport.abort()
        self.idle = {}

    async def connect(self, port, fresh=False):
        connections = self.idle.setdefault(port, [])
        while connections and not fresh:
            # The oldest: all of them are in use, and a process that waits for its connections to end sees that soon.
            reader, writer, since = connections.pop(0)
            if not reader.at_eof() and time.monotonic() - since < IDLE:
                return reader, writer
            writer.transport.abort()
        try:
            self.opened += 1
            return await asyncio.open_connection("127.0.0.1", port, limit=LARGEST_HEAD)
        except OSError as error:
            raise Broken("connect_refused") from error

    async def ask(self, port, method, path, token=None, body=None, fields=None, deadline=60, fresh=False):
        """One request and its whole answer. `fresh`: over a connection of its own."""
        body = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        try:
            return await asyncio.wait_for(self._ask(port, method, path, token, body, fields, fresh), deadline)
        except asyncio.TimeoutError as error:
            raise Broken("no_answer") from error

    async def _ask(self, port, method, path, token, body, fields, fresh):
        reader, writer = await self.connect(port, fresh)
        begun = kept = False
        try:
            writer.write(head_of(method, path, token, body, fields) + (body or b""))
            status, answered = await read_head(reader)
            begun = True
            whole = b"" if method == "HEAD" else b"".join([piece async for piece in pieces(reader, answered)])
            kept = "close" not in answered.get("connection", "").lower() and not fresh
            return Answer(status, answered, whole)
        except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
            raise Broken("cut" if begun else "connection_lost") from error
        finally:
            if kept:
                self.idle.setdefault(port, []).append((reader, writer, time.monotonic()))
            else:
                writer.transport.abort()

    async def events(self, port, method, path, token, body=None, fields=None, silence=60):
        """The events of a stream as dictionaries (`id`, `event`, `data`), or one `Answer` if it is none. Comments
        are passed over. `silence`: seconds that may pass between two pieces."""
        body = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        reader, writer = await self.connect(port, fresh=True)
        begun = False
        try:
            asked = {"Accept": "text/event-stream", **(fields or {})}
            writer.write(head_of(method, path, token, body, asked) + (body or b""))
            status, answered = await asyncio.wait_for(read_head(reader), silence)
            begun = True
            coming = pieces(reader, answered)
            if not answered.get("content-type", "").startswith("text/event-stream"):
                yield Answer(status, answered, b"".join([piece async for piece in coming]))
                return
            rest = b""
            while True:
                try:
                    rest += await asyncio.wait_for(coming.__anext__(), silence)
                except StopAsyncIteration:
                    return
                *whole, rest = rest.split(b"\n\n")
                for event in whole:
                    lines = [line.partition(":") for line in event.decode().split("\n") if not line.startswith(":")]
                    found = {name: value.removeprefix(" ") for name, _, value in lines}
                    if found and "data" in found:
                        yield found
        except asyncio.TimeoutError as error:
            raise Broken("no_answer") from error
        except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
            raise Broken("cut" if begun else "connection_lost") from error
        finally:
            writer.transport.abort()
