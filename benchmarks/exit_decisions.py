"""What deciding at an exit takes in Python: one sample, and a batch of which a part leaves.

    python -m benchmarks.exit_decisions [--classes 10 100 1000] [--json FILE]

Medians of 300 rounds of 100 decisions each, on one thread, by logits in fp32. *One sample*: `SampleDecision.leaves`, with
everything that it remembers. *A batch of 32*: `BatchDecision.leave` where half of the samples leave, per batch.

Bar: at most 20 microseconds an exit for one sample.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from adaptive_runtime.exits import MEASURES, Decider, MeasureName, Thresholds, trace

EXITS, BATCH = 100, 32
ROUNDS, WARM_UP = 300, 30
BAR_US = 20.0


def one_sample(name: MeasureName, classes: int) -> float:
    """Microseconds an exit: a sample that goes on through many exits."""
    logits_EK = np.random.default_rng(0).normal(size=(EXITS, 1, classes)).astype(np.float32)
    decider = Decider(Thresholds(measure=name, thresholds=(None,) * EXITS))

    def run() -> None:
        decision = decider.sample()
        for logits_K in logits_EK:
            decision.leaves(logits_K)

    return timed(run) / EXITS


def of_a_batch(name: MeasureName, classes: int) -> float:
    """Microseconds a batch at one exit, where half of the samples leave."""
    logits_BK = np.random.default_rng(0).normal(size=(BATCH, classes)).astype(np.float32)
    confidences_B = trace(MEASURES[name], logits_BK[:, None])[1][:, 0]
    decider = Decider(Thresholds(measure=name, thresholds=(float(np.median(confidences_B)), None)))

    def run() -> None:
        for _ in range(EXITS):
            decider.batch(BATCH).leave(logits_BK)

    return timed(run) / EXITS


def timed(run: Callable[[], None]) -> float:
    """Median duration of a call [us]."""
    durations = []
    for _ in range(ROUNDS + WARM_UP):
        start = time.perf_counter_ns()
        run()
        durations.append((time.perf_counter_ns() - start) / 1e3)
    return median(durations[WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = [
        {
            "measure": name,
            "classes": classes,
            "one_us": one_sample(name, classes),
            "of_32_us": of_a_batch(name, classes),
        }
        for name in MEASURES
        for classes in options.classes
    ]
    table = Table("measure", "classes", "one sample, µs", f"holds (<= {BAR_US:g})", "a batch of 32, µs")
    for row in rows:
        holds = "yes" if row["one_us"] <= BAR_US else "NO"
        table.add_row(row["measure"], str(row["classes"]), f"{row['one_us']:.1f}", holds, f"{row['of_32_us']:.1f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
