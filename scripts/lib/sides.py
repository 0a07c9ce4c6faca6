"""The peers of `scripts/bench peers`: nginx, HAProxy and the gateway that one would build oneself, as further sides
of a benchmark. Their configurations are in scripts/lib/peers/.
"""

import hashlib
import json
import os
import subprocess

import agentgateway
import envoy
import harness
import usage

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers")

# All that can be asked for, in the order of the tables.
GATEWAYS = {"gateway": {}, "gateway-plain": {"audit.enabled": "false"}}
# As tokens are, of nobody.
UNKNOWN = "a2aw_" + "0" * 43


class Peers(harness.Bench):
    """A benchmark with the asked ones of `bare`, gateways by their settings, `gateway-pair`, `nginx`, `haproxy`, `diy`
    and `diy-cached`. Where `tls`, gateways, nginx and HAProxy speak it.
    """

    def __init__(self, names, gateways=None, tls=False, streaming=False, **options):
        of_gateways = {**GATEWAYS, **(gateways or {})}
        asked = {name: dict(of_gateways[name]) for name in names if name in of_gateways}
        if "gateway" not in asked and {"gateway-pair", "diy", "diy-cached"} & set(names):
            asked["gateway"] = dict(of_gateways["gateway"])
        self.names, self.tls, self.streaming = names, tls, streaming
        for settings in asked.values():
            settings["tokens.pair_ttl"] = "24h"
        super().__init__(gateways=asked, pinned=True, **options)
        if tls:
            certificate(self.folder)
            for settings in asked.values():
                settings |= {"server.tls.cert": f"{self.folder}/cert.pem", "server.tls.key": f"{self.folder}/key.pem"}

    def _start(self):
        super()._start()
        certificate(self.folder)
        if "gateway" in self.sides:
            gateway = self.sides["gateway"]
            self.outsider = harness.workspace(gateway, "outsider")
            pair = harness.call(gateway, "GET", "/registry/discover/target", gateway.token)["token"]
            self.sides["gateway-pair"] = harness.Side(gateway.roots, gateway.port, token=pair, scheme=gateway.scheme)
        if "nginx" in self.names:
            self._nginx()
        if "haproxy" in self.names:
            self._haproxy()
        if {"diy", "diy-cached"} & set(self.names):
            self._diy()
        for peer in (agentgateway, envoy):
            for name in peer.SIDES:
                if name in self.names:
                    peer.start(self, usage.peers()[peer.__name__], name)
        self.sides["direct"] = harness.Side([self.agent.pid], harness.AGENT)
        # What has no credentials of its own is sent the same bytes.
        for side in self.sides.values():
            side.token = side.token or self.token or UNKNOWN
            side.path = harness.A2A
        self.sides = {name: self.sides[name] for name in self.names}

    def restart_agent(self, *arguments):
        super().restart_agent(*arguments)
        if "direct" in self.sides:
            self.sides["direct"].roots = [self.agent.pid]

    def configure(self, template, name=None, **values):
        """A configuration with its places filled in, as the file `name`."""
        values |= {"THREADS": harness.THREADS, "FOLDER": self.folder, "AGENT": harness.AGENT, "HERE": HERE,
                   "FILES": harness.LIMIT, "SLOTS": harness.LIMIT * 5 // 4, "CONNECTIONS": (harness.LIMIT - 200) // 2}
        with open(f"{HERE}/{template}") as file:
            text = file.read()
        for place, value in values.items():
            text = text.replace(f"@{place}@", str(value))
        if os.geteuid() != 0:
            # Only root can be told who to be.
            text = text.replace("user root;\n", "")
        name = name or template
        with open(f"{self.folder}/{name}", "w") as file:
            file.write(text)
        return f"{self.folder}/{name}"

    def side(self, name, ports, *commands, environment=None):
        """Starts a peer; its first port is asked for calls, its second for streams, its third is for TLS."""
        log = open(f"{self.folder}/{name}.out", "w")
        environment = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin", **(environment or {})}
        roots = [self._run(*self.pin, *command, stdout=log, stderr=log, env=environment).pid for command in commands]
        plain, stream, secure = ports
        port = secure if self.tls else stream if self.streaming else plain
        try:
            harness.await_port(port)
        except SystemExit as failure:
            with open(log.name) as told:
                raise SystemExit(f"{name}: {failure}: {told.read()}") from failure
        self.sides[name] = harness.Side(roots, port, scheme="https" if self.tls else "http")

    def _nginx(self):
        plain, stream, secure = ports = harness.free_ports(3)
        config = self.configure("nginx.conf", PORT=plain, STREAM_PORT=stream, TLS_PORT=secure)
        self.side("nginx", ports, ["nginx", "-p", self.folder, "-e", "stderr", "-c", config])

    def _haproxy(self):
        plain, stream, secure = ports = harness.free_ports(3)
        config = self.configure("haproxy.cfg", PORT=plain, STREAM_PORT=stream, TLS_PORT=secure)
        self.side("haproxy", ports, ["haproxy", "-db", "-f", config])

    def _diy(self):
        """Callers and hierarchy are those of the gateway."""
        plain, cached, service = harness.free_ports(3)
        known = {self.token: "caller", self.outsider: "outsider"}
        with open(f"{self.folder}/tokens.json", "w") as file:
            json.dump({"tokens": {hashlib.sha256(token.encode()).hexdigest(): name for token, name in known.items()},
                       "parents": {"caller": "parent", "target": "parent"}}, file)
        config = self.configure("diy.conf", PORT=plain, CACHED_PORT=cached, SERVICE_PORT=service)
        node = ["node", f"{HERE}/tokens.mjs", str(service), f"{self.folder}/tokens.json"]
        self.side("diy", (plain, plain, plain), node, ["nginx", "-p", self.folder, "-e", "stderr", "-c", config])
        harness.await_port(service)
        diy = self.sides["diy"]
        self.sides["diy-cached"] = harness.Side(diy.roots, cached)


def certificate(folder):
    """One for the run, ECDSA on P-256, that all use."""
    if os.path.exists(f"{folder}/both.pem"):
        return
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
         "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"], check=True, capture_output=True)
    with open(f"{folder}/both.pem", "w") as both:
        for part in ("cert", "key"):
            with open(f"{folder}/{part}.pem") as file:
                both.write(file.read())
