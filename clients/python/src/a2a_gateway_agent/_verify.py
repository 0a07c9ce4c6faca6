"""The gateway's signed token in a request, checked as the gateway's sidecar does."""

import asyncio, base64, hashlib, json, time
from collections.abc import Awaitable, Callable

import jwt

from ._member import Caller, Json, Member, log

# In seconds: how far clocks may differ, how long keys are fresh, the pause between two questions, how long old keys count.
LEEWAY, FRESH, PAUSE, OLD_MAX = 5, 300, 10, 86_400
USED_MAX = 262_144
REQUIRED = ["iss", "sub", "aud", "iat", "nbf", "exp", "jti", "scope"]


class Verifier:
    """Knows the gateway's keys, and the bound tokens that were used."""

    def __init__(self, member: Member):
        self.member, self.lock, self.issuer = member, asyncio.Lock(), ""
        self.keys, self.used = dict[str, jwt.PyJWK](), dict[str, float]()
        self.asked = self.fetched = float("-inf")

    async def key(self, kid: str) -> jwt.PyJWK:
        """A key by its id. All are asked for again when they are old or one is unknown."""
        async with self.lock:
            now = time.monotonic()
            if (kid not in self.keys or now - self.fetched > FRESH) and now - self.asked > (PAUSE if self.keys else 1):
                self.asked = now
                try:
                    self.issuer = (await self.member.ask("/.well-known/a2a-gateway"))["issuer"]
                    published = (await self.member.ask("/.well-known/jwks.json"))["keys"]
                    self.keys, self.fetched = {key["kid"]: jwt.PyJWK.from_dict(key) for key in published}, now
                except Exception as error:
                    log.warning("the gateway's keys cannot be had: %s", error or type(error).__name__)
        if now - self.fetched > OLD_MAX:
            raise LookupError("no key of the gateway is known")
        if kid not in self.keys or self.keys[kid].algorithm_name not in ("EdDSA", "ES256"):
            raise jwt.InvalidTokenError("not a key of the gateway")
        return self.keys[kid]

    async def verify(self, token: str, body: Callable[[], Awaitable[bytes]]) -> Caller:
        """The caller that a token proves; else jwt.PyJWTError. The body is read where the token is bound to it."""
        head = jwt.get_unverified_header(token)
        if len(token) > 8192 or set(head) != {"alg", "typ", "kid"} or head["typ"] != "a2a-pair+jwt":
            raise jwt.InvalidTokenError("not a token about a caller")
        key = await self.key(head["kid"])
        claims: Json = jwt.decode(
            token, key, algorithms=[key.algorithm_name], issuer=self.issuer, audience=self.member.workspace, leeway=LEEWAY,
            options={"require": REQUIRED, "strict_aud": True})
        if claims["scope"] != "a2a:message" or claims.get("token_use", "caller") != "caller":
            raise jwt.InvalidTokenError("a token for something else")
        if "bh" in claims or "method" in claims:
            self.match(claims, await body())
        elif self.member.place.get("proof") == "request":
            raise jwt.InvalidTokenError("not bound to a request")
        return Caller(claims["sub"], claims)

    def match(self, claims: Json, body: bytes) -> None:
        if claims.get("bh") != base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode().rstrip("="):
            raise jwt.InvalidTokenError("another body")
        if "method" in claims and claims["method"] != json.loads(body).get("method"):
            raise jwt.InvalidTokenError("another method")
        now = time.time()
        if len(self.used) >= USED_MAX:
            self.used = {jti: end for jti, end in self.used.items() if end >= now}
        if claims["exp"] + LEEWAY < now or claims["jti"] in self.used or len(self.used) >= USED_MAX:
            raise jwt.InvalidTokenError("over, or used before")
        self.used[claims["jti"]] = claims["exp"] + LEEWAY
