"""agentgateway as further sides of `scripts/bench peers`: its `a2a` policy alone, with an API key, and with a JWT.

It is no Debian package, so its binary is given by its path: `PEERS=agentgateway:/path`. The image that the project
publishes has it as `/app/agentgateway` (docs/design/benchmarks.md says how to take it out).
"""

import base64
import json
import os
import secrets
import subprocess
import time

import harness

# The policies besides `a2a` of each side, as lines of the configuration.
KEY = """        apiKey:
          mode: strict
          keys:
          - key: @TOKEN@"""
JWT = """        jwtAuth:
          mode: strict
          issuer: bench
          audiences: [target]
          jwks:
            file: @FOLDER@/jwks.json"""
SIDES = {"agentgateway": "", "agentgateway-key": KEY, "agentgateway-jwt": JWT}


def start(bench, binary, name):
    """Starts one side, with as many threads as the gateway has, one a core where there are several."""
    token = {"agentgateway-key": lambda _: secrets.token_urlsafe(32), "agentgateway-jwt": jwt}.get(name, lambda _: "")
    token = token(bench.folder)
    port, *own = harness.free_ports(4)
    credential = SIDES[name].replace("@TOKEN@", token).replace("@FOLDER@", bench.folder)
    config = bench.configure("agentgateway.yaml", f"{name}.yaml", PORT=port, CREDENTIAL=credential)
    addresses = zip(("ADMIN_ADDR", "STATS_ADDR", "READINESS_ADDR"), own)
    environment = {address: f"127.0.0.1:{at}" for address, at in addresses}
    environment |= {"WORKER_THREADS": str(harness.THREADS), "IPV6_ENABLED": "false"}
    if harness.THREADS > 1:
        environment["THREADING_MODE"] = "thread_per_core"
    bench.side(name, (port, port, port), [binary, "-f", config], environment=environment)
    bench.sides[name].token = token


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwt(folder):
    """A token for a day, RS256, and its key in a JWKS file."""
    key, run = f"{folder}/jwt.pem", {"check": True, "capture_output": True}
    if not os.path.exists(key):
        subprocess.run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", key], **run)
    modulus = subprocess.run(["openssl", "rsa", "-in", key, "-noout", "-modulus"], **run).stdout
    modulus = bytes.fromhex(modulus.decode().strip().removeprefix("Modulus="))
    jwk = {"kty": "RSA", "kid": "bench", "alg": "RS256", "use": "sig", "n": base64url(modulus), "e": "AQAB"}
    with open(f"{folder}/jwks.json", "w") as file:
        json.dump({"keys": [jwk]}, file)
    now = int(time.time())
    claims = {"iss": "bench", "aud": "target", "sub": "caller", "iat": now, "nbf": now, "exp": now + 86_400}
    head = {"alg": "RS256", "typ": "JWT", "kid": "bench"}
    text = ".".join(base64url(json.dumps(part).encode()) for part in (head, claims))
    signed = subprocess.run(["openssl", "dgst", "-sha256", "-sign", key], input=text.encode(), **run)
    return f"{text}.{base64url(signed.stdout)}"
