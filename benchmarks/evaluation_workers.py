"""Evaluation on worker processes against one, and ten times the SubNets against once.

    python -m benchmarks.evaluation_workers [--network resnet18@32] [--subnets 48] [--images 256] [--calibration 256]
                                            [--workers 1 2 4] [--json FILE]

Random weights, digits; random SubNets, and ten times as many others. Each number of processes of this machine (one thread
each, `evaluate.workers=N`) evaluates both sets. Before that every process has evaluated the largest SubNet, so that SuperNet
and images are loaded; that time is told apart ("ready"). Accuracies and losses have to be those of this process, evaluated with
one thread, to the last digit, or the script fails.

Processor time is that of the worker processes. That of the busiest one is what the evaluation takes where each process has a
core of its own. Other programs change it less than they change the time that passes.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table

import tailor_ir
from benchmarks.supernets import supernet_of
from flows.config import EvaluateSettings
from flows.pipeline.workers.cluster import DaskWorkers
from flows.pipeline.workers.process import evaluate
from tailor_ir import Config, SuperNet
from tasks.base.progress import Silent
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import (
    Accuracy,
    EvaluationData,
    EvaluationResources,
    EvaluationWorkers,
    accuracies,
    evaluate_together,
    pieces_of,
)

MORE = 10
"""The larger set has so many times the SubNets."""
Row = dict[str, Any]
Rows = list[Row]
Found = list[list[Accuracy]]


def sets_of(net: SuperNet, count: int) -> list[list[Config]]:
    """`count` random SubNets, and `MORE` times as many others."""
    rng = np.random.default_rng(0)
    known = {net.space.digest(net.max_config)}
    found: list[Config] = []
    while len(found) < (1 + MORE) * count:
        config = net.space.sample(rng)
        if (digest := net.space.digest(config)) not in known:
            known.add(digest)
            found.append(config)
    return [found[:count], found[count:]]


def images(net: SuperNet, options: argparse.Namespace, workers: EvaluationWorkers | None = None) -> EvaluationData:
    """Digits at the network's resolution."""
    splits = load_splits(DataSettings(kind="digits", resolution=net.input_shape(net.max_config)[-1]))
    return EvaluationData(
        splits["validation"],
        splits["train"],
        limit=options.images,
        recalibration_images=options.calibration,
        resources=EvaluationResources(workers=workers),
    )


def alone(net: SuperNet, sets: Sequence[Sequence[Config]], data: EvaluationData) -> tuple[Found, Rows]:
    """Accuracies of each set in this process, group by group, one thread; and a row for each."""
    evaluate_together(net, [net.max_config], data)
    every, rows = Found(), Rows()
    for configs in sets:
        by_digest = {net.space.digest(config): config for config in configs}
        found: dict[str, Accuracy] = {}
        before_s, started = time.process_time(), time.perf_counter()
        for piece in pieces_of(net, by_digest, data, 1):
            found |= zip(piece, evaluate_together(net, [by_digest[digest] for digest in piece], data), strict=True)
        rows.append(row_of("one thread here", configs, time.perf_counter() - started, [time.process_time() - before_s]))
        every.append([found[digest] for digest in by_digest])
    return every, rows


def threaded(net: SuperNet, sets: Sequence[Sequence[Config]], wanted: Found, data: EvaluationData) -> Rows:
    """A row for each set, evaluated as a run without workers does: a thread for each core."""
    rows = Rows()
    with tempfile.TemporaryDirectory() as folder:
        for number, (configs, known) in enumerate(zip(sets, wanted, strict=True)):
            before_s, started = time.process_time(), time.perf_counter()
            assert accuracies(net, configs, data, Path(folder) / f"{number}.jsonl", Silent()) == known, "they differ"
            used_s = time.process_time() - before_s
            rows.append(row_of("threads here", configs, time.perf_counter() - started, [used_s]))
    return rows


def row_of(where: str, configs: Sequence[Config], seconds: float, used_s: Sequence[float], ready_s: float = 0.0) -> Row:
    """used_s: processor time of each process."""
    return {
        "where": where,
        "subnets": len(configs),
        "ready_s": ready_s,
        "seconds": seconds,
        "processor_s": sum(used_s),
        "busiest_s": max(used_s),
        "load_average": os.getloadavg()[0],
    }


def processor_s(processes: Sequence[psutil.Process]) -> list[float]:
    """User and system time of each process so far."""
    return [used.user + used.system for used in (process.cpu_times() for process in processes)]


def warmed(workers: DaskWorkers, net: SuperNet, data: EvaluationData) -> list[psutil.Process]:
    """The worker processes, after each has evaluated the largest SubNet."""
    client, largest = workers.connect(), {net.space.digest(net.max_config): net.max_config}
    (task,) = workers.tasks(net, largest, data, 1)
    client.run(evaluate, task)
    return [psutil.Process(pid) for pid in client.run(os.getpid).values()]


def measure(
    count: int, net: SuperNet, sets: Sequence[Sequence[Config]], wanted: Found, options: argparse.Namespace
) -> Rows:
    """A row for each set, on so many processes."""
    rows = Rows()
    started = time.perf_counter()
    with DaskWorkers(EvaluateSettings(workers=str(count))) as workers, tempfile.TemporaryDirectory() as folder:
        data = images(net, options, workers)
        processes = warmed(workers, net, data)
        ready_s = time.perf_counter() - started
        for number, (configs, known) in enumerate(zip(sets, wanted, strict=True)):
            before_s, started = processor_s(processes), time.perf_counter()
            found = accuracies(net, configs, data, Path(folder) / f"{number}.jsonl", Silent())
            seconds = time.perf_counter() - started
            used_s = [after - before for after, before in zip(processor_s(processes), before_s, strict=True)]
            assert found == known, "accuracies differ"
            rows.append(row_of(f"workers={count}", configs, seconds, used_s, ready_s))
    return rows


def shown(rows: Rows) -> Table:
    """A line for each number of workers and SubNets, and its ratios."""
    table = Table(
        "where", "SubNets", "ready [s]", "time [s]", "processor [s]", "ms a SubNet", "busiest [s]", "to one worker"
    )
    one = {row["subnets"]: row for row in rows if row["where"] == "workers=1"}
    for row in rows:
        first = one[row["subnets"]]
        ratios = f"{first['seconds'] / row['seconds']:.2f}, busiest {first['busiest_s'] / row['busiest_s']:.2f}"
        table.add_row(
            row["where"],
            str(row["subnets"]),
            f"{row['ready_s']:.1f}",
            f"{row['seconds']:.1f}",
            f"{row['processor_s']:.1f}",
            f"{1000 * row['processor_s'] / row['subnets']:.1f}",
            f"{row['busiest_s']:.1f}",
            ratios,
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18@32")
    parser.add_argument("--subnets", type=int, default=48, help="of the smaller set")
    parser.add_argument("--images", type=int, default=256, help="images that each SubNet is evaluated on")
    parser.add_argument("--calibration", type=int, default=256, help="images that its BatchNorm statistics come from")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="1, and others")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        supernet_of(options.network).save(Path(folder) / "supernet")
        net = tailor_ir.load(Path(folder) / "supernet")
        sets, data = sets_of(net, options.subnets), images(net, options)
        wanted, rows = alone(net, sets, data)
        rows += threaded(net, sets, wanted, images(net, options))
        for count in options.workers:
            rows += measure(count, net, sets, wanted, options)
    Console(width=120).print(shown(rows))
    for few, many in zip(rows[::2], rows[1::2], strict=True):
        ratio = (
            f"{many['seconds'] / few['seconds']:.2f}, of processor time {many['processor_s'] / few['processor_s']:.2f}"
        )
        Console().print(f"{few['where']}, {MORE} times the SubNets: time {ratio}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
