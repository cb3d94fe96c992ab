"""Levels of the engine on one network, as CrowdHMTware's Table IV: low rank, pruned, fused, on two cores, with planned memory.

    python -m benchmarks.engine_levels --work DIR [--rounds 15] [--json FILE] [--markdown] [OVERRIDE …]

A ResNet-18 learns ten characters of glyphs at 32 pixels, and its SuperNet of sizes and low-rank blocks, on one process. DIR
keeps it; a second run goes on from there. *Low rank*: all blocks by a quarter of the rank. *Pruned*: all widths and expansions
by the choice before the largest. *Fused*: BatchNorm folded, and all graph optimisations of onnxruntime; without it none.
*Operators side by side*: onnxruntime's parallel mode on two cores. *Threads*: two for each operator. *Planned memory*: nodes in
the order with the least peak, without memory reuse (`tailor_ir.memory.planned_file`).

Latency: all variants by turns in one process, the median over rounds of the p50 of a round. Memory: what a process of its own
has more at its peak than before the session; weights and activations. Accuracy: test images, BatchNorm recalibrated. Source:
CrowdHMTware, Table IV; theirs runs operators side by side on a CPU and a GPU.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

import tailor_ir
from benchmarks.alternatives_worth import OF_SIZES
from benchmarks.bars import Terminal
from benchmarks.tables import show
from benchmarks.trained import SMALL_GLYPHS, Trained, train
from profiling_agents.messages import MIB
from tailor_ir import Config, SuperNet
from tailor_ir.memory.planned_file import plan_file, session_options
from tasks.data import load_splits
from tasks.evaluation.subnets import EvaluationData, accuracies

COMMON = (
    *SMALL_GLYPHS,
    *OF_SIZES,
    "space.alternatives=[low_rank]",
    "model=timm",
    "model.name=resnet18",
    "base.epochs=6",
    "base.learning_rate=0.002",
    "finetune.processes=1",
    "finetune.learning_rate=0.002",
    "finetune.epochs=6",
    "finetune.strategy=[sandwich,branches,tune]",
    "finetune.ranges.subnets=0",
)
SUBNETS = ("original", "low rank", "pruned")
RANK = "low_rank_0.25"
SIZES = ("width_mult", "expand_ratio")
WARM_UP, RUNS = 20, 100
STATUS, PEAK, RESIDENT, RESET = Path("/proc/self/status"), "VmHWM", "VmRSS", "5"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Variant:
    """A SubNet, and the levels of the engine that run it. threads: for each operator; side_by_side: two operators at once."""

    name: str
    subnet: str
    fused: bool = False
    threads: int = 1
    side_by_side: bool = False
    planned: bool = False

    def options(self) -> onnxruntime.SessionOptions:
        """Those of onnxruntime."""
        options = session_options(optimised=self.planned)
        if not self.fused:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = self.threads
        if self.side_by_side:
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
            options.inter_op_num_threads = 2
        return options


VARIANTS = (
    Variant("original", "original"),
    Variant("low rank", "low rank"),
    Variant("pruned", "pruned"),
    Variant("operators side by side", "original", side_by_side=True),
    Variant("threads", "original", threads=2),
    Variant("fused", "original", fused=True),
    Variant("threads + low rank", "low rank", threads=2),
    Variant("threads + pruned", "pruned", threads=2),
    Variant("fused + pruned + planned memory", "pruned", fused=True, planned=True),
    Variant("threads + fused + pruned + planned memory", "pruned", fused=True, planned=True, threads=2),
)


def config_of(name: str, net: SuperNet) -> Config:
    """The config of one of `SUBNETS`."""
    chosen: Config = {}
    for one in net.space.variables:
        if name == "low rank" and one.kind == "block":
            chosen[one.name] = RANK
        if name == "pruned" and one.kind in SIZES:
            chosen[one.name] = one.choices[-2]
    return {**net.max_config, **chosen}


def written(variant: Variant, config: Config, net: SuperNet, folder: Path) -> Path:
    """The file that a variant runs."""
    path = folder / f"{variant.name}.onnx"
    net.export(config, path, fold_batch_norm=variant.fused)
    if variant.planned:
        model = onnx.load(path)
        onnx.save(plan_file(model, {model.graph.input[0].name: input_of(net, config)}).model, path)
    return path


def input_of(net: SuperNet, config: Config) -> np.ndarray:
    """Random values in the shape of a SubNet's input (1, C, H, W)."""
    x_BCHW: np.ndarray = np.random.default_rng(0).standard_normal(net.input_shape(config)).astype(np.float32)
    return x_BCHW


def running(variant: Variant, path: Path, x: np.ndarray) -> Callable[[], object]:
    """One run of a variant's file."""
    session = onnxruntime.InferenceSession(path, variant.options(), providers=["CPUExecutionProvider"])
    feeds = {session.get_inputs()[0].name: x}
    return lambda: session.run(None, feeds)


def latencies_ms(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Of each variant [ms]: the median over rounds, in which they take turns."""
    found: list[list[float]] = [[] for _ in runs]
    with Terminal().bar("rounds", rounds) as bar:
        for _ in range(rounds):
            for run, own in zip(runs, found, strict=True):
                own.append(_p50_ms(run))
            bar.advance()
    return [median(own) for own in found]


def _p50_ms(run: Callable[[], object]) -> float:
    for _ in range(WARM_UP):
        run()
    times_ms = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        times_ms.append((time.perf_counter() - start) * 1e3)
    return median(times_ms)


def memory_mib(variant: Variant, path: Path, x: np.ndarray) -> float:
    """What a process of its own has more at its peak than before the session."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_added_mib, (variant, path, x))


def _added_mib(variant: Variant, path: Path, x: np.ndarray) -> float:
    Path("/proc/self/clear_refs").write_text(RESET)
    before = _status_mib(RESIDENT)
    run = running(variant, path, x)
    for _ in range(WARM_UP):
        run()
    return _status_mib(PEAK) - before


def _status_mib(name: str) -> float:
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024 / MIB


def measure(options: argparse.Namespace) -> list[Row]:
    """A row of each variant."""
    trained = train([*COMMON, *options.overrides], options.work)
    net = tailor_ir.load(trained.supernet)
    configs = [config_of(name, net) for name in SUBNETS]
    found = accuracies(net, configs, images_of(trained), options.work / "accuracies.jsonl", Terminal())
    shares = dict(zip(SUBNETS, (one.share for one in found), strict=True))
    files, x = options.work / "files", input_of(net, net.max_config)
    files.mkdir(exist_ok=True)
    by_name = dict(zip(SUBNETS, configs, strict=True))
    paths = [written(variant, by_name[variant.subnet], net, files) for variant in VARIANTS]
    runs = [running(variant, path, x) for variant, path in zip(VARIANTS, paths, strict=True)]
    times_ms = latencies_ms(runs, options.rounds)
    return [
        {
            "variant": variant.name,
            "accuracy": shares[variant.subnet],
            "memory_mib": memory_mib(variant, path, x),
            "latency_ms": latency_ms,
            "ratio": latency_ms / times_ms[0],
        }
        for variant, path, latency_ms in zip(VARIANTS, paths, times_ms, strict=True)
    ]


def images_of(trained: Trained) -> EvaluationData:
    """Test images, and those of training for BatchNorm statistics."""
    splits = load_splits(trained.data)
    return EvaluationData(splits["test"], splits["train"], recalibration_images=trained.predict.recalibration_images)


def _show(rows: Sequence[Row], markdown: bool) -> None:
    heads = ("levels", "test accuracy", "memory, MiB", "latency, ms", "share of the original's")
    lines = [
        (
            str(row["variant"]),
            f"{row['accuracy']:.2%}",
            f"{row['memory_mib']:.1f}",
            f"{row['latency_ms']:.3f}",
            f"{row['ratio']:.2f}",
        )
        for row in rows
    ]
    show(heads, lines, markdown=markdown)


def command(
    description: str | None,
    measured: Callable[[argparse.Namespace], list[Row]],
    shown: Callable[[Sequence[Row], bool], None],
    parser: argparse.ArgumentParser | None = None,
) -> None:
    """The command line of a measurement with rows. parser: with further options."""
    parser = argparse.ArgumentParser() if parser is None else parser
    parser.description, parser.formatter_class = description, argparse.RawDescriptionHelpFormatter
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    parser.add_argument("--work", type=Path, metavar="DIR", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measured(options)
    shown(rows, options.markdown)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    command(__doc__, measure, _show)
