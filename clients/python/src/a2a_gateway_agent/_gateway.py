"""An agent's place at the gateway: its token, registration, heartbeats and departure; and who calls it."""

import asyncio, base64, contextlib, hashlib, json, logging, os, random, re, tempfile, time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpx, jwt

log = logging.getLogger("a2a_gateway_agent")
Json = dict[str, Any]
# In seconds: how far clocks differ at most, how long keys are fresh, the pause between two questions and the longest wait for an
# answer to one, how long old keys count.
LEEWAY, FRESH, PAUSE, FETCH_MAX, OLD_MAX = 5, 300, 10, 5, 86_400
ANSWER_MAX, USED_MAX, REQUIRED = 1 << 20, 262_144, ["iss", "sub", "aud", "iat", "nbf", "exp", "jti", "scope"]


class Chain:
    """On whose behalf a call is made, verified: `root` and `person` began it, `actors` passed it on, the caller first."""

    def __init__(self, token: str, claims: Json):
        self.token, self.claims = token, claims
        self.root, self.person, self.run = claims["sub"], claims.get("sub_id"), claims["txn"]
        self.actors, act = list[str](), claims.get("act")
        while act:
            self.actors.append(act["sub"])
            act = act.get("act")


class Caller:
    """A proven caller. Starlette and a2a-sdk take it as the user of the request."""

    def __init__(self, id: str, claims: Json, chain: Chain | None = None):
        self.chain = chain
        self.id = self.display_name = self.identity = id  # a workspace, or `canvas:<user>`, `org:<org>`, `operator:`
        self.workspace = None if ":" in id else id
        self.claims, self.is_authenticated = claims, True


current: ContextVar[Caller | None] = ContextVar("a2a_caller", default=None)


def caller() -> Caller | None:
    """The proven caller of the request, or of the message, that this code runs for."""
    return current.get()


ON_BEHALF_OF = "x-a2a-on-behalf-of"


def pass_chain_on(gateway: httpx.URL) -> None:
    """Has each request of httpx to the gateway carry the chain of the call that is served, and none to another origin."""

    def set_field(request: httpx.Request) -> None:
        own = current.get()
        same = (request.url.scheme, request.url.host, request.url.port) == (gateway.scheme, gateway.host, gateway.port)
        if same and own and own.chain:
            request.headers.setdefault(ON_BEHALF_OF, own.chain.token)
        elif not same:
            request.headers.pop(ON_BEHALF_OF, None)

    sends, waits = httpx.Client._send_single_request, httpx.AsyncClient._send_single_request

    def send(self: httpx.Client, request: httpx.Request) -> httpx.Response:
        set_field(request)
        return sends(self, request)

    async def send_async(self: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        set_field(request)
        return await waits(self, request)

    # Redirects pass here as well.
    httpx.Client._send_single_request, httpx.AsyncClient._send_single_request = send, send_async  # type: ignore[method-assign]


def setting(value: str | None, name: str, default: str | None = None) -> str:
    if found := value or os.environ.get(f"A2A_GATEWAY_{name}") or default:
        return found
    raise ValueError(f"neither an argument nor A2A_GATEWAY_{name} is set")


def clean(text: bytes, place: object) -> str:
    """A token without the white space around it. What could be none is refused by its place: its content is a secret."""
    if re.fullmatch(rb"[!-~]*", text := text.strip()):
        return text.decode()
    raise ValueError(f"{place} has more than one line, or bytes that no token has (such as NUL or a BOM): write the token alone into it")


def method_of(body: bytes) -> object:
    """The method of a JSON-RPC request; None of anything else."""
    try:
        return json.loads(body)["method"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


class Refused(Exception):
    """A refusal of the gateway: its status and its words."""


class Member:
    """An agent, or one instance of it: `ids`. What it registers: `place`."""

    def __init__(self, workspace: str | None, gateway: str | None, token_file: str | None, place: Json):
        self.workspace = setting(workspace, "WORKSPACE")
        self.file = Path(setting(token_file, "TOKEN_FILE", "agent-token")).absolute()
        self.http = httpx.AsyncClient(base_url=setting(gateway, "URL", "http://127.0.0.1:8080"), timeout=10,
                                      headers={"Accept-Encoding": "identity"})
        self.ids, self.place, self.registered = {"workspace_id": self.workspace}, place, False
        self.calls = set[object]()  # in progress
        pass_chain_on(self.http.base_url)
        self.keys, self.used = dict[str, jwt.PyJWK](), dict[str, float]()
        self.fetching: asyncio.Task[None] | None = None
        self.issuer, self.asked, self.fetched = "", float("-inf"), float("-inf")

    def kept(self) -> str:
        """The credential in the file as it is now: one that was rotated counts at once."""
        return clean(self.file.read_bytes(), self.file) if self.file.exists() else ""

    async def ask(self, path: str, body: Json | None = None, token: str = "") -> Any:
        fields = {"Authorization": f"Bearer {token or self.kept() or 'none'}"} if body is not None else {}
        said = bytearray()
        async with self.http.stream("GET" if body is None else "POST", path, json=body, headers=fields) as answer:
            async for part in answer.aiter_raw():
                said += part
                if len(said) > ANSWER_MAX or "content-encoding" in answer.headers:
                    raise ValueError(f"the answer of {path} is compressed, or has more than {ANSWER_MAX} bytes")
        if not answer.is_success:
            raise Refused(answer.status_code, said[:500].decode(errors="replace"))
        return json.loads(said)

    async def register(self) -> None:
        """By the token in the file, else by the enrolment token. The workspace's own token takes its place in the file."""
        name = "A2A_GATEWAY_ENROLMENT_TOKEN"
        if self.file.exists() and os.name == "posix" and (mode := self.file.stat().st_mode & 0o777) & 0o007:
            log.warning("every user can read or write %s (mode %o): chmod 600", self.file, mode)
        for token in filter(None, (self.kept(), clean(os.fsencode(os.environ.get(name, "")), name))):
            if (once := token.startswith("a2ae_")) and not os.access(self.file.parent, os.W_OK):
                raise PermissionError(f"{self.file} cannot be written: the enrolment token would be used up in vain")
            try:
                answer = await self.ask("/registry/register", {"id": self.workspace, **self.ids, **self.place}, token)
                break
            except Refused as refusal:
                if refusal.args[0] != 401:  # revoked, used up, or of another gateway
                    raise
        else:
            raise PermissionError(f"no good token in {self.file}: ask for POST /workspaces/{self.workspace}/enrolment")
        if "token" in answer:
            descriptor, name = tempfile.mkstemp(dir=self.file.parent)  # for its owner only
            os.write(descriptor, answer["token"].encode())
            os.fsync(descriptor)
            os.close(descriptor)
            os.replace(name, self.file)  # a crash leaves the old one or the new one
        elif once:
            raise PermissionError(f"the workspace has a token that is not in {self.file}: revoke it, then enrol again")
        log.info("%s registered at %s %r", self.ids, self.http.base_url, answer.get("warning", ""))
        self.registered = True

    async def stay(self) -> None:
        """Registers and sends heartbeats until it is cancelled. What goes wrong is tried again."""
        failures, third = 0, 10.0
        while True:
            try:
                if not self.registered:
                    await self.register()
                heard = await self.ask("/registry/heartbeat", {**self.ids, "active_tasks": len(self.calls)})
                third, failures = max(0.5, min(heard["expires_in"] / 3, 3600)), 0
            except Exception as error:
                self.registered &= error.args[:1] not in ((401,), (404,))  # another token is in the file; the agent is unknown
                failures = min(failures + 1, 9)
                log.warning("the gateway does not hear %s: %r", self.ids, error)
            await asyncio.sleep(min(third, 0.25 * 2**failures if failures else third) * random.uniform(0.8, 1.2))

    async def leave(self, stay: "asyncio.Task[None] | None", grace: float) -> None:
        """Drains, then deregisters. Both times calls may be on their way for a second, and end within the grace."""
        end = time.monotonic() + grace
        for path in ("/registry/drain", "/registry/deregister"):
            if stay and path == "/registry/deregister":
                stay.cancel()  # a heartbeat would find that the agent is unknown, and register it again
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.ask(path, self.ids), 3)
            second = time.monotonic() + 1
            while time.monotonic() < second or self.calls and time.monotonic() < end:
                await asyncio.sleep(0.05)

    async def key(self, kid: str) -> jwt.PyJWK:
        """A key by its id. A known one waits for nothing; all that wait for an unknown one share a question, after a pause."""
        now, running = time.monotonic(), self.fetching is not None and not self.fetching.done()
        if (kid not in self.keys or now - self.fetched > FRESH) and now - self.asked > (PAUSE if self.keys or running else 1):
            self.asked, self.fetching = now, asyncio.create_task(self.fetch())
        if self.fetching and (kid not in self.keys or now - self.fetched > OLD_MAX):
            await asyncio.wait([self.fetching], timeout=FETCH_MAX)
        if time.monotonic() - self.fetched > OLD_MAX:
            raise LookupError("no key of the gateway is known")
        if kid not in self.keys or self.keys[kid].algorithm_name not in ("EdDSA", "ES256"):
            raise jwt.InvalidTokenError("not a key of the gateway")
        return self.keys[kid]

    async def fetch(self) -> None:
        asked, keys = map(self.ask, ("/.well-known/a2a-gateway", "/.well-known/jwks.json")), dict[str, jwt.PyJWK]()
        try:
            about, published = await asyncio.wait_for(asyncio.gather(*asked), FETCH_MAX)
            for key in published["keys"]:
                with contextlib.suppress(Exception):  # one that is not understood is ignored (RFC 7517, 5)
                    keys[key["kid"]] = jwt.PyJWK.from_dict(key)
            self.issuer, self.keys, self.fetched = about["issuer"], keys, time.monotonic()
        except Exception as error:
            log.warning("the gateway's keys cannot be had: %r", error)

    async def decode(self, token: str, typ: str) -> Json:
        """The claims of a token of the gateway for this agent; else jwt.PyJWTError."""
        head = jwt.get_unverified_header(token) if len(token) <= 8192 else {}
        if set(head) != {"alg", "typ", "kid"} or head["typ"] != typ:
            raise jwt.InvalidTokenError(f"not a token of the type {typ}")
        key = await self.key(head["kid"])
        claims: Json = jwt.decode(token, key, algorithms=[key.algorithm_name], issuer=self.issuer, audience=self.workspace,
                                  leeway=LEEWAY, options={"require": REQUIRED, "strict_aud": True})
        return claims

    async def chain(self, token: str, caller: Json) -> Chain | None:
        """The chain beside a caller token; else jwt.PyJWTError."""
        digest = base64.urlsafe_b64encode(hashlib.sha256(token.encode("latin-1")).digest()).decode().rstrip("=")
        if caller.get("tth") != (digest if token else None):
            raise jwt.InvalidTokenError("a chain token that does not belong to the caller token, or is missing")
        if not token:
            return None
        claims = await self.decode(token, "a2a-chain+jwt")
        if claims["scope"] != "a2a:chain" or claims.get("token_use") != "context":
            raise jwt.InvalidTokenError("a chain token for something else")
        chain = Chain(token, claims)
        if [*chain.actors, chain.root][0] != caller["sub"]:
            raise jwt.InvalidTokenError("a chain of another caller")
        return chain

    async def verify(self, token: str, body: Callable[[], Awaitable[bytes]], chain: str = "") -> Caller:
        """The caller that a token proves; else jwt.PyJWTError. The body is read where the token is bound to it."""
        claims = await self.decode(token, "a2a-pair+jwt")
        if claims["scope"] != "a2a:message" or claims.get("token_use", "caller") != "caller":
            raise jwt.InvalidTokenError("a token for something else")
        if "bh" in claims or "method" in claims:
            said, now, end = await body(), time.time(), claims["exp"] + LEEWAY
            if claims.get("bh") != base64.urlsafe_b64encode(hashlib.sha256(said).digest()).decode().rstrip("="):
                raise jwt.InvalidTokenError("another body")
            if "method" in claims and claims["method"] != method_of(said):
                raise jwt.InvalidTokenError("another method")
            if len(self.used) >= USED_MAX:
                self.used = {jti: until for jti, until in self.used.items() if until >= now}
            if end < now or claims["jti"] in self.used or len(self.used) >= USED_MAX:
                raise jwt.InvalidTokenError("over, or used before")
            self.used[claims["jti"]] = end
        elif self.place.get("proof") == "request":
            raise jwt.InvalidTokenError("not bound to a request")
        return Caller(claims["sub"], claims, await self.chain(chain, claims))
