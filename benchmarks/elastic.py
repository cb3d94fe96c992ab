"""What sharing weights costs: the elastic network against the same SubNet built on its own, and the time to activate one.

    python -m benchmarks.elastic [--subnets 8] [--activations 50] [--gradients] [--json FILE] [PRESET …]

Without names, the seven presets of AutoTailor's Table 3, with random weights. Forward passes: eval mode, one thread,
batch 32, at the legal resolution nearest to 128; elastic and built in turn, the order changing from pair to pair, after one
call of each. The ratio of a SubNet is the median over its pairs, that of a preset the geometric mean over random SubNets.
Without gradients the elastic network cuts its weights in the first call; with --gradients it cuts them in each. Activation:
random SubNets that the network has not run before, median and worst; each the best of five networks that are equal, since
what takes longer on one of them alone is the machine's doing. "again": the same SubNets once more.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import tailor_ir
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tailor_ir import Config
from tasks.data.samples import image_form
from tasks.evaluation.models import create

PRESETS = ("resnet50", "mobilenetv2", "mobilenetv3", "proxylessnet", "convnext_tiny", "vit_base", "levit")
CLASSES = 10
BATCH, RESOLUTION = 32, 128
PAIRS = 5
COPIES = 5


def config_of(preset: str) -> RunConfig:
    """The config of a preset. PRESET+OTHER is the first with the other's space added to its own."""
    config, *others = (validate(RunConfig, compose_config("config", [f"+preset={one}"])) for one in preset.split("+"))
    for other in others:
        config = config.model_copy(update={"space": {**(config.space or {}), **(other.space or {})}})
    return config


def compiled(preset: str, classes: int = CLASSES) -> tailor_ir.SuperNet:
    """The SuperNet of a preset, or of two (`config_of`), from random weights."""
    config = config_of(preset)
    torch.manual_seed(0)
    network = create(config.model, classes, image_form(config.data.channels, config.data.resolution))
    assert isinstance(network, torch.nn.Module)
    sample_BCHW = torch.zeros(1, config.data.channels, config.data.resolution, config.data.resolution)
    net = tailor_ir.compile(network.eval(), sample_BCHW, config.space)
    net.elastic.eval()
    return net


def geometric_mean(values: list[float]) -> float:
    return exp(statistics.fmean(log(value) for value in values))


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def forward_ratio(net: tailor_ir.SuperNet, config: Config) -> tuple[float, float]:
    """Elastic over built, the median of interleaved pairs; and the built forward's median [ms]."""
    net.elastic.activate(config)
    forms = [net.elastic, net.build(config)]
    x_BCHW = torch.randn(net.input_shape(config, BATCH), generator=torch.Generator().manual_seed(0))
    for form in forms:
        form(x_BCHW)
    pairs = []
    for pair in range(PAIRS):
        order = (0, 1) if pair % 2 else (1, 0)
        taken = {i: _seconds(partial(forms[i], x_BCHW)) for i in order}
        pairs.append((taken[0], taken[1]))
    ratio = statistics.median(elastic / built for elastic, built in pairs)
    return ratio, 1000 * statistics.median(built for _, built in pairs)


def at_resolution(net: tailor_ir.SuperNet, config: Config) -> Config:
    """The config at the legal resolution nearest to the benchmark's."""
    found = [v for v in net.space.variables if v.kind == "resolution"]
    nearest = {v.name: min(v.choices, key=lambda choice: abs(int(choice) - RESOLUTION)) for v in found}
    return net.space.canonical(config | nearest)


def activation_ms(net: tailor_ir.SuperNet, configs: list[Config]) -> tuple[list[float], list[float]]:
    """Time to activate each config for the first time, and once more [ms]; best of several equal networks."""
    first, again = [], []
    for _ in range(COPIES):
        own = copy.deepcopy(net.elastic)
        first.append([1000 * _seconds(partial(own.activate, config)) for config in configs])
        again.append([1000 * _seconds(partial(own.activate, config)) for config in configs])
    return [min(times) for times in zip(*first, strict=True)], [min(times) for times in zip(*again, strict=True)]


def measure(preset: str, subnets: int, activations: int, gradients: bool) -> dict[str, Any]:
    """One row of the table."""
    net = compiled(preset)
    rng = np.random.default_rng(0)
    first, again = activation_ms(net, [net.space.sample(rng) for _ in range(activations)])
    with torch.set_grad_enabled(gradients):
        found = [forward_ratio(net, at_resolution(net, net.space.sample(rng))) for _ in range(subnets)]
    ratios, built = zip(*found, strict=True)
    return {
        "preset": preset,
        "nodes": len(net.structure.graph.nodes),
        "ratio": geometric_mean(list(ratios)),
        "worst_ratio": max(ratios),
        "built_ms": statistics.median(built),
        "activate_ms": statistics.median(first),
        "worst_activate_ms": max(first),
        "activate_again_ms": statistics.median(again),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", metavar="PRESET", default=PRESETS)
    parser.add_argument("--subnets", type=int, default=8, help="random SubNets of each preset that are run (8)")
    parser.add_argument("--activations", type=int, default=50, help="random SubNets of each that are activated (50)")
    parser.add_argument("--gradients", action="store_true", help="record what gradients need")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    console = Console()
    for preset in options.presets:
        rows.append(measure(preset, options.subnets, options.activations, options.gradients))
        console.print(rows[-1])
    overall = geometric_mean([row["ratio"] for row in rows])
    table = Table("preset", "nodes", "built [ms]", "elastic / built", "worst", "activate [ms]", "worst", "again")
    for row in rows:
        table.add_row(
            row["preset"],
            str(row["nodes"]),
            f"{row['built_ms']:.0f}",
            f"{row['ratio']:.3f}",
            f"{row['worst_ratio']:.3f}",
            f"{row['activate_ms']:.2f}",
            f"{row['worst_activate_ms']:.2f}",
            f"{row['activate_again_ms']:.3f}",
        )
    console.print(table)
    console.print(f"geometric mean of all presets: {overall:.3f}")
    if options.json:
        options.json.write_text(json.dumps({"ratio": overall, "presets": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
