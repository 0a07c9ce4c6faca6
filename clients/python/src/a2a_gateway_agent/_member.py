"""An agent's place at the gateway: its token, registration, heartbeats and departure."""

import asyncio, contextlib, logging, os, random, tempfile, time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpx

log = logging.getLogger("a2a_gateway_agent")
Json = dict[str, Any]


class Caller:
    """A proven caller. Starlette and a2a-sdk take it as the user of the request."""

    def __init__(self, id: str, claims: Json):
        self.id = self.display_name = self.identity = id  # a workspace, or `canvas:<user>`, `org:<org>`, `operator:`
        self.workspace = None if ":" in id else id
        self.claims, self.is_authenticated = claims, True


current: ContextVar[Caller | None] = ContextVar("a2a_caller", default=None)


def caller() -> Caller | None:
    """The proven caller of the request, or of the message, that this code runs for."""
    return current.get()


def setting(value: str | None, name: str, default: str | None = None) -> str:
    if found := value or os.environ.get(f"A2A_GATEWAY_{name}") or default:
        return found
    raise ValueError(f"neither an argument nor A2A_GATEWAY_{name} is set")


def status(error: Exception) -> int:
    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0


class Member:
    """An agent, or one instance of it: `ids`. What it registers: `place`."""

    def __init__(self, workspace: str | None, gateway: str | None, token_file: str | None, place: Json):
        self.workspace = setting(workspace, "WORKSPACE")
        self.file = Path(setting(token_file, "TOKEN_FILE", "agent-token")).absolute()
        self.http = httpx.AsyncClient(base_url=setting(gateway, "URL", "http://127.0.0.1:8080"), timeout=10)
        self.ids, self.place = {"workspace_id": self.workspace}, place
        self.running, self.registered = 0, False

    def count(self, more: int) -> None:
        self.running += more

    def fields(self, token: str | None = None) -> dict[str, str]:
        """The credential: that in the file as it is now, so one that was rotated counts at once."""
        return {"Authorization": f"Bearer {token or self.kept() or 'none'}"}

    def kept(self) -> str | None:
        return self.file.read_text().strip() if self.file.exists() else None

    async def ask(self, path: str, body: Json | None = None, token: str | None = None) -> Any:
        asked = self.http.get(path) if body is None else self.http.post(path, json=body, headers=self.fields(token))
        if not (answer := await asked).is_success:
            said = f"{path}: {answer.status_code} {answer.text[:500]}"
            raise httpx.HTTPStatusError(said, request=answer.request, response=answer)
        return answer.json()

    async def register(self) -> None:
        """By the token in the file, else by the enrolment token. The workspace's own token takes its place in the file."""
        for token in filter(None, (self.kept(), os.environ.get("A2A_GATEWAY_ENROLMENT_TOKEN"))):
            if token.startswith("a2ae_") and not os.access(self.file.parent, os.W_OK):
                raise PermissionError(f"{self.file} cannot be written: the enrolment token would be used up in vain")
            try:
                answer = await self.ask("/registry/register", {"id": self.workspace, **self.ids, **self.place}, token)
                break
            except httpx.HTTPStatusError as error:
                if status(error) != 401:  # revoked, used up, or of another gateway
                    raise
        else:
            raise PermissionError(f"no good token in {self.file}: ask an operator for POST /workspaces/ID/enrolment")
        if "token" in answer:
            descriptor, name = tempfile.mkstemp(dir=self.file.parent)  # for its owner only
            os.write(descriptor, answer["token"].encode())
            os.fsync(descriptor)
            os.close(descriptor)
            os.replace(name, self.file)  # a crash leaves the old one or the new one
        elif token.startswith("a2ae_"):
            raise PermissionError(f"the workspace has a token that is not in {self.file}: revoke it, then enrol again")
        log.info("%s registered at %s %s", self.ids, self.http.base_url, answer.get("warning", ""))
        self.registered = True

    async def stay(self) -> None:
        """Registers and sends heartbeats until it is cancelled. What goes wrong is tried again."""
        failures, third = 0, 10.0
        while True:
            try:
                if not self.registered:
                    await self.register()
                third = (await self.ask("/registry/heartbeat", {**self.ids, "active_tasks": self.running}))["expires_in"] / 3
                failures = 0
            except Exception as error:
                if status(error) in (401, 404):  # the token was rotated or revoked; the gateway does not know the agent
                    self.registered = False
                failures = min(failures + 1, 9)
                log.warning("the gateway does not hear %s: %s", self.ids, error or type(error).__name__)
            await asyncio.sleep(min(third, 0.25 * 2**failures if failures else third) * random.uniform(0.8, 1.2))

    async def leave(self, stay: "asyncio.Task[None]", grace: float) -> None:
        """Drains, then deregisters. Both times calls may be on their way for a second, and end within the grace."""
        end = time.monotonic() + grace
        for path in ("/registry/drain", "/registry/deregister"):
            if path == "/registry/deregister":
                stay.cancel()  # a heartbeat would find that the agent is unknown, and register it again
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.ask(path, self.ids), 3)
            second = time.monotonic() + 1
            while time.monotonic() < second or self.running and time.monotonic() < end:
                await asyncio.sleep(0.05)
