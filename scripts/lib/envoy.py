"""Envoy as further sides of `scripts/bench peers`: passing through, and doing what it can of the gateway's work (JWT with
its cache, RBAC on the claim, local rate limit, a buffer of 10 MiB, Lua that completes the body, a JSON line for each call).

It is no Debian package, so its binary is given by its path: `PEERS=envoy:/path` (docs/design/benchmarks.md says where it
is found).
"""

import agentgateway
import harness

ACCESS_LOG = """          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: @FOLDER@/envoy-access.log
              log_format:
                json_format:
                  time: "%START_TIME%"
                  path: "%REQ(:PATH)%"
                  status: "%RESPONSE_CODE%"
                  flags: "%RESPONSE_FLAGS%"
                  bytes_in: "%BYTES_RECEIVED%"
                  bytes_out: "%BYTES_SENT%"
                  duration: "%DURATION%"
                  caller: "%DYNAMIC_METADATA(envoy.filters.http.jwt_authn:claims:sub)%\""""
SIDES = ("envoy", "envoy-full")


def start(bench, binary, name):
    """Starts one side, with as many workers as the gateway has threads."""
    [port] = harness.free_ports(1)
    filters = access_log = token = ""
    if name == "envoy-full":
        token = agentgateway.jwt(bench.folder)
        with open(bench.configure("envoy-filters.yaml")) as file:
            filters = file.read()
        access_log = ACCESS_LOG
    config = bench.configure("envoy.yaml", f"{name}.yaml", PORT=port, FILTERS=filters, ACCESS_LOG=access_log)
    workers = ["--concurrency", str(harness.THREADS), "--disable-hot-restart", "--log-level", "error"]
    bench.side(name, (port, port, port), [binary, "-c", config, *workers])
    bench.sides[name].token = token
