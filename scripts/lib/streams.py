"""The delay of events in a stream: from the agent's write to the caller's read, in microseconds.

Started by `scripts/bench streams`; `scripts/bench peers` measures the same of its sides.
"""

import statistics

import harness
import loads
import results
import usage

PARTS = ("p50", "p90", "p99", "p999")


def delays(bench, sides, rounds, count):
    """Rounds of `count` streams each, of every side by turns; the first round warms up."""
    measured = {name: [] for name in sides}
    for number in range(rounds + 1):
        harness.progress(f"{', '.join(sides)}: {f'round {number} of {rounds}' if number else 'they warm up'}")
        for name, side in sides.items():
            before = side.cpu_seconds()
            told = loads.streams(side, bench.request(side.path, "text/event-stream", name), count)
            told["cpu_us"] = 1e6 * (side.cpu_seconds() - before) / told["events"]
            if number:
                measured[name].append(told)
    return measured


def tell(measured, against):
    """Medians of the rounds, and what each side adds to the delay of `against`."""
    median = {name: {part: statistics.median(told[f"{part}_us"] for told in rounds) for part in PARTS}
              for name, rounds in measured.items()}
    for name, of in median.items():
        print(f"  {name:14} " + "  ".join(f"{part} {of[part]:6.0f} ({of[part] - median[against][part]:+.0f})" for part in PARTS),
              flush=True)


def main():
    rounds, events, pause_ms = usage.GIVEN.values()
    gateways = {"gateway": {}, "unlogged": {"stream.log_events": 0}}
    with harness.Bench(gateways=gateways, agent=(512, events, pause_ms)) as bench:
        measured = delays(bench, bench.sides, rounds, 1)
    print(f"{rounds} alternating streams of {events} events, {pause_ms} ms apart, {harness.THREADS} proxy thread(s);"
          " microseconds, medians of the rounds, and what is more than bare")
    tell(measured, "bare")
    results.write("streams", measured)


if __name__ == "__main__":
    harness.end_well()
    main()
