"""Agents without a secret: their tokens are those of a platform, in a file that it keeps fresh as a kubelet does."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from joined import Process, gateway_of, send, status, texts
from polled import asked
from stage import PATIENCE, eventually

AGENTS = {"py13": "py13", "js13": "js13", "id-poll-python": "poller", "id-poll-javascript": "poller.mjs"}
CLUSTER = "https://kubernetes.default.svc.cluster.local"
# In seconds: how long a token is good, how often the file has a new one, how long all of it goes on.
LIFE, FRESH, LONG = 6, 2, 14


class Cluster(ThreadingHTTPServer):
    """Publishes its key, and writes tokens for service accounts."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        self.jwks = json.dumps({"keys": [{**jwk, "kid": "k8s", "use": "sig", "alg": "RS256"}]}).encode()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def rules(self):
        url = f"http://127.0.0.1:{self.server_port}/openid/v1/jwks"
        return json.dumps([{"issuer": CLUSTER, "jwks_url": url, "audience": "a2a-gateway", "workspace": "{name}",
                            "claims": {"sub": "system:serviceaccount:agents:{name}"}}])

    def token(self, name):
        now = int(time.time())
        claims = {"iss": CLUSTER, "aud": ["a2a-gateway"], "sub": f"system:serviceaccount:agents:{name}", "iat": now, "nbf": now,
                  "exp": now + LIFE, "kubernetes.io": {"namespace": "agents", "serviceaccount": {"name": name}}}
        return jwt.encode(claims, self.key, "RS256", {"kid": "k8s", "typ": None})


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.server.jwks)))
        self.end_headers()
        self.wfile.write(self.server.jwks)

    def log_message(self, *_):
        pass


class Volume:
    """A projected volume: `token` leads over `..data` to a folder, and each new token has another folder."""

    def __init__(self, cluster, folder, name):
        self.cluster, self.folder, self.name, self.number = cluster, folder, name, 0
        folder.mkdir()
        self.renew()
        self.token = folder / "token"
        self.token.symlink_to("..data/token")

    def renew(self):
        self.number += 1
        version = self.folder / f"..{self.number}"
        version.mkdir()
        self.written = self.cluster.token(self.name)
        (version / "token").write_text(self.written)
        (self.folder / "..new").symlink_to(version.name)
        os.replace(self.folder / "..new", self.folder / "..data")


def run(stage, built, told):
    cluster = Cluster()
    gateway = gateway_of(stage, **{"auth.workspace_issuers": cluster.rules()})
    with ThreadPoolExecutor() as pool:
        for line in pool.map(lambda name: let_in(gateway, cluster, built, name), AGENTS):
            told(line)


def let_in(gateway, cluster, built, name):
    polls = {"delivery_mode": "poll"} if "poll" in name else {}
    made = gateway.operate("POST", "/workspaces", {"id": name, "name": name, "parent_id": "family", **polls})
    assert "enrolment_token" in made, made
    volume = Volume(cluster, gateway.log.parent / f"{name}-volume", name)
    agent, begun = Process(gateway, built, AGENTS[name], name, volume.token, {}).start(), time.monotonic()
    while status(gateway, name) != "online":
        # A busy machine starts it more slowly than a token lives.
        assert time.monotonic() < begun + PATIENCE, f"{name} is {status(gateway, name)}: {agent.log.read_text()[-3000:]}"
        time.sleep(FRESH / 2)
        volume.renew()
    until, calls = time.monotonic() + LONG, 0
    while time.monotonic() < until:
        time.sleep(FRESH / 2)
        if calls % 2:
            volume.renew()
        if not polls:
            assert "alice" in send(gateway, name), name
        assert status(gateway, name) == "online", f"{name}: {agent.log.read_text()[-2000:]}"
        calls += 1
    if polls:
        # Also after the tokens with which its feed was read are over.
        eventually(lambda: "alice said hello" in texts(asked(gateway, name, "hello")), f"{name} answers")
    assert volume.token.is_symlink() and volume.token.read_text() == volume.written, f"{name} has written its token"
    assert gateway.operate("GET", f"/workspaces/{name}/tokens", None)["tokens"] == [], f"{name} has a static token"
    agent.stop(signal.SIGTERM)
    eventually(lambda: status(gateway, name) == "offline", f"{name} leaves")
    return f"{name}: {volume.number} tokens of {LIFE} s in {LONG} s, and no secret of its own"
