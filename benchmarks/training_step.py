"""What a training step of a SuperNet costs, against the steps of the same SubNets as networks of their own.

    python -m benchmarks.training_step [--pairs 9] [--device cpu|cuda] [--size 128] [--batch 32] [--precision bfloat16]
                                       [--json FILE] [PRESET …]

A step is the largest, the smallest and two random SubNets at the legal resolution nearest to `--size`, on one batch: forward,
backward, and the optimiser's step, through the product's own training loop (one rank, wrapped in DistributedDataParallel).
The same four as built networks, each with an optimiser of its own, make a plain loop: forward, loss, backward, optimiser.
Both in turn, the order changing from pair to pair; the ratio is the median over the pairs. Images are random numbers.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import distributed, nn
from torch.nn import functional

from benchmarks.elastic import CLASSES, compiled, geometric_mean
from tailor_ir import Config, SuperNet
from tasks.data import Batch, DataSettings, load
from tasks.training.finetune import Settings
from tasks.training.finetune.job import Job
from tasks.training.finetune.loop import Trainer, make_optimiser
from tasks.training.finetune.networks import Role, TrainableSuperNet

PRESETS = ("resnet50", "mobilenetv2")


def at_size(net: SuperNet, config: Config, size: int) -> Config:
    """The config at the legal resolution nearest to `size`."""
    found = [v for v in net.space.variables if v.kind == "resolution"]
    return net.space.canonical(config | {v.name: min(v.choices, key=lambda c: abs(int(c) - size)) for v in found})


def supernet_step(
    net: SuperNet, configs: list[Config], batch: Batch, job: Job, device: torch.device
) -> Callable[[], None]:
    """One step of the product's loop."""
    roles = [Role(f"subnet {number}", config, number > 0) for number, config in enumerate(configs)]
    assert job.finetune is not None
    network = TrainableSuperNet(net, lambda _: roles, None, job.finetune, 1.0)
    trainer = Trainer(job, network, load(job.data, "train"), device)

    def step() -> None:
        x, y = batch
        trainer.train_step(x, y)

    return step


def static_step(
    module: nn.Module, batch: Batch, settings: Settings, size: int, device: torch.device
) -> Callable[[], None]:
    """One step of a plain loop."""
    layout = torch.channels_last if settings.channels_last else torch.contiguous_format
    module = module.to(device).to(memory_format=layout).train()
    optimiser = make_optimiser(module, settings)
    x_BCHW = functional.interpolate(batch[0], size=(size, size)).to(memory_format=layout)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            loss = functional.cross_entropy(module(x_BCHW), batch[1], label_smoothing=settings.label_smoothing)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def seconds(steps: list[Callable[[], None]], device: torch.device) -> float:
    start = time.perf_counter()
    for step in steps:
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def measure(preset: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One row of the table."""
    device = torch.device(options.device)
    net = compiled(preset)
    rng = np.random.default_rng(0)
    samples = [net.max_config, net.min_config, net.space.sample(rng), net.space.sample(rng)]
    configs = [at_size(net, config, options.size) for config in samples]
    size = net.input_shape(configs[0])[-1]
    generator = torch.Generator().manual_seed(0)
    x_BCHW = torch.randn(options.batch, 3, size, size, generator=generator)
    batch = x_BCHW.to(device), torch.randint(CLASSES, (options.batch,), generator=generator).to(device)
    settings = Settings.model_validate(
        {
            "batch_size": options.batch,
            "micro_batch": options.batch,
            "processes": 1,
            "strategy": "sandwich",
            "random_subnets": 2,
            "device": options.device,
            "precision": options.precision,
            "channels_last": options.device == "cuda",
        }
    )
    data = DataSettings(resolution=size)
    job = Job(folder=folder, data=data, finetune=settings, total_steps=10_000, steps_per_epoch=10_000)
    statics = [static_step(net.build(config), batch, settings, size, device) for config in configs]
    elastic = [supernet_step(net, configs, batch, job, device)]
    for steps in (elastic, statics):
        for _ in range(2):
            seconds(steps, device)
    pairs = []
    for pair in range(options.pairs):
        order = (elastic, statics) if pair % 2 else (statics, elastic)
        taken = {id(steps): seconds(steps, device) for steps in order}
        pairs.append((taken[id(elastic)], taken[id(statics)]))
    static_s = statistics.median(static for _, static in pairs)
    return {
        "preset": preset,
        "size": size,
        "static_ms": 1000 * static_s,
        "ratio": statistics.median(own / static for own, static in pairs),
        "images_per_s": options.batch * len(configs) / static_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", metavar="PRESET", default=PRESETS)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = "0"
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        store = distributed.FileStore(f"{temporary}/ranks", 1)
        backend = "nccl" if options.device == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        for preset in options.presets:
            rows.append(measure(preset, options, Path(temporary)))
        distributed.destroy_process_group()
    table = Table(
        "preset", "size [px]", "four static steps [ms]", "SuperNet's step / these", "images/s per SubNet, static"
    )
    for row in rows:
        cells = (f"{row['static_ms']:.0f}", f"{row['ratio']:.3f}", f"{row['images_per_s']:.1f}")
        table.add_row(row["preset"], str(row["size"]), *cells)
    Console().print(table)
    Console().print(f"geometric mean: {geometric_mean([row['ratio'] for row in rows]):.3f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
