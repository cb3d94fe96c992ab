"""The best SubNet within 75, 50 and 25 % of the memory, as CrowdHMTware's Table II.

    python -m benchmarks.memory_budgets --work DIR [--shares 1 0.75 0.5 0.25] [--rounds 15] [--json FILE] [--markdown]
        [OVERRIDE …]

The network, its SuperNet and DIR are those of `benchmarks.engine_levels`. For each share of the largest SubNet's predicted
memory (parameters and the peak of activations) `autotailor search search.limits.memory_mib=…` searches exactly over the
complete space, with latencies of onnxruntime on one thread; its most accurate winner counts. Files are fused and in planned
order.

Latency, memory and accuracy are measured as by `benchmarks.engine_levels`. Source: CrowdHMTware, Table II, which limits the
memory of a process and offloads, too.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.engine_levels import (
    COMMON,
    Variant,
    command,
    images_of,
    input_of,
    latencies_ms,
    memory_mib,
    running,
    written,
)
from benchmarks.tables import show
from benchmarks.trained import train, worked
from tailor_ir import Config
from tasks.evaluation.subnets import accuracies
from tasks.prediction.resources import MemoryPredictor

SHARES = (1.0, 0.75, 0.5, 0.25)
SEARCH = ("device=[onnxruntime]", "search=exact")
Row = dict[str, Any]


def within(limit_mib: float, options: argparse.Namespace) -> Config:
    """The most accurate winner that takes at most so much, as predicted."""
    words = [*COMMON, *SEARCH, f"search.limits.memory_mib={limit_mib:.3f}", *options.overrides]
    winners = worked("search", words, options.work)["result"]["winners"]
    best: Config = max(winners, key=lambda one: float(one["predicted_accuracy"]))["config"]
    return best


def measure(options: argparse.Namespace) -> list[Row]:
    """A row of each share."""
    trained = train([*COMMON, *options.overrides], options.work)
    net = tailor_ir.load(trained.supernet)
    predicted = MemoryPredictor.compile(net)
    (whole_mib,) = predicted.predict(net.space.encode([net.max_config]))
    configs = [within(share * whole_mib, options) for share in options.shares]
    variants = [Variant(f"{share:.0%}", "", fused=True, planned=True) for share in options.shares]
    files = options.work / "budgets"
    files.mkdir(exist_ok=True)
    paths = [written(one, config, net, files) for one, config in zip(variants, configs, strict=True)]
    inputs = [input_of(net, config) for config in configs]
    runs = [running(*each) for each in zip(variants, paths, inputs, strict=True)]
    measured = zip(
        options.shares,
        accuracies(net, configs, images_of(trained), options.work / "accuracies.jsonl", Terminal()),
        predicted.predict(net.space.encode(configs)),
        (memory_mib(*each) for each in zip(variants, paths, inputs, strict=True)),
        latencies_ms(runs, options.rounds),
        strict=True,
    )
    return [
        {
            "share": share,
            "accuracy": accuracy.share,
            "limit_mib": share * whole_mib,
            "predicted_mib": float(predicted_mib),
            "memory_mib": taken_mib,
            "latency_ms": latency_ms,
        }
        for share, accuracy, predicted_mib, taken_mib, latency_ms in measured
    ]


def _show(rows: Sequence[Row], markdown: bool) -> None:
    heads = (
        "budget",
        "limit, MiB",
        "predicted, MiB",
        "measured, MiB",
        "latency, ms",
        "share of the first",
        "test accuracy",
    )
    lines = [
        (
            f"{row['share']:.0%}",
            f"{row['limit_mib']:.1f}",
            f"{row['predicted_mib']:.1f}",
            f"{row['memory_mib']:.1f}",
            f"{row['latency_ms']:.3f}",
            f"{row['latency_ms'] / rows[0]['latency_ms']:.2f}",
            f"{row['accuracy']:.2%}",
        )
        for row in rows
    ]
    show(heads, lines, markdown=markdown)


if __name__ == "__main__":
    further = argparse.ArgumentParser()
    further.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the largest SubNet's memory")
    command(__doc__, measure, _show, further)
