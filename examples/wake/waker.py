#!/usr/bin/env python3
"""A waker for a2a-gateway: verifies the gateway's token, and starts the agent of the workspace.

    waker.py --gateway URL --origin ORIGIN [--listen HOST:PORT] docker [PREFIX]
    waker.py --gateway URL --origin ORIGIN [--listen HOST:PORT] kubernetes [PREFIX]
    waker.py --gateway URL --origin ORIGIN [--listen HOST:PORT] run COMMAND [ARGUMENT]...

`docker` runs `docker start PREFIX<workspace>`. `kubernetes` scales the deployment PREFIX<workspace> of its own namespace
to one replica, as its service account. `run` runs a command, with {workspace} in it replaced, and ends it with itself. --gateway is the gateway's
public URL, which is the issuer of its tokens; --origin is scheme, host and port of this server as the gateway calls it.
The socket of a systemd unit takes the place of --listen.
Python 3.9 and openssl 3 are needed, and no package.
"""

import argparse
import base64
import http.server
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request

LEEWAY = 5
WORKSPACE = re.compile(r"[A-Za-z0-9._-]{1,128}")
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/"


class Refused(Exception):
    """The request is not one of the gateway."""


def decoded(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def public_key(jwk):
    """Returns a key of the JWKS in PEM form."""
    if jwk["kty"] == "OKP" and jwk["crv"] == "Ed25519":
        der = bytes.fromhex("302a300506032b6570032100") + decoded(jwk["x"])
    elif jwk["kty"] == "EC" and jwk["crv"] == "P-256":
        point = b"\x04" + decoded(jwk["x"]) + decoded(jwk["y"])
        der = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107034200") + point
    else:
        raise Refused("a key of an unknown kind")
    return "-----BEGIN PUBLIC KEY-----\n%s-----END PUBLIC KEY-----\n" % base64.encodebytes(der).decode()


def in_der(signature):
    """Returns a signature of ES256 in the form that openssl reads."""
    parts = b""
    for number in (signature[:32], signature[32:]):
        number = number.lstrip(b"\0") or b"\0"
        if number[0] & 0x80:
            number = b"\0" + number
        parts += bytes([2, len(number)]) + number
    return bytes([0x30, len(parts)]) + parts


def is_signed(key, message, signature):
    with tempfile.TemporaryDirectory() as folder:
        names = {}
        for name, content in (("key", key.encode()), ("message", message), ("signature", signature)):
            names[name] = os.path.join(folder, name)
            with open(names[name], "wb") as file:
                file.write(content)
        verify = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", names["key"], "-rawin"]
        verify += ["-in", names["message"], "-sigfile", names["signature"]]
        return subprocess.run(verify, capture_output=True, timeout=10).returncode == 0


class Verifier:
    """Verifies wake tokens by the keys that the gateway publishes."""

    def __init__(self, gateway, origin):
        self.gateway, self.origin = gateway.rstrip("/"), origin.rstrip("/")
        self.keys, self.fetched, self.used = {}, 0.0, {}
        self.lock = threading.Lock()

    def key(self, kid):
        # An unknown key may be a new one; a flood of unknown ones fetches once in ten seconds.
        if kid not in self.keys and time.monotonic() - self.fetched > 10:
            self.fetched = time.monotonic()
            with urllib.request.urlopen(self.gateway + "/.well-known/jwks.json", timeout=5) as answer:
                keys = json.load(answer)["keys"]
            self.keys = {key["kid"]: (key["alg"], public_key(key)) for key in keys}
        if kid not in self.keys:
            raise Refused("the token is signed by an unknown key")
        return self.keys[kid]

    def workspace(self, token):
        """Returns the workspace that a token asks to wake."""
        try:
            head, claims, signature = token.split(".")
            message = (head + "." + claims).encode()
            head, claims, signature = json.loads(decoded(head)), json.loads(decoded(claims)), decoded(signature)
        except ValueError:
            raise Refused("no token") from None
        if head.get("typ") != "a2a-wake+jwt":
            raise Refused("another kind of token")
        with self.lock:
            alg, key = self.key(head.get("kid"))
            if head.get("alg") != alg:
                raise Refused("another algorithm than that of the key")
            if not is_signed(key, message, in_der(signature) if alg == "ES256" else signature):
                raise Refused("the signature is wrong")
            now = time.time()
            wanted = {"iss": self.gateway, "aud": self.origin, "scope": "a2a:wake"}
            for name, value in wanted.items():
                if claims.get(name) != value:
                    raise Refused("`%s` is %r instead of %r" % (name, claims.get(name), value))
            if not claims["nbf"] - LEEWAY <= now <= claims["exp"] + LEEWAY:
                raise Refused("the token has expired, or is not valid yet")
            self.used = {jti: end for jti, end in self.used.items() if end > now}
            if claims["jti"] in self.used:
                raise Refused("the token was used before")
            self.used[claims["jti"]] = claims["exp"] + LEEWAY
        if not WORKSPACE.fullmatch(claims["sub"]):
            raise Refused("no id of a workspace")
        return claims["sub"]


def docker(workspace, prefix="a2a-"):
    subprocess.run(["docker", "start", prefix + workspace], check=True, timeout=8)


def kubernetes(workspace, prefix="a2a-"):
    with open(SERVICE_ACCOUNT + "token") as file:
        token = file.read()
    with open(SERVICE_ACCOUNT + "namespace") as file:
        namespace = file.read()
    host = "https://%s:%s" % (os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"])
    path = "/apis/apps/v1/namespaces/%s/deployments/%s%s/scale" % (namespace, prefix, workspace.lower())
    scale = urllib.request.Request(host + path, method="PATCH", data=b'{"spec":{"replicas":1}}')
    scale.add_header("Authorization", "Bearer " + token)
    scale.add_header("Content-Type", "application/merge-patch+json")
    trust = ssl.create_default_context(cafile=SERVICE_ACCOUNT + "ca.crt")
    urllib.request.urlopen(scale, timeout=8, context=trust).close()


AGENTS = {}


def run(workspace, *command):
    # One that runs already may just be slow to register.
    if workspace not in AGENTS or AGENTS[workspace].poll() is not None:
        AGENTS[workspace] = subprocess.Popen([part.replace("{workspace}", workspace) for part in command])


def end(*_):
    for agent in AGENTS.values():
        agent.terminate()
    os._exit(0)


def serve(listen, verifier, start):
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self):
            try:
                scheme, _, token = self.headers.get("Authorization", "").partition(" ")
                workspace = verifier.workspace(token if scheme.lower() == "bearer" else "")
                self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 4096))
                start(workspace)
                self.answer(202, "woke " + workspace)
            except Refused as why:
                self.answer(401, str(why))
            except Exception as why:  # A waker that fails is asked again after its cool-down.
                self.answer(502, "cannot start the agent: %s" % why)

        def answer(self, status, text):
            body = (text + "\n").encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    signal.signal(signal.SIGTERM, end)
    host, _, port = listen.rpartition(":")
    by_systemd = os.environ.get("LISTEN_PID") == str(os.getpid())
    server = http.server.ThreadingHTTPServer((host, int(port)), Handler, bind_and_activate=not by_systemd)
    if by_systemd:
        # The socket of the unit, which listens already.
        server.socket = socket.socket(fileno=3)
    server.serve_forever()


def main():
    parser = argparse.ArgumentParser(description="Wakes agents for a2a-gateway.")
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--origin", required=True)
    parser.add_argument("--listen", default="127.0.0.1:8081")
    parser.add_argument("how", choices=["docker", "kubernetes", "run"])
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    said = parser.parse_args()
    how = {"docker": docker, "kubernetes": kubernetes, "run": run}[said.how]
    verifier = Verifier(said.gateway, said.origin)
    serve(said.listen, verifier, lambda workspace: how(workspace, *said.arguments))


if __name__ == "__main__":
    main()
