"""SDK clients and SDK agents that trace themselves, and a gateway between them that does. Who looks at the spans is
tests/clients.rs, which has the collector: its base URLs are in COLLECTOR_HTTP and COLLECTOR_GRPC."""

import os

from stage import PATIENCE, call

# The two generations, each with the protocol that the gateway in front of its agent speaks to the collector.
PROTOCOLS = {"py03": "http/protobuf", "py13": "grpc"}
SCENARIOS = ["send", "stream", "task"]


def run(stage):
    http, grpc = os.environ["COLLECTOR_HTTP"], os.environ["COLLECTOR_GRPC"]
    # For agents and drivers; the gateway is told by its own keys.
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = http
    failures = []
    for name, agent in stage.agents(*PROTOCOLS).items():
        protocol = PROTOCOLS[name]
        endpoint = grpc if protocol == "grpc" else http
        gateway = stage.gateway(**{"telemetry.otlp_endpoint": endpoint, "telemetry.otlp_protocol": protocol})
        base = gateway.seat(agent)
        job = {"name": name, "base": base, "token": gateway.tokens["alice"], "binding": "JSONRPC",
               "version": "1.0" if name == "py13" else "0.3", "scenarios": SCENARIOS}
        for scenario, found in stage.drive(name, [job])[name].items():
            if "got" not in found["saw"]:
                failures.append(f"{name}, {scenario}: {found['saw']}")
        print(f"{name}: {len(SCENARIOS)} scenarios through a gateway that traces over {protocol}")
        # Its last spans leave with it; whoever looks at them waits for that.
        gateway.child.terminate()
        gateway.child.wait(timeout=PATIENCE)
        # An agent sends its spans where it answers: once this is answered, those of before are sent.
        call("GET", f"{agent.origin}/.well-known/agent-card.json")
    return failures
