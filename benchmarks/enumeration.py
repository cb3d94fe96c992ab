"""Every unique operator of presets: how many, how long it takes to list them, and whether any is missing.

    python -m benchmarks.enumeration [--subnets 5000] [--json FILE] [PRESET …]

Without names, the seven presets of AutoTailor's Table 3 and AdaptiveNet's ResNet101 with the sizes of ResNet50's preset;
PRESET+OTHER is a preset with the space of another one added to its own. Times are from the compiled SuperNet to the
complete set, each operator with a config that has it, on one core, nothing kept from before. Operators of random SubNets
are read from each SubNet's own sizes, not from the listed set. Repeated are the operators of 1,000 random SubNets that an
earlier one of these SubNets, or an earlier layer, had already.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import tailor_ir
from benchmarks.elastic import PRESETS, config_of
from tailor_ir import Choice
from tailor_ir.operators.table import OperatorTable
from tasks.data.samples import image_form
from tasks.evaluation.models import create

CLASSES = 10
RUNS = 5
WITH_SIZES = "adaptivenet_resnet101+resnet50"
REPETITION_SUBNETS = 1000


def supernet_of(preset: str) -> tailor_ir.SuperNet:
    """The SuperNet of a preset, from random weights."""
    config = config_of(preset)
    channels, side = config.data.channels, config.data.resolution
    network = create(config.model, CLASSES, image_form(channels, side))
    assert isinstance(network, torch.nn.Module)
    return tailor_ir.compile(network.eval(), torch.zeros(1, channels, side, side), config.space)


def random_configs(net: tailor_ir.SuperNet, count: int, rng: np.random.Generator) -> Iterator[dict[str, Choice]]:
    """Configs of random SubNets, each variable uniform over its choices."""
    variables = net.space.variables
    for row in net.space.random_codes(count, rng).tolist():
        yield {v.name: v.choices[choice] for v, choice in zip(variables, row, strict=True)}


def measure(preset: str, subnets: int) -> dict[str, float | int | str]:
    """One row of the table."""
    net = supernet_of(preset)
    times_s = []
    for _ in range(RUNS):
        start = time.perf_counter()
        unique = OperatorTable(net.structure, net.constants()).unique()
        times_s.append(time.perf_counter() - start)
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    outside = sum(f not in unique for config in random_configs(net, subnets, rng) for f in net.operators(config))
    subnet_ms = (time.perf_counter() - start) / subnets * 1e3
    seen = [f for config in random_configs(net, REPETITION_SUBNETS, rng) for f in net.operators(config)]
    return {
        "preset": preset,
        "unique_operators": len(unique),
        "enumerate_s": median(times_s),
        "enumerate_best_s": min(times_s),
        "subnets": subnets,
        "outside": outside,
        "operators_of_a_subnet_ms": subnet_ms,
        "repeated_percent": 100 * (1 - len(set(seen)) / len(seen)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("presets", nargs="*", metavar="PRESET", default=(*PRESETS, WITH_SIZES))
    parser.add_argument("--subnets", type=int, default=5000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(preset, arguments.subnets) for preset in track(arguments.presets, "presets")]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=160).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
