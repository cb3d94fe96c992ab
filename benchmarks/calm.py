"""How well are latencies of whole SubNets known on a machine that others use?

    python -m benchmarks.calm DIR

Every file below DIR, an output folder, in which SubNets were timed in several rounds beside a reference. How far single
latencies of a SubNet are from their mean, and how well the medians of even rounds and of odd rounds order the SubNets alike
(Kendall's τ): as measured, relative to the reference, and with the part of its slowdown that they share
(`tasks.measuring.jobs`).
"""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tasks.base.artifacts import read_lines
from tasks.evaluation.uncertainty import kendall_tau
from tasks.measuring.jobs import Calm, TimedLine

FILES = ("timed.jsonl", "measured_subnets.jsonl")
FEWEST = 20
"""SubNets that were measured twice."""


def known(by_key: list[list[TimedLine]], calm: Calm) -> tuple[float, float | None]:
    """Standard deviation of single latencies around their SubNet's mean, relative; τ of the medians of even and odd rounds."""
    away, even, odd = [], [], []
    for lines in by_key:
        times_ms = np.array([line.p50_ms for line in lines]) / calm.slowdowns(lines)
        away += list(np.log(times_ms) - np.log(times_ms).mean())
        even.append(np.median(times_ms[::2]))
        odd.append(np.median(times_ms[1::2]))
    return float(np.std(away)), kendall_tau(np.array(even), np.array(odd))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    options = parser.parse_args()
    table = Table(
        "file", "SubNets", "part shared", "as measured", "relative to the reference", "part of it", title="spread, τ"
    )
    for file in sorted(path for name in FILES for path in options.folder.rglob(name)):
        timed = map(TimedLine.model_validate, read_lines(file))
        lines = [line for line in timed if line.p50_ms and line.reference_ms]
        by_key: dict[str, list[TimedLine]] = {}
        for line in lines:
            by_key.setdefault(line.key, []).append(line)
        several = [found for found in by_key.values() if len(found) > 1]
        if len(several) < FEWEST:
            continue
        fitted = Calm.fit(lines)
        cells = []
        for calm in (Calm(fitted.best_ms, 0.0), Calm(fitted.best_ms), fitted):
            spread, tau = known(several, calm)
            cells.append(f"{spread:.1%}, {tau:.3f}")
        part = f"{fitted.level:.2f} {fitted.slope:+.2f} x"
        table.add_row(str(file.parent.relative_to(options.folder)), str(len(several)), part, *cells)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
