"""Real agents, joined to the real gateway by the packages of clients/. Started by scripts/agents: run.py GATEWAY CLIENTS AGENTS."""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "clients"))
from built import Built, joined_in_three_lines, short_enough
from stage import Stage

import identities
import life
import polled
import rolling
import tokens
import wrapped

PARTS = {"life": life.run, "rolling": rolling.run, "polled": polled.run, "tokens": tokens.run, "wrapped": wrapped.run,
         "identities": identities.run}


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("gateway", help="the binary")
    options.add_argument("clients", help="what scripts/clients printed")
    options.add_argument("agents", help="where the frameworks are that scripts/agents installed")
    options.add_argument("parts", nargs="*", default=PARTS)
    options = options.parse_args()
    # What a user has set must not reach the agents.
    for name in [name for name in os.environ if name.startswith("A2A_GATEWAY")]:
        del os.environ[name]
    began = time.monotonic()

    def told(what):
        print(f"{time.monotonic() - began:5.1f} s  {what}", flush=True)

    short_enough()
    for name in life.AGENTS:
        joined_in_three_lines(name)
    with Stage(options.gateway, options.clients) as stage:
        built = Built(stage.folder / "built", options.clients, options.agents)
        built.folder.mkdir()
        built.build()
        told("built, installed into clean environments, types checked")
        with ThreadPoolExecutor() as pool:
            parts = [pool.submit(PARTS[name], stage, built, told) for name in options.parts]
            for part in parts:
                part.result()


main()
