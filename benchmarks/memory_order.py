"""Peak memory of activations by the order of nodes: files as they are exported, and in planned order; as the runtime counts it.

    python -m benchmarks.memory_order [--random 0] [--json FILE] [NAME …]

For the largest SubNet of each network of timm and random ones (proposed space, batch 1, one thread). "Exported" is the file
that `SuperNet.export` writes, run by onnxruntime with its defaults. "Planned" is the same file optimised, its nodes in planned
order, run in that order without memory reuse (`tailor_ir.memory.planned_file`). "Own order": the optimised file without memory
reuse, in the order that onnxruntime gave it, by the plan; what is left is what the order alone brings. Peaks are counted by an
allocator that is registered with the runtime (`tailor_ir.memory.runtime_memory`). Times: the least of several runs by turns.
"Searched": what a search with `export.planned_memory=true` predicts of the planned file, from the SuperNet alone; the bounds
between which it plans; and the time for one SubNet.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import onnx
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.memory import timm_supernet
from profiling_agents.messages import MIB
from tailor_ir import Config, SuperNet
from tailor_ir.memory.planned_file import plan_file, session_options
from tailor_ir.memory.runtime_memory import HERE, runtime
from tasks.export.counting import by_turns, running

NETWORKS = ("nasnetalarge", "pnasnet5large", "hrnet_w18_small", "inception_v3", "inception_v4")
Row = dict[str, float | int | str]


def measure(name: str, net: SuperNet, config: Config, subnet: str, folder: Path) -> Row:
    """One row. Weights are all equal; no size depends on them."""
    path = folder / "subnet.onnx"
    net.export(config, path, fold_batch_norm=True, weights=False)
    model = onnx.load(path)
    x_BCHW = np.random.default_rng(0).standard_normal(net.input_shape(config)).astype(np.float32)
    feeds = {model.graph.input[0].name: x_BCHW}
    start = time.perf_counter()
    plan = plan_file(model, feeds)
    seconds = time.perf_counter() - start
    content, planned = model.SerializeToString(), plan.model.SerializeToString()
    before, after = runtime().peaks(content, x_BCHW), runtime().peaks(planned, x_BCHW, as_it_stands=True)
    memory, code = net.activation_memory(replace(HERE, planned=True)), net.space.row(config)[None]
    (least,), (most,) = memory.bounds(code)
    start = time.perf_counter()
    (searched,) = memory.peak_bytes(code)
    searched_s = time.perf_counter() - start
    before_ms, after_ms = by_turns(
        running(content, session_options(optimised=False), feeds), running(planned, session_options(), feeds)
    )
    return {
        "network": name,
        "subnet": subnet,
        "nodes": len(plan.schedule.order),
        "exported_mib": before.asked / MIB,
        "own_order_mib": plan.given_bytes / MIB,
        "predicted_mib": plan.schedule.peak_bytes / MIB,
        "planned_mib": after.asked / MIB,
        "bound_mib": plan.schedule.bound_bytes / MIB,
        "error_percent": 100 * (plan.schedule.peak_bytes / after.asked - 1),
        "searched_mib": searched / MIB,
        "searched_error_percent": 100 * (searched / after.asked - 1),
        "searched_least_mib": least / MIB,
        "searched_most_mib": most / MIB,
        "searched_s": searched_s,
        "default_error_percent": 100 * (net.peak_activation_bytes(config, HERE) / before.asked - 1),
        "ratio": after.asked / before.asked,
        "arena_ratio": after.arena / before.arena,
        "block_mib": plan.placement.block_bytes / MIB,
        "runtime_block_mib": after.planned / MIB,
        "exported_ms": before_ms,
        "planned_ms": after_ms,
        "plan_s": seconds,
    }


def rows_of(name: str, random: int) -> list[Row]:
    """The largest SubNet and random ones."""
    net, rng = timm_supernet(name), np.random.default_rng(0)
    chosen = [("largest", net.max_config), *(("random", net.space.sample(rng)) for _ in range(random))]
    with tempfile.TemporaryDirectory() as folder:
        return [measure(name, net, config, subnet, Path(folder)) for subnet, config in chosen]


def show(rows: Iterable[Row]) -> None:
    rows = list(rows)
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console = Console(width=240)
    console.print(table)
    ratios = [float(row["ratio"]) for row in rows]
    console.print(f"planned / exported: geometric mean {geometric_mean(ratios):.3f}, highest {max(ratios):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NAME")
    parser.add_argument("--random", type=int, default=0, help="random SubNets of each")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for name in track(arguments.networks, "networks") for row in rows_of(name, arguments.random)]
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
