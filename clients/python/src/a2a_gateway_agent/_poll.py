"""An agent without an address: a handler is called for each message of its inbox."""

import asyncio, contextlib, inspect, itertools, json, signal, uuid
from collections.abc import Awaitable, Callable
from typing import Any

import httpx, jwt

from ._gateway import Caller, Chain, Json, Member, Refused, current, log

SENT = "message/send", "message/stream", "SendMessage", "SendStreamingMessage"
FAILED: Json = {"error": {"code": -32603, "message": "the agent failed"}}
Handler = Callable[[Json], Awaitable[str | Json] | str | Json]


def text(message: Json) -> str:
    """The text of a message, of either generation of A2A."""
    return " ".join(part["text"] for part in message.get("parts", ()) if "text" in part)


async def serve(member: Member, handler: Handler, entry: Json) -> Any:
    """Replies until the gateway takes it, or the task is canceled or over. What it can never take becomes an error."""
    token = entry.get("on_behalf_of")  # of the gateway itself, over its own connection
    chain = Chain(token, jwt.decode(token, options={"verify_signature": False})) if token else None
    known = entry["source_id"] or (chain and chain.root)
    current.set(Caller(known, {}, chain) if known else None)
    try:
        if refused := entry.get("on_behalf_of_refused"):
            raise PermissionError(f"the call is not to be carried out: {refused}")
        message = entry["request_body"]["params"]["message"]
        said = handler(message) if inspect.iscoroutinefunction(handler) else await asyncio.to_thread(handler, message)
        said = await said if inspect.isawaitable(said) else said
        plain = {"kind": "message", "role": "agent", "messageId": str(uuid.uuid4()), "parts": [{"kind": "text", "text": said}]}
        reply = {"result": plain if isinstance(said, str) else said}
    except Exception:
        log.exception("the handler failed at %r", entry["id"])
        reply = FAILED
    while True:
        try:
            return await member.ask(f"/workspaces/{member.workspace}/activity/{entry['id']}/reply", reply)
        except (Refused, httpx.HTTPError, OSError, ValueError) as error:
            log.warning("a reply is not taken: %r", error)
            if error.args[0] in (404, 409, 410):
                return None
            reply = FAILED if error.args[0] in (400, 413) else reply
        await asyncio.sleep(1)


async def follow(member: Member, handler: Handler, at_once: int) -> None:
    """Reads the feed. It begins behind what was acknowledged, whatever happened in between."""
    begun: dict[str, asyncio.Task[Any]] = {}  # in the order of the inbox
    while True:
        with contextlib.suppress(Refused, httpx.HTTPError, OSError, ValueError):
            fields = {"Authorization": f"Bearer {member.kept()}", "Accept": "text/event-stream"}
            async with member.http.stream("GET", "/activity", headers=fields, timeout=60) as feed:
                async for line in feed.aiter_lines():  # a comment after 15 s of silence
                    entry = json.loads(line[5:]) if line.startswith("data:") else {}
                    if entry.get("method") in SENT and entry["status"] in ("submitted", "working") and entry["id"] not in begun:
                        begun[entry["id"]] = task = asyncio.create_task(serve(member, handler, entry))
                        member.calls.add(task)
                        task.add_done_callback(member.calls.discard)
                    while len(member.calls) >= at_once:
                        await asyncio.sleep(0.05)
                    if over := list(itertools.takewhile(lambda id: begun[id].done(), begun)):
                        await member.ask(f"/workspaces/{member.workspace}/activity/ack", {"up_to": over[-1]})
                        begun = {id: task for id, task in begun.items() if id not in over}
        await asyncio.sleep(1)


async def poll(
    handler: Handler, *, workspace: str | None = None, gateway: str | None = None, token_file: str | None = None,
    card: Json | None = None, at_once: int = 8, grace: float = 25,
) -> None:
    """Calls the handler for each message until it is cancelled or SIGTERM comes. What the handler returns is the reply."""
    member = Member(workspace, gateway, token_file, {"delivery_mode": "poll"})
    member.place["agent_card"] = card or {"name": member.workspace, "version": "1", "capabilities": {"streaming": True}}
    stay, reader = asyncio.create_task(member.stay()), asyncio.create_task(follow(member, handler, at_once))
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # Windows, or not in the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, reader.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await reader
    await member.leave(stay, grace)
