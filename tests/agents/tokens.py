"""What agents take and refuse, by tokens of a stand-in for the gateway: each claim, each binding, keys that change or are away."""

import base64
import gzip
import hashlib
import http.client
import json
import os
import subprocess
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from stage import PATIENCE, call, eventually, free_port

AGENTS = ["py13", "js13"]
ISSUER = "https://gateway.example"


class Gateway(ThreadingHTTPServer):
    """Publishes keys, and answers registrations and heartbeats as it is told; notes what was asked."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.keys, self.asked, self.known, self.is_away = {}, [], True, False
        # How often keys were asked for; what is sent instead of them; cleared: no answer to that comes.
        self.questions, self.bomb, self.answers = 0, None, threading.Event()
        self.answers.set()
        self.add("one", Ed25519PrivateKey.generate())
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def add(self, kid, key):
        self.keys[kid] = key

    def jwks(self):
        # Those that are none are ignored.
        found = [None, 1, {}, {"kid": {}}, {"kid": "odd", "kty": "OKP", "crv": "Ed25519", "x": "_"}, {"kid": "new", "kty": "AKP", "alg": "X"}]
        for kid, key in self.keys.items():
            of = jwt.algorithms.OKPAlgorithm if isinstance(key, Ed25519PrivateKey) else jwt.algorithms.ECAlgorithm
            found.append({**json.loads(of.to_jwk(key.public_key())), "kid": kid, "use": "sig",
                          "alg": "EdDSA" if isinstance(key, Ed25519PrivateKey) else "ES256"})
        return {"keys": found}

    def token(self, kid="one", key=None, head=None, **changed):
        """A token as the gateway makes it, but for what is changed; a claim that is None is left out."""
        now = int(time.time())
        claims = {"iss": ISSUER, "sub": "alice", "aud": "agent", "iat": now, "nbf": now, "exp": now + 60, "jti": str(uuid.uuid4()),
                  "scope": "a2a:message", "rel": "sibling", "gen": 0, "token_use": "caller", **changed}
        key = key or self.keys[kid]
        algorithm = "EdDSA" if isinstance(key, Ed25519PrivateKey) else "ES256"
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(claims, key, algorithm, {"typ": "a2a-pair+jwt", "kid": kid, **(head or {})})


    def chain(self, **changed):
        """A chain token: of Ada's call to `alice`, who calls the agent."""
        token = {"scope": "a2a:chain", "token_use": "context", "sub": "canvas:ada", "act": {"sub": "alice"}, "txn": "q7",
                 "began": int(time.time()), "rel": None, "gen": None, "head": {"typ": "a2a-chain+jwt"}, **changed}
        return self.token(**token)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/echo":
            return self.answer(200, {name.lower(): value for name, value in self.headers.items()})
        if self.path == "/away":
            self.send_response(307)
            self.send_header("Location", f"{self.server.stranger.url}/echo")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.server.questions += 1
        self.server.answers.wait()
        documents = {"/.well-known/jwks.json": self.server.jwks(), "/.well-known/a2a-gateway": {"issuer": ISSUER}}
        self.answer(503 if self.server.is_away else 200, documents[self.path])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, self.headers["Authorization"]))
        if self.path == "/registry/register":
            self.server.known = True
            return self.answer(200, {"status": "registered", "token": "a2aw_own"})
        if self.path == "/registry/heartbeat" and not self.server.known:
            return self.answer(404, {"reregister": True})
        self.answer(200, {"status": "ok", "expires_in": 0})

    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        if self.server.bomb and "keys" in document:
            body = self.server.bomb
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def digest(body):
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode().rstrip("=")


def peak_of(child):
    """The most memory that a process had, in KiB."""
    with open(f"/proc/{child.pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def run(stage, built, told):
    with ThreadPoolExecutor() as pool:
        for line in pool.map(lambda name: judged(stage, built, name), AGENTS):
            told(line)


def judged(stage, built, name):
    gateway, port, file = Gateway(), free_port(), stage.folder / f"{name}-tokens"
    file.write_bytes(b"a2ae_once\na2ae_twice\n")
    file.chmod(0o644)
    gateway.is_away = True
    environment = {**os.environ, "PORT": str(port), "A2A_GATEWAY_URL": gateway.url, "A2A_GATEWAY_WORKSPACE": "agent",
                   "A2A_GATEWAY_TOKEN_FILE": str(file)}
    log = stage.folder / f"{name}-tokens.log"
    child = stage.run(built.program(name), env=environment, stdout=open(log, "w"), stderr=subprocess.STDOUT)
    began = time.monotonic()
    # A file that has more than a token is named, and what it has is said nowhere.
    for bad in (b"a2ae_once\na2ae_twice\n", b"a2ae_once\0", b"\xef\xbb\xbfa2ae_once"):
        file.write_bytes(bad)
        seen = log.read_text().count("write the token alone into it")
        eventually(lambda: log.read_text().count("write the token alone into it") > seen + 1, f"{name} says what is wrong with {bad}")
    assert not gateway.asked and "a2ae_" not in log.read_text(), log.read_text()
    file.write_text("a2ae_once")
    eventually(lambda: any(path == "/registry/heartbeat" for path, *_ in gateway.asked), f"{name} sends heartbeats")
    assert file.read_text().strip() == "a2aw_own" and gateway.asked[0][2] == "Bearer a2ae_once", gateway.asked
    assert gateway.asked[-1][2] == "Bearer a2aw_own", gateway.asked
    assert f"every user can read or write {file} (mode 644)" in log.read_text(), log.read_text()
    said = {"role": "ROLE_USER", "messageId": "m-1", "parts": [{"text": "who am I?"}]}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said}}).encode()

    def status(token, body=body, **fields):
        url, shown = f"http://127.0.0.1:{port}/a2a", {"A2A-Version": "1.0", **fields}
        answer = call("POST", url, token, body, shown)
        assert answer.status in (200, 401, 503), f"{name}: {answer}"
        assert answer.status != 200 or b"alice = alice" in answer.body, f"{name}: {answer}\n{log.read_text()[-2000:]}"
        return answer.status

    def chunked(method, token, body):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        fields = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "A2A-Version": "1.0"}
        connection.request(method, "/a2a", iter([body[:10], body[10:]]), fields, encode_chunked=True)
        return connection.getresponse().status

    # Garbage does not make the agent ask again and again while the gateway is away.
    since, before = time.monotonic(), gateway.questions
    assert {status(gateway.token(kid="garbage", key=gateway.keys["one"])) for _ in range(40)} == {503}
    questions = gateway.questions - before
    assert questions <= 2 * (time.monotonic() - since + 2), f"{name} asks {questions} times"
    # While there are no keys nothing is taken; once they are there, all that is good is.
    eventually(lambda: status(gateway.token()) == 503, f"{name} has no keys")
    gateway.is_away = False
    eventually(lambda: status(gateway.token()) == 200, f"{name} has keys")
    now, other = int(time.time()), Ed25519PrivateKey.generate()
    bound = {"bh": digest(body), "method": "SendMessage"}
    good = {
        "of discovery": gateway.token(token_use=None), "a clock that is behind": gateway.token(exp=now - 2),
        "bound": gateway.token(**bound), "bound without a method": gateway.token(bh=digest(body)),
    }
    bad = {
        "another key": gateway.token(key=other), "an unknown key": gateway.token(kid="two", key=other),
        "another issuer": gateway.token(iss="https://other.example"), "another audience": gateway.token(aud="other"),
        "a list of audiences": gateway.token(aud=["agent"]), "over": gateway.token(exp=now - 10),
        "not yet": gateway.token(nbf=now + 60), "another scope": gateway.token(scope="a2a:wake"),
        "another use": gateway.token(token_use="other"), "another type": gateway.token(head={"typ": "a2a-wake+jwt"}),
        "no type": gateway.token(head={"typ": "JWT"}), "a key of its own": gateway.token(head={"jwk": {}}),
        "another body": gateway.token(bh=digest(b"other")), "a method alone": gateway.token(method="SendMessage"),
        "another method": gateway.token(bh=digest(body), method="tasks/cancel"), "too long": gateway.token(more="x" * 9000),
        **{f"without {claim}": gateway.token(**{claim: None}) for claim in ("sub", "aud", "exp", "nbf", "iat", "jti", "iss", "scope")},
    }
    chain = gateway.chain()
    passed = {"X-A2A-On-Behalf-Of": chain}
    beside = gateway.token(tth=digest(chain.encode()))
    assert status(beside, **passed) == 200, f"{name}: a chain is refused: {log.read_text()[-2000:]}"
    chains = {
        "stripped": (beside, ""), "put in": (gateway.token(), chain), "swapped": (beside, gateway.chain()),
        **{what: (gateway.token(tth=digest(made.encode())), made) for what, made in {
            "for another": gateway.chain(aud="other"), "another use": gateway.chain(token_use="call"), "no use": gateway.chain(token_use=None),
            "another scope": gateway.chain(scope="a2a:message"), "another type": gateway.chain(head={"typ": "a2a-pair+jwt"}),
            "another caller's": gateway.chain(act={"sub": "bob", "act": {"sub": "alice"}}), "the root's": gateway.chain(act=None),
            "over": gateway.chain(exp=now - 10), "another key": gateway.chain(key=other), "no token": "ada"}.items()},
    }
    taken = [what for what, (token, made) in chains.items() if status(token, **{"X-A2A-On-Behalf-Of": made} if made else {}) != 401]
    assert not taken, f"{name}: {taken}"
    # What the agent calls meanwhile carries it, at the gateway alone.
    gateway.stranger = Gateway()

    def asked(to, beside=beside, **passed):
        shown = call("GET", f"http://127.0.0.1:{port}/ask?to={to}", beside, None, passed)
        assert shown.status == 200, f"{name}: {shown}\n{log.read_text()[-2000:]}"
        return json.loads(shown.body).get("x-a2a-on-behalf-of") if shown.body.startswith(b"{") else None

    assert asked(f"{gateway.url}/echo", **passed) == chain, f"{name}: the chain is not passed on"
    assert asked(f"{gateway.url}/echo", gateway.token()) is None, f"{name}: the chain of another call"
    assert asked(f"{gateway.stranger.url}/echo", **passed) is None, f"{name}: a stranger learns of the chain"
    assert asked(f"{gateway.url}/away", **passed) is None, f"{name}: a redirect takes the chain away"
    wrong = [f"{what} is refused" for what, token in good.items() if status(token) != 200]
    wrong += [f"{what} is taken" for what, token in bad.items() if status(token) != 401]
    # What is no object has no method; a head that is too deep is no head.
    for other in (b"null", b"[1]", b"no json", b"[" * 9000):
        wrong += [f"{other[:9]} is taken"] if status(gateway.token(bh=digest(other), method="SendMessage"), other) != 401 else []
    deep = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 5000).decode().rstrip("=")
    wrong += ["a deep head is taken"] if status(f"{deep}.e30.e30") != 401 else []
    # Bound is what is read, whatever its length was said to be.
    assert chunked("POST", gateway.token(**bound), body) == 200, f"{name}: a chunked body"
    for method in ("POST", "GET"):
        assert chunked(method, gateway.token(bh=digest(b"")), body) == 401, f"{name}: a token of an empty body"
    forged = {"X-Workspace-ID": "mallory", "x_a2a_caller": "mallory", "X-Other": "kept"}
    raw = call("GET", f"http://127.0.0.1:{port}/raw", gateway.token(), None, forged)
    assert raw.status == 200 and b"mallory" not in raw.body and b"kept" in raw.body, f"{name}: {raw}"
    call("GET", f"http://127.0.0.1:{port}/%0D%0AFORGED%1B[2J", "none")
    again = gateway.token(**bound)
    assert [status(again), status(again)] == [200, 401], f"{name}: a bound token counts once"
    own = {"X-A2A-Caller-Token": gateway.token()}
    assert [status("the agent's own", **own), status("", **own)] == [200, 200], f"{name}: the token has a field of its own"
    assert not wrong, f"{name}: {wrong}"
    # A key that is new, of the other algorithm. An unknown one was asked for just now, so it counts 10 s later.
    gateway.add("three", ec.generate_private_key(ec.SECP256R1()))
    eventually(lambda: status(gateway.token("three")) == 200, f"{name} knows a new key")
    # While an answer about an unknown key is waited for, known ones wait for nothing.
    gateway.answers.clear()
    with ThreadPoolExecutor() as pool:
        asked = gateway.questions

        def unknown():
            while gateway.questions == asked:
                status(gateway.token("one", head={"kid": "four"}))

        waiting = pool.submit(unknown)
        eventually(lambda: gateway.questions > asked, f"{name} asks for an unknown key")
        since = time.monotonic()
        assert status(gateway.token()) == 200 and not waiting.done(), f"{name}: a good caller waits for a stranger"
        assert time.monotonic() - since < 5, f"{name}: a good caller waits for an answer that does not come"
        gateway.answers.set()
    # Keys that fill the memory are not read to their end.
    peak = peak_of(child)
    gateway.bomb, asked = gzip.compress(bytes(400 << 20), 1), gateway.questions
    eventually(lambda: status(gateway.token("four", key=gateway.keys["one"])) == 401 and gateway.questions > asked + 1, f"{name} asks")
    eventually(lambda: "keys cannot be had" in log.read_text(), f"{name} says that it has no keys")
    assert status(gateway.token()) == 200 and peak_of(child) < peak + (100 << 10), f"{name}: {peak_of(child) - peak} KiB"
    gateway.bomb = None
    assert "\x1b" not in log.read_text() and "\nFORGED" not in log.read_text(), log.read_text()
    # A gateway that names no time between heartbeats gets some.
    beats = sum(path == "/registry/heartbeat" for path, *_ in gateway.asked)
    assert beats <= (time.monotonic() - began) / 0.4 + 3, f"{name}: {beats} heartbeats"
    # A gateway that has forgotten the agent has it register again.
    gateway.asked.clear()
    gateway.known = False
    eventually(lambda: any(path == "/registry/register" for path, *_ in gateway.asked), f"{name} registers again")
    gateway.asked.clear()
    child.terminate()
    child.wait(PATIENCE)
    left = [path for path, *_ in gateway.asked if path != "/registry/heartbeat"]
    assert left == ["/registry/drain", "/registry/deregister"], f"{name}: {left}"
    return f"{name}: {len(good)} tokens taken, {len(bad)} refused, and {len(chains)} chains"
