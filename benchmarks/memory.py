"""Peak memory of activations as predicted, against what ONNX Runtime asks its allocator for.

    python -m benchmarks.memory [--random 8] [--sessions 1] [--timm NAME …] [--json FILE] [PRESET …]

For each preset the largest, the smallest and random SubNets, exported as for a device, batch 1, run once by onnxruntime with
all optimisations, one thread. The truth is counted by the runtime itself: an allocator that is registered with it sees
every request (`tailor_ir.memory.runtime_memory`). The same for what the runtime's own arena has in use at most, by its own
statistics, whose chunks may be up to twice what was asked for. Beside it, not predicted: what is planned as one block for
later runs. --timm: networks by name with the proposed space instead, which no rule was made for. --sessions: of one file; the
runtime takes some tensors out of blocks in an order that differs from session to session. Errors are to the median.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
import timm
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import tailor_ir
from benchmarks.elastic import PRESETS
from benchmarks.enumeration import supernet_of
from profiling_agents.messages import MIB
from tasks.prediction.resources import MemoryPredictor
from tests.support.ir.runtime_memory import HERE, subnet_peaks

POPULATION = 4096
CLASSES = 10
Row = dict[str, float | int | str]


def timm_supernet(name: str) -> tailor_ir.SuperNet:
    """A network of timm with the proposed space, from random weights."""
    model = timm.create_model(name, num_classes=CLASSES).eval()
    known: Any = model.default_cfg
    return tailor_ir.compile(model, torch.zeros(1, *known.get("input_size", (3, 224, 224))))


def measure(name: str, net: tailor_ir.SuperNet, random: int, sessions: int) -> list[Row]:
    """A row for each SubNet."""
    rng = np.random.default_rng(0)
    configs = [net.max_config, net.min_config, *(net.space.sample(rng) for _ in range(random))]
    predictor = MemoryPredictor.compile(net, HERE)
    population = net.space.random_codes(POPULATION, rng)
    start = time.perf_counter()
    predictor.peak_bytes(population)
    per_second = POPULATION / (time.perf_counter() - start)
    codes = net.space.encode(configs)
    predicted = predictor.peak_bytes(codes).tolist()
    arena = [predictor.arena_mib(code) for code in codes]
    with tempfile.TemporaryDirectory() as folder:
        measured = list(zip(*(subnet_peaks(net, configs, Path(folder)) for _ in range(sessions)), strict=True))
    asked = [[peaks.asked for peaks in each] for each in measured]
    in_arena = [median_low(peaks.arena for peaks in each) for each in measured]
    return [
        {
            "network": name,
            "subnet": ("largest", "smallest")[index] if index < 2 else "random",
            "parameters_mib": net.parameters(config) * 4 / MIB,
            "predicted_mib": bytes_ / MIB,
            "asked_mib": median_low(asked[index]) / MIB,
            "lowest_mib": min(asked[index]) / MIB,
            "highest_mib": max(asked[index]) / MIB,
            "error_percent": 100 * (bytes_ / median_low(asked[index]) - 1),
            "predicted_arena_mib": arena_mib,
            "arena_mib": in_arena[index] / MIB,
            "arena_error_percent": 100 * (arena_mib * MIB / in_arena[index] - 1),
            "planned_mib": measured[index][0].planned / MIB,
            "subnets_per_s": round(per_second),
        }
        for index, (config, bytes_, arena_mib) in enumerate(zip(configs, predicted, arena, strict=True))
    ]


def show(rows: Iterable[Row]) -> None:
    rows = list(rows)
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("presets", nargs="*", choices=(*PRESETS, []), metavar="PRESET")
    parser.add_argument("--random", type=int, default=8, help="random SubNets of each")
    parser.add_argument("--sessions", type=int, default=1, help="of the file of each SubNet")
    parser.add_argument("--timm", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = arguments.timm or arguments.presets or PRESETS
    make = timm_supernet if arguments.timm else supernet_of
    rows = [
        row
        for name in track(names, "networks")
        for row in measure(name, make(name), arguments.random, arguments.sessions)
    ]
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
