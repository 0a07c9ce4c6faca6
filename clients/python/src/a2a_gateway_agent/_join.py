"""An ASGI app that joins the gateway with its lifespan, and serves the gateway's callers only."""

import asyncio, contextlib, json, os, re, signal, socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import jwt

from ._member import Json, Member, current, log
from ._verify import Verifier

Receive = Callable[[], Awaitable[Json]]
Send = Callable[[Json], Awaitable[None]]
CARD = "/.well-known/agent-card.json"
BODY_MAX = 16 << 20
TELL_THE_CALLER = {b"x-a2a-caller", b"x-workspace-id", b"x-a2a-caller-token"}  # none passes as it came
REFUSED = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
NO_TOKEN = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no good token about the caller"}}'
NO_KEY = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no key of the gateway is known yet"}}'


class Joined(Member):
    """An app that joined. Attributes that it has not are the app's own."""

    def __init__(self, app: Callable[..., Awaitable[None]], card: str, public: set[str], grace: float, *more: Any):
        super().__init__(*more)
        self.app, self.card, self.public, self.grace, self.verifier = app, card, public, grace, Verifier(self)
        self.staying: asyncio.Task[None] | None = None
        self.leaving: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["app"], name)

    async def __call__(self, scope: Json, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.live(scope, receive, send)
        elif scope["type"] == "http":
            await self.serve(scope, receive, send)
        else:  # no token comes with a websocket
            await send({"type": "websocket.close", "code": 1008})

    async def serve(self, scope: Json, receive: Receive, send: Send) -> None:
        fields = [pair for pair in scope["headers"] if pair[0].replace(b"_", b"-") not in TELL_THE_CALLER]
        if scope["method"] in ("GET", "HEAD") and scope["path"] in self.public:
            return await self.app({**scope, "headers": fields}, receive, send)
        came: list[Json] = []

        async def body() -> bytes:
            while not came or came[-1].get("more_body") and sum(len(part["body"]) for part in came) <= BODY_MAX:
                came.append({"body": b"", **await receive()})
            return b"".join(part["body"] for part in came)

        async def again() -> Json:
            return came.pop(0) if came else await receive()

        named = [value for name, value in scope["headers"] if name == b"x-a2a-caller-token"]
        token = named or [value[7:] for name, value in scope["headers"] if name == b"authorization"]
        try:
            proven = await self.verifier.verify(b" ".join(token).decode("latin-1"), body)
        except (jwt.PyJWTError, LookupError) as error:
            log.info("refused a request for %s: %s", scope["path"], error)  # what was wrong stands here only
            status, said = (401, NO_TOKEN) if isinstance(error, jwt.PyJWTError) else (503, NO_KEY)
            await send({"type": "http.response.start", "status": status, "headers": REFUSED})
            return await send({"type": "http.response.body", "body": said})
        fields += [(b"x-a2a-caller", quote(proven.id, safe=":/@!$&'()*+,;=?").encode())]
        fields += [(b"x-workspace-id", proven.workspace.encode())] if proven.workspace else []
        mark = current.set(proven)
        self.count(1)
        try:
            await self.app({**scope, "headers": fields, "a2a_caller": proven, "user": proven}, again, send)
        finally:
            self.count(-1)
            current.reset(mark)

    async def live(self, scope: Json, receive: Receive, send: Send) -> None:
        """Joins when the app's lifespan has begun, or the app knows none, and leaves before it ends."""
        sent: list[str] = []

        async def receiving() -> Json:
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
        assert self.staying
        self.leaving = self.leaving or asyncio.create_task(self.leave(self.staying, self.grace))
        return self.leaving

    def signalled(self, before: Any) -> Any:
        """Leaves while the server still takes calls, and then lets it stop. A second signal stops it at once."""
        loop = asyncio.get_running_loop()

        def handle(number: int, frame: Any) -> None:
            if self.leaving:
                before(number, frame)
            else:
                loop.call_soon_threadsafe(lambda: self.begin_to_leave().add_done_callback(lambda _: before(number, frame)))

        return handle if callable(before) else before

    async def register(self) -> None:
        """Completes what is registered by the app's own card, which it has when its lifespan has begun."""
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost") as app:
            card = (await app.get(self.card)).raise_for_status().json()
        places = [*card.get("supportedInterfaces", ()), *card.get("additionalInterfaces", ())]
        rpc = [one["url"] for one in places if "JSONRPC" in (one.get("protocolBinding"), one.get("transport"))]
        self.place = {"url": (rpc or [card.get("url")])[0], **self.place, "agent_card": card}
        own = re.sub(r"[^A-Za-z0-9._-]", "-", f"{socket.gethostname()[:58]}-{urlsplit(self.place['url']).port or ''}")
        self.ids.setdefault("instance_id", own)
        await super().register()


def join(
    app: Any, *, workspace: str | None = None, gateway: str | None = None, token_file: str | None = None, url: str | None = None,
    instance: str | None = None, card: str = CARD, proof: str | None = None, public: Iterable[str] = (), grace: float = 25,
) -> Joined:
    """Joins an ASGI app to the gateway. The README says what each argument means, and which variable stands for it."""
    place = {"url": url or os.environ.get("A2A_GATEWAY_AGENT_URL"), "proof": proof}
    place = {name: value for name, value in place.items() if value}
    joined = Joined(app, card, {CARD, "/.well-known/agent.json", card, *public}, grace, workspace, gateway, token_file, place)
    if named := instance or os.environ.get("A2A_GATEWAY_INSTANCE"):
        joined.ids["instance_id"] = named
    return joined
