"""Calls that the gateway translates, beside the same calls in their agent's generation. Started by `scripts/bench bridged`."""

import json

import harness
import path
import usage


def main():
    with harness.Bench(usage.GIVEN["BODY_BYTES"]) as bench:
        scripts = {side: bench.wrk_script(side) for side in bench.sides}
        bench.sides["bridged"] = bench.sides["gateway"]
        bench.body = in_1_0(bench.body)
        scripts["bridged"] = bench.wrk_script("bridged", fields={"A2A-Version": "1.0"})
        path.compare(bench, scripts, [("bridged", "gateway")])


def in_1_0(call):
    """The call in A2A 1.0, which the agent does not speak, with the same text."""
    text = json.loads(call)["params"]["message"]["parts"][0]["text"]
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}]}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}})


if __name__ == "__main__":
    harness.end_well()
    main()
