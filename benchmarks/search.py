"""The exact search over the complete space of each preset, and how far the genetic search stays behind it.

    python -m benchmarks.search [--budgets 50] [--genetic SEEDS] [--json FILE] [PRESET …]

Without names, the seven presets of AutoTailor's Table 3. Latencies of operators are random positive numbers around their MACs
(a factor of e to the power of a normal number, and an overhead); sensitivities fall with the MACs that a modification saves,
by random factors, and are those of a validation split of 10,000 images. Budgets: at equal ratios from the fastest SubNet to
the best one. Seconds are for all budgets, from the compiled predictors on, on one core. --genetic: the same budgets by the
genetic search with its default settings, with so many seeds, with and without its beam, and by NSGA-II; the gap is in points of
predicted accuracy, and seconds are of processor time. --json: presets that the file has are not measured again, so that a run
that was ended goes on.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.bars import Terminal
from benchmarks.elastic import PRESETS, compiled
from tailor_ir import SuperNet
from tasks.artifacts import write_json
from tasks.evaluate import Accuracy
from tasks.predict.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.predict.correction import Correction
from tasks.predict.latency import LatencyPredictor
from tasks.predict.sums import Sums
from tasks.search.methods import Exact, Genetic, Method, Nsga2
from tasks.search.problem import Problem
from tasks.search.settings import Settings
from tasks.search.terms import chain_of, cost_tables

IMAGES = 10_000
SEARCHES: dict[str, Callable[[Problem, int], Method]] = {
    "beam": lambda problem, seed: Genetic(problem, Settings(seed=seed), np.random.default_rng(seed)),
    "no beam": lambda problem, seed: Genetic(problem, Settings(seed=seed, beam_width=0), np.random.default_rng(seed)),
    "nsga2": lambda problem, seed: Nsga2(problem, Settings(seed=seed)),
}


def predictors(net: SuperNet, seed: int) -> tuple[LatencyPredictor, AccuracyPredictor]:
    """Of a device and a training that there are not."""
    rng = np.random.default_rng(seed)
    latencies = {f: 0.002 + f.macs * 1e-7 * float(np.exp(rng.normal(0, 0.4))) for f in net.unique_operators()}
    none = Sums(net.space.cardinalities.tolist(), ())
    latency = LatencyPredictor(Sums.compile(net, latencies), Correction(offset_ms=0.01), none)
    largest = net.macs(net.max_config)
    measured = []
    for config in modifications(net.space):
        lost = 0.25 * (1 - net.macs(config) / largest) * float(rng.uniform(0.2, 1.8))
        measured.append(Accuracy(round(IMAGES * (0.8 - lost)), IMAGES, 0.9 + 4 * lost + float(rng.normal(0, 0.01))))
    return latency, AccuracyPredictor(sensitivities(net.space, measured))


def measure(preset: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    net = compiled(preset)
    latency, accuracy = predictors(net, 0)
    problem = Problem(net.space, latency, accuracy)
    start = time.perf_counter()
    method = Exact(problem, chain_of(net.space, accuracy, cost_tables(latency)), Settings())
    ends = problem.evaluate(np.stack([method.quickest(), method.best()]))
    budgets_ms = np.geomspace(*ends.latency_ms.tolist(), options.budgets).tolist()
    winners = [method.winner(np.array([budget_ms])) for budget_ms in budgets_ms]
    seconds = time.perf_counter() - start
    scores = problem.evaluate(np.stack([winner.code for winner in winners]))
    assert (scores.latency_ms <= np.array(budgets_ms) * (1 + 1e-9)).all()
    row: dict[str, Any] = {
        "preset": preset,
        "codes": float(net.space.codes),
        "seconds": seconds,
        "optimal": sum(winner.stopped == "optimal" for winner in winners),
        "budgets": len(winners),
    }
    for name, make in SEARCHES.items() if options.genetic else ():
        row[name] = gaps(problem, make, budgets_ms, scores.score, options.genetic)
    return row


def gaps(
    problem: Problem,
    make: Callable[[Problem, int], Method],
    budgets_ms: list[float],
    best: np.ndarray,
    seeds: int,
) -> dict[str, float]:
    """Mean and largest gap to the optimum [points], and seconds a budget."""
    found, seconds = [], 0.0
    with Terminal().bar("genetic", seeds * len(budgets_ms)) as bar:
        for seed in range(seeds):
            own = Problem(problem.space, problem.latency, problem.accuracy)
            start = time.process_time()
            method = make(own, seed)
            codes = []
            for budget_ms in budgets_ms:
                codes.append(method.winner(np.array([budget_ms])).code)
                bar.advance()
            seconds += time.process_time() - start
            found.append(100 * (best - own.evaluate(np.stack(codes)).score))
    points = np.concatenate(found)
    assert points.min() > -1e-6
    return {"mean": float(points.mean()), "worst": float(points.max()), "seconds": seconds / len(points)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", metavar="PRESET", default=PRESETS)
    parser.add_argument("--budgets", type=int, default=50)
    parser.add_argument("--genetic", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=140)
    rows = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for preset in options.presets:
        if preset not in (row["preset"] for row in rows):
            rows.append(measure(preset, options))
            console.print(rows[-1])
            if options.json:
                write_json(options.json, rows)
    searches = list(SEARCHES) if options.genetic else []
    columns = ["preset", "codes", "exact [s]", "optimal"]
    table = Table(*columns, *(f"{name}: mean, worst gap, s / budget" for name in searches))
    for row in rows:
        cells = [row["preset"], f"{row['codes']:.2e}", f"{row['seconds']:.1f}", f"{row['optimal']} of {row['budgets']}"]
        for name in searches:
            cells.append("{mean:.3f}, {worst:.2f}, {seconds:.2f}".format(**row[name]))
        table.add_row(*cells)
    console.print(table)


if __name__ == "__main__":
    main()
