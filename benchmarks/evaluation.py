"""Evaluation of many SubNets: together, sharing what they have in common, against one by one.

    python -m benchmarks.evaluation [--preset resnet50] [--images 32] [--calibration 32] [--batch 16]
                                    [--candidates 200] [--features-mib 1024] [--cores 1] [--json FILE] [SET …]

Sets of SubNets: "sweep", all modifications of the space, one variable at a time, which is what the accuracy predictor is
made from; "resolution left out", those of them at full resolution; "genetic", the best different SubNets within the budget of
all that a genetic search scores (as configured, a budget in the middle), with multiply-accumulates as time and random
sensitivities; "asked last", the last ones that it scores, within the budget or not.

Random weights, digits at the preset's resolution. Both ways take BatchNorm statistics from the same images and evaluate on
the same; they have to give the same accuracies and losses, or the script fails. On several cores both use one thread a
core: one by one on copies of the SuperNet, together on one. Memory: the process's resident pages above those at the start,
sampled; and what is kept for SubNets that come later, largest of all groups, which the limit is for.
"""

import argparse
import copy
import gc
import json
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.elastic import compiled
from profiling_agents.messages import MIB
from solvers.tables import Codes
from tailor_ir import Config
from tailor_ir.subnets.prefixes import Prefixes, groups
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import MOST_TOGETHER, Accuracy, EvaluationData, EvaluationResources, accuracies, accuracy
from tasks.prediction.accuracy import AccuracyPredictor, MeasuredAccuracy, Sensitivities, Sensitivity, modifications
from tasks.prediction.sums import mac_sums
from tasks.search import Settings
from tasks.search.feasibility import beam_descent, fastest
from tasks.search.genetic import search
from tasks.search.problem import Problem, row_keys

SETS = ("sweep", "resolution left out", "genetic", "asked last")


class Resident:
    """The largest number of resident bytes of this process above those at the start."""

    def __enter__(self) -> Self:
        gc.collect()
        self._process = psutil.Process()
        self._start = self._process.memory_info().rss
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._over.wait(0.02):
            self.bytes = max(self.bytes, self._process.memory_info().rss - self._start)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Watched:
    """An accuracy model that remembers which SubNets it was asked for, in order."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.asked: dict[bytes, Codes] = {}

    def predict(self, codes: Codes) -> NDArray[np.float64]:
        return self._model.predict(codes)

    def score(self, codes: Codes) -> NDArray[np.float64]:
        self.asked.update(zip(row_keys(codes), codes, strict=True))
        return self._model.score(codes)


def random_sensitivities(net: tailor_ir.SuperNet, rng: np.random.Generator) -> AccuracyPredictor:
    """Each smaller choice costs something, at random."""
    largest = MeasuredAccuracy(accuracy=0.75, loss=1.0)
    rows = []
    for variable in net.space.variables:
        lost = np.cumsum(rng.uniform(0, 0.02, len(variable.choices)))[::-1] / 2
        lost -= lost[-1]
        measured = tuple(MeasuredAccuracy(accuracy=0.75 - float(x), loss=1.0 + 4 * float(x)) for x in lost)
        rows.append(Sensitivity(variable=variable.name, choices=variable.choices, measured=measured))
    return AccuracyPredictor(Sensitivities(samples=10_000, largest=largest, variables=tuple(rows)))


def genetic_candidates(net: tailor_ir.SuperNet, count: int, *, last: bool) -> list[Config]:
    """The best different SubNets that a genetic search has scored, or the last ones before it stopped."""
    rng = np.random.default_rng(0)
    watched, settings = Watched(random_sensitivities(net, rng)), Settings()
    problem = Problem(net.space, mac_sums(net), watched)
    quickest = fastest(problem, rng)
    starts = beam_descent(problem, settings.beam_width).codes
    ends = problem.evaluate(np.stack([quickest, problem.largest])).latency_ms
    budget = float(np.sqrt(ends[0] * ends[1]))
    search(problem, budget, starts, quickest, settings, rng)
    asked = np.stack([*watched.asked.values()])
    if last:
        return [net.space.decode(code) for code in asked[-count:]]
    scores = problem.evaluate(asked)
    order = np.argsort(np.where(scores.within(budget), -scores.score, np.inf), kind="stable")
    return [net.space.decode(code) for code in asked[order[:count]]]


def candidates(net: tailor_ir.SuperNet, name: str, count: int) -> list[Config]:
    """The SubNets of a set."""
    if name in ("genetic", "asked last"):
        return genetic_candidates(net, count, last=name == "asked last")
    every = modifications(net.space)
    full = net.input_shape(net.max_config)
    return [config for config in every if name == "sweep" or net.input_shape(config) == full]


def one_by_one(net: tailor_ir.SuperNet, configs: Sequence[Config], data: EvaluationData, cores: int) -> list[Accuracy]:
    """Each SubNet by itself, one thread each."""
    idle: SimpleQueue[Any] = SimpleQueue()
    for number in range(cores):
        idle.put(net if not number else copy.deepcopy(net))

    def evaluate(config: Config) -> Accuracy:
        own = idle.get()
        try:
            return accuracy(own, config, data)
        finally:
            idle.put(own)

    with ThreadPoolExecutor(cores) as pool, Terminal().bar("one by one", len(configs)) as bar:
        found = []
        for each in pool.map(evaluate, configs):
            found.append(each)
            bar.advance()
        return found


def kept_bytes(net: tailor_ir.SuperNet, configs: Sequence[Config], data: EvaluationData, kept_mib: float) -> int:
    """The largest number of bytes kept in any group, on the first batch."""
    peaks = [0]
    for group in groups(net.elastic, configs, MOST_TOGETHER):
        together = Prefixes(net.elastic, [configs[position] for position in group], kept_mib)
        height, width = net.input_shape(configs[group[0]])[-2:]
        for _ in together(next(iter(data.batches((height, width))))[0]):
            pass
        peaks.append(together.peak_bytes)
    return max(peaks)


def measure(
    net: tailor_ir.SuperNet, name: str, configs: Sequence[Config], options: argparse.Namespace
) -> dict[str, Any]:
    """One row of the table."""
    splits = load_splits(DataSettings(resolution=net.input_shape(net.max_config)[-1]))

    def images() -> EvaluationData:
        return EvaluationData(
            splits["validation"],
            splits["train"],
            recalibration_images=options.calibration,
            batch_size=options.batch,
            limit=options.images,
            resources=EvaluationResources(features_mib=options.features_mib),
        )

    accuracy(net, configs[0], images())  # what is made at first use is there
    with Resident() as alone_memory:
        start = time.perf_counter()
        alone = one_by_one(net, configs, images(), options.cores)
        alone_s = time.perf_counter() - start
    with Resident() as memory, tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        together = accuracies(net, configs, images(), Path(folder) / "evaluated.jsonl", Terminal(), "together")
        together_s = time.perf_counter() - start
    assert together == alone, "accuracies differ"
    kept = kept_bytes(net, configs, images(), options.features_mib / options.cores)
    assert kept <= options.features_mib / options.cores * MIB
    return {
        "set": name,
        "subnets": len(configs),
        "different_losses": len({found.loss for found in alone}),
        "one_by_one_s": alone_s,
        "together_s": together_s,
        "ratio": alone_s / together_s,
        "saved": 1 - together_s / alone_s,
        "one_by_one_mib": alone_memory.bytes / MIB,
        "together_mib": memory.bytes / MIB,
        "kept_mib": kept / MIB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", default=SETS, choices=(*SETS, []))
    parser.add_argument("--preset", default="resnet50")
    parser.add_argument("--images", type=int, default=32, help="images that each SubNet is evaluated on")
    parser.add_argument("--calibration", type=int, default=32, help="images that its BatchNorm statistics come from")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--candidates", type=int, default=200, help="SubNets of the genetic search")
    parser.add_argument("--features-mib", type=float, default=1024.0, help="limit of what is kept, for all cores")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    net = compiled(options.preset)
    rows = []
    for name in options.sets:
        rows.append(measure(net, name, candidates(net, name, options.candidates), options))
        Console().print(rows[-1])
    table = Table("set", "SubNets", "one by one [s]", "together [s]", "ratio", "saved", "memory [MiB]", "kept [MiB]")
    for row in rows:
        table.add_row(
            row["set"],
            str(row["subnets"]),
            f"{row['one_by_one_s']:.1f}",
            f"{row['together_s']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['saved']:.1%}",
            f"{row['one_by_one_mib']:.0f} / {row['together_mib']:.0f}",
            f"{row['kept_mib']:.0f}",
        )
    Console(width=120).print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
