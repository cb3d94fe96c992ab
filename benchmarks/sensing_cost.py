"""What sensing takes: CPU time of a process that does nothing else, in per cent of a core.

    python -m benchmarks.sensing_cost [--seconds 60] [--markdown] [--json FILE]

A process starts, takes a sample a second in the background for a minute, and reads its CPU time (user and system, all threads)
before and after; waiting, and what other processes do, is not in it. Each line adds something: samples alone; the timed probe
of the caches; a forecast and its backtest from each sample; ten requests a second whose latencies the slow-down factor learns
from, each followed by an expectation of all variants.

Bar: samples at most 1 % of a core; all of it at most 2 %.
"""

import argparse
import json
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_runtime.state.forecast import Forecaster
from adaptive_runtime.state.sensing import Sensing, load_index
from adaptive_runtime.state.slowdown import SlowDown
from benchmarks.tables import show

WHAT = ("samples", "and the probe", "and forecasts", "and requests")
BARS = (1.0, 1.0, 2.0, 2.0)
VARIANTS, REQUESTS_PER_S = 64, 10
PREDICTED_MS_V = np.linspace(1, 50, VARIANTS)


def spent(answer: Connection, parts: int, seconds: float) -> None:
    """Sends per cent of a core that the first `parts` of `WHAT` take, and the milliseconds of one sample."""
    rng = np.random.default_rng(0)
    forecaster = Forecaster()
    slow = SlowDown(PREDICTED_MS_V)
    with Sensing(hit_rate=parts > 1) as sensing:
        time.sleep(2)
        start_s, start_cpu_s, seen_s = time.monotonic(), time.process_time(), 0.0
        while time.monotonic() - start_s < seconds:
            time.sleep(1 / REQUESTS_PER_S if parts > 3 else 1.0)
            state = sensing.latest
            if parts > 2 and state is not None and state.at_s > seen_s:
                seen_s = state.at_s
                forecaster.observe(load_index(state))
            if parts > 3 and forecaster.forecast is not None:
                variant, load = int(rng.integers(VARIANTS)), float(forecaster.forecast.values_H[0])
                slow.observe(
                    variant, float(rng.uniform(1, 1.1) * np.linspace(1, 50, VARIANTS)[variant]), time.monotonic(), load
                )
                slow.expect(load).quantile_ms_V(0.99)
        answer.send(100 * (time.process_time() - start_cpu_s) / (time.monotonic() - start_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []
    for parts, (name, bar) in enumerate(zip(WHAT, BARS, strict=True), start=1):
        here, there = context.Pipe()
        process = context.Process(target=spent, args=(there, parts, options.seconds))
        process.start()
        rows.append({"what": name, "core_percent": here.recv(), "bar": bar})
        process.join()
    lines = [
        [
            row["what"],
            f"{row['core_percent']:.2f}",
            f"{row['bar']:g}",
            "yes" if row["core_percent"] <= row["bar"] else "NO",
        ]
        for row in rows
    ]
    show(("what", "% of a core", "bar", "holds"), lines, markdown=options.markdown)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
