"""One table of requests a second by the number of proxy threads: 1, 2, 4, … as long as load and agent have as many cores.

Started by `scripts/bench cores [ROUNDS] [SECONDS]`: `scripts/bench peers` for each number, with 64 connections a thread.
"""

import json
import os
import statistics
import subprocess
import sys

import harness
import usage

ROUNDS, SECONDS = usage.GIVEN["ROUNDS"], usage.GIVEN["SECONDS"]


def threads():
    """The numbers of threads: those for which the other half of the cores is left to load and agent; at least 1."""
    number = 1
    while number == 1 or 2 * number <= len(harness.CORES):
        yield number
        number *= 2


def measure(number):
    """The sides' rounds with so many threads."""
    environment = {**os.environ, "THREADS": str(number), "CASES": "unary", "BODIES": "512",
                   "CONNECTIONS": str(64 * number), "SIDES": ",".join(usage.sides("cores"))}
    command = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers.py"), str(ROUNDS), str(SECONDS)]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    file = next(line.split()[-1] for line in run.stdout.splitlines() if "written to" in line)
    with open(file) as results:
        return json.load(results)["measured"]["comparisons"][0]["sides"]


def main():
    told = {number: measure(number) for number in threads()}
    print(f"512 B, 64 connections a thread, {ROUNDS} rounds of {SECONDS} s, {len(harness.CORES)} cores; requests/s (x bare),"
          " CPU of each")
    print("| threads | " + " | ".join(next(iter(told.values()))) + " |")
    print("|---" * (1 + len(next(iter(told.values())))) + "|")
    for number, sides in told.items():
        cells = []
        for rounds in sides.values():
            pairs = zip(rounds, sides.get("bare", rounds))
            beside = statistics.median(mine["rate"] / bare["rate"] for mine, bare in pairs)
            rate, cpu = (statistics.median(one[key] for one in rounds) for key in ("rate", "cpu_us"))
            cells.append(f"{rate:,.0f} ({beside:.2f}), {cpu:.1f} us")
        print(f"| {number} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    harness.end_well()
    main()
