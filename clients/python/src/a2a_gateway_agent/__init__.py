"""Joins an agent to an a2a-gateway: `join` wraps an ASGI app, `poll` calls a handler for each message of an inbox."""

import asyncio, contextlib, re, signal, socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import quote, urlsplit

import httpx, jwt

from ._gateway import Caller as Caller, Chain as Chain, Json, Member, caller as caller, current, log, setting
from ._poll import poll as poll, text as text


CARD, CARD_OF_0_2, BODY_MAX = "/.well-known/agent-card.json", "/.well-known/agent.json", 16 << 20
TELL_THE_CALLER = {b"x-a2a-caller", b"x-workspace-id", b"x-a2a-caller-token"}  # none passes as it came
REFUSED = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
REFUSAL = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no good token about the caller"}}'


class Joined(Member):
    """An app that joins with its lifespan, and serves the gateway's callers only. Its other attributes are the app's own."""

    def __init__(self, app: Callable[..., Awaitable[None]], options: Json, *more: Any):
        super().__init__(*more)
        self.app, self._chosen = app, options
        self.staying: asyncio.Task[None] | None = None
        self.leaving: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["app"], name)

    async def __call__(self, scope: Json, receive: Any, send: Any) -> Any:
        if scope["type"] != "http":  # no token comes with a websocket
            return await (self.live(scope, receive, send) if scope["type"] == "lifespan" else send({"type": "websocket.close"}))
        fields = [pair for pair in scope["headers"] if pair[0].replace(b"_", b"-") not in TELL_THE_CALLER]
        if scope["method"] in ("GET", "HEAD") and scope["path"] in self._chosen["public"]:
            return await self.app({**scope, "headers": fields}, receive, send)
        came: list[Json] = []

        async def body() -> bytes:
            size = 0
            while not came or came[-1].get("more_body") and size <= BODY_MAX:
                came.append({"body": b"", **await receive()})
                size += len(came[-1]["body"])
            return b"".join(part["body"] for part in came)

        async def again() -> Any:
            return came.pop(0) if came else await receive()

        named = dict(scope["headers"])
        token = named.get(b"x-a2a-caller-token") or named.get(b"authorization", b"")[7:]
        try:
            chain = b",".join(value for name, value in scope["headers"] if name == b"x-a2a-on-behalf-of")
            proven = await self.verify(token.decode("latin-1"), body, chain.decode("latin-1"))
        except (jwt.PyJWTError, LookupError, RecursionError) as error:
            log.info("refused a request for %r: %r", scope["path"], error)  # what was wrong is said here only
            await send({"type": "http.response.start", "status": 503 if isinstance(error, LookupError) else 401, "headers": REFUSED})
            return await send({"type": "http.response.body", "body": REFUSAL})
        fields.append((b"x-a2a-caller", quote(proven.id, safe=":/@!$&'()*+,;=?").encode()))
        fields += [(b"x-workspace-id", proven.workspace.encode())] if proven.workspace else []
        self.calls.add(again)
        mark = current.set(proven)
        try:
            await self.app({**scope, "headers": fields, "a2a_caller": proven, "user": proven}, again, send)
        finally:
            current.reset(mark)
            self.calls.discard(again)

    async def live(self, scope: Json, receive: Any, send: Any) -> None:
        """Joins when the app's lifespan has begun, or the app knows none, and leaves before it ends."""
        sent: list[str] = []

        async def receiving() -> Any:
            if (event := await receive())["type"] == "lifespan.shutdown":
                await asyncio.wait([self.begin_to_leave()])
            return event

        async def sending(event: Json) -> None:
            sent.append(event["type"])
            self.begin(event["type"] == "lifespan.startup.complete")
            await send(event)

        try:
            await self.app(scope, receiving, sending)
        finally:
            self.begin(not sent)

    def begin(self, now: bool) -> None:
        if now:
            self.staying, self.leaving = asyncio.create_task(self.stay()), None
            for number in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(ValueError):  # not in the main thread
                    signal.signal(number, self.signalled(signal.getsignal(number)))

    def begin_to_leave(self) -> "asyncio.Task[None]":
        self.leaving = self.leaving or asyncio.create_task(self.leave(self.staying, self._chosen["grace"]))
        return self.leaving

    def signalled(self, before: Any) -> Any:
        """Leaves while the server still takes calls, and then lets it stop. A second signal stops it at once."""
        loop = asyncio.get_running_loop()

        def handle(*told: Any) -> Any:
            leave = lambda: self.begin_to_leave().add_done_callback(lambda _: before(*told))
            return before(*told) if self.leaving else loop.call_soon_threadsafe(leave)

        return handle if callable(before) else before

    async def register(self) -> None:
        """Completes what is registered by the card that the app serves."""
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost") as app:
            card = (await app.get(self._chosen["card"])).raise_for_status().json()
        places = [*card.get("supportedInterfaces", ()), *card.get("additionalInterfaces", ()), {**card, "transport": "JSONRPC"}]
        rpc = next(one.get("url") for one in places if "JSONRPC" in (one.get("protocolBinding"), one.get("transport")))
        self.place |= {"url": setting(self._chosen["url"], "AGENT_URL", rpc), "agent_card": card}
        own = f"{socket.gethostname()[:58]}-{urlsplit(self.place['url']).port or ''}"
        self.ids["instance_id"] = setting(self._chosen["instance"], "INSTANCE", re.sub(r"[^A-Za-z0-9._-]", "-", own))
        await super().register()


def join(
    app: Any, *, workspace: str | None = None, gateway: str | None = None, token_file: str | None = None, url: str | None = None,
    instance: str | None = None, card: str = CARD, proof: str | None = None, public: Iterable[str] = (), grace: float = 25,
) -> Joined:
    """Joins an ASGI app to the gateway. The README says what each argument means, and which variable stands for it."""
    options = {"url": url, "instance": instance, "card": card, "grace": grace, "public": {CARD, CARD_OF_0_2, card, *public}}
    return Joined(app, options, workspace, gateway, token_file, {"proof": proof} if proof else {})
