"""The exact search over the complete space of each preset, and how far the genetic search stays behind it.

    python -m benchmarks.search [--budgets 50] [--genetic SEEDS | --constraints] [--json FILE] [PRESET …]

Without names, the seven presets of AutoTailor's Table 3 and AdaptiveNet's ResNet101 with the sizes of ResNet50's preset
(PRESET+OTHER: the space of another one added). Latencies of operators are random positive numbers around their MACs
(a factor of e to the power of a normal number, and an overhead); sensitivities fall with the MACs that a modification saves,
by random factors, and are those of a validation split of 10,000 images. Budgets: at equal ratios from the fastest SubNet to
the best one. Seconds are of processor time, one thread: those of all budgets, from the compiled predictors on; then those of
the whole front, and how many SubNets it lists. --genetic: the same budgets by the genetic search with its default settings,
with so many seeds, with and without its beam, and by NSGA-II; the gap is in points of predicted accuracy. --constraints:
instead, several costs at once, each half way between that of the fastest and that of the best SubNet (geometric mean):
parameters and MACs; memory; energy; the latency of a second such device, whose budgets rise with the first one's. --json:
presets that the file has are not measured again, so that a run that was ended goes on.
"""

import argparse
import json
import re
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
from benchmarks.enumeration import WITH_SIZES
from tailor_ir import SuperNet
from tailor_ir.memory import ONNXRUNTIME
from tasks.base.artifacts import write_json
from tasks.evaluation.subnets import Accuracy
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.resources import EnergyPredictor, EnergySettings, MemoryPredictor
from tasks.prediction.sums import Sums, mac_sums, parameter_sums
from tasks.search.methods import Exact, Genetic, Method
from tasks.search.nsga2 import Nsga2
from tasks.search.problem import CostModel, Problem, Values, chain_of, cost_tables
from tasks.search.settings import Settings
from tasks.search.stage import method_of

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
    start = time.process_time()
    method = Exact(problem, chain_of(net.space, accuracy, cost_tables(latency)), Settings())
    ends = problem.evaluate(np.stack([method.quickest(), method.best()]))
    quickest_ms, best_ms = ends.latency_ms.tolist()
    budgets_ms = np.geomspace(quickest_ms, best_ms, options.budgets).tolist()
    winners = [method.winner(np.array([budget_ms])) for budget_ms in budgets_ms]
    seconds = time.process_time() - start
    start = time.process_time()
    whole = method.whole_front(Terminal(), preset)
    whole_seconds = time.process_time() - start
    scores = problem.evaluate(np.stack([winner.code for winner in winners]))
    assert (scores.latency_ms <= np.array(budgets_ms) * (1 + 1e-9)).all()
    row: dict[str, Any] = {
        "preset": preset,
        "codes": float(net.space.codes),
        "seconds": seconds,
        "optimal": sum(winner.stopped == "optimal" for winner in winners),
        "budgets": len(winners),
        "front": len(whole.cost),
        "front_error": whole.error,
        "front_seconds": whole_seconds,
    }
    for name, make in SEARCHES.items() if options.genetic else ():
        row[name] = gaps(problem, make, budgets_ms, scores.score, options.genetic)
    return row


def constrained(preset: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row of the table of several constraints."""
    net = compiled(preset)
    latency, accuracy = predictors(net, 0)
    other, _ = predictors(net, 1)
    cases: dict[str, tuple[CostModel, ...]] = {
        "parameters, MACs": (parameter_sums(net), mac_sums(net)),
        "memory": (MemoryPredictor.compile(net, ONNXRUNTIME),),
        "energy": (EnergyPredictor.compile(net, EnergySettings()),),
        "two devices": (other,),
    }
    row: dict[str, Any] = {"preset": preset}
    for name, others in cases.items():
        problem = Problem(net.space, latency, accuracy, others, timed=1 + (name == "two devices"))
        method = method_of(problem, net.space, Settings(method="exact"))
        fastest, best = problem.evaluate(np.stack([method.quickest(), method.best()])).costs
        ladder = np.geomspace(np.maximum(fastest, 1e-12), best, options.budgets)
        if name != "two devices":
            ladder[:, 1:] = np.sqrt(fastest * best)[1:]
        row[name] = solved(problem, method, ladder)
    return row


def solved(problem: Problem, method: Method, ladder: Values) -> dict[str, Any]:
    """Seconds of each budget; how many have a SubNet, and of these a proven optimum; the largest stated gap [points]."""
    seconds, stopped = [], []
    with Terminal().bar("constraints", len(ladder)) as bar:
        for budgets in ladder:
            start = time.process_time()
            winner = (
                method.winner(budgets) if problem.evaluate(method.quickest(budgets)[None]).within(budgets)[0] else None
            )
            seconds.append(time.process_time() - start)
            if winner is not None:
                assert problem.evaluate(winner.code[None]).within(budgets * (1 + 1e-9))[0]
                stopped.append(winner.stopped)
            bar.advance()
    gaps = [float(found[1]) for one in stopped if (found := re.search(r"within (\S+) points", one))]
    return {
        "seconds": seconds,
        "feasible": len(stopped),
        "optimal": len(stopped) - len(gaps),
        "largest_gap": max(gaps, default=0.0),
    }


def gaps(
    problem: Problem, make: Callable[[Problem, int], Method], budgets_ms: list[float], best: np.ndarray, seeds: int
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
    parser.add_argument("presets", nargs="*", metavar="PRESET", default=(*PRESETS, WITH_SIZES))
    parser.add_argument("--budgets", type=int, default=50)
    parser.add_argument("--genetic", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--constraints", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=140)
    rows = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for preset in options.presets:
        if preset not in (row["preset"] for row in rows):
            rows.append((constrained if options.constraints else measure)(preset, options))
            console.print(rows[-1])
            if options.json:
                write_json(options.json, rows)
    console.print(constraints_table(rows) if options.constraints else budgets_table(rows))


def budgets_table(rows: list[dict[str, Any]]) -> Table:
    """One cost: the exact search, the whole front, and the genetic search's gaps where they were measured."""
    searches = [name for name in SEARCHES if all(name in row for row in rows)]
    columns = ["preset", "codes", "exact [s]", "optimal", "whole front [s]", "SubNets"]
    table = Table(*columns, *(f"{name}: mean, worst gap, s / budget" for name in searches))
    for row in rows:
        cells = [row["preset"], f"{row['codes']:.2e}", f"{row['seconds']:.1f}", f"{row['optimal']} of {row['budgets']}"]
        cells += [f"{row['front_seconds']:.1f}", f"{row['front']}"]
        for name in searches:
            cells.append("{mean:.3f}, {worst:.2f}, {seconds:.2f}".format(**row[name]))
        table.add_row(*cells)
    return table


def constraints_table(rows: list[dict[str, Any]]) -> Table:
    """Of each case: seconds a budget, the most of one, budgets proven optimal of those that a SubNet keeps, the largest gap."""
    cases = [name for name in rows[0] if name != "preset"] if rows else []
    table = Table("preset", *(f"{name}: s, most, optimal, gap" for name in cases))
    for row in rows:
        cells = [row["preset"]]
        for name in cases:
            found = row[name]
            seconds = found["seconds"]
            cells.append(
                f"{sum(seconds) / len(seconds):.2f}, {max(seconds):.1f}, {found['optimal']} of {found['feasible']}, "
                f"{found['largest_gap']:.2g}"
            )
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    main()
