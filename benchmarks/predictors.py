"""SubNets per second of the compiled predictors on one core, and their difference from the slow path.

    python -m benchmarks.predictors [--subnets 1000000] [--json FILE] [PRESET …]

Latency: a table of random positive numbers, since the time does not depend on them; compiled, then a population of random
codes as one matrix. CPU time, the best of five. The slow path reads each SubNet's operators and adds up their entries.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.elastic import PRESETS, compiled
from solvers.tables import merged
from tasks.prediction.sums import Sums

REPEATS = 5
CHECKED = 200


def measure(preset: str, subnets: int) -> dict[str, Any]:
    """One row."""
    net = compiled(preset)
    rng = np.random.default_rng(0)
    table_ms = {feature: float(rng.uniform(0.01, 2.0)) for feature in net.unique_operators()}
    start = time.thread_time()
    sums = Sums.compile(net, table_ms)
    codes = net.space.random_codes(subnets, rng)
    sums.predict(codes[:1])
    compile_s = time.thread_time() - start
    taken_s = []
    for _ in range(REPEATS):
        start = time.thread_time()
        predicted_ms = sums.predict(codes)
        taken_s.append(time.thread_time() - start)
    start = time.thread_time()
    slow_ms = [math.fsum(table_ms[f] for f in net.operators(net.space.decode(code))) for code in codes[:CHECKED]]
    slow_s = time.thread_time() - start
    return {
        "preset": preset,
        "tables": len(merged(sums.tables, sums.cardinalities)),
        "compile_s": compile_s,
        "subnets_per_s": subnets / min(taken_s),
        "slow_subnets_per_s": CHECKED / slow_s,
        "largest_difference": float(np.abs(predicted_ms[:CHECKED] - slow_ms).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", metavar="PRESET", default=PRESETS)
    parser.add_argument("--subnets", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(preset, options.subnets) for preset in options.presets]
    table = Table("preset", "tables", "compile, s", "SubNets / s", "slow path, SubNets / s", "largest difference")
    for row in rows:
        table.add_row(
            row["preset"],
            str(row["tables"]),
            f"{row['compile_s']:.2f}",
            f"{row['subnets_per_s']:,.0f}",
            f"{row['slow_subnets_per_s']:,.0f}",
            f"{row['largest_difference']:.0e}",
        )
    Console(width=120).print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
