"""Networks pruned layer by layer by another library, fine-tuned by the product's own loop: files for `baselines.files`.

Torch-Pruning (DepGraph, CVPR 2023) prunes the base network's channels of lowest magnitude, ranked over all layers together, so
that each layer keeps another share. It is in this project's optional dependencies `dev` only.
"""

import copy
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed, nn

import tailor_ir
from flows.config import RunConfig
from tasks.data import load
from tasks.data.samples import image_form
from tasks.evaluation.models import create, load_weights
from tasks.training.finetune import checkpoint
from tasks.training.finetune.job import Job
from tasks.training.finetune.loop import Trainer
from tasks.training.finetune.networks import TrainableNetwork
from tasks.training.finetune.settings import TrainSettings

RATIOS = (0.35, 0.6, 0.8)
"""Of all channels, that are pruned."""
MOST = 0.9
"""Of the channels of one layer."""
MULTIPLE = 4
"""Channels that are left are one of it."""


def pruned(network: nn.Module, ratio: float, resolution: int, channels: int) -> nn.Module:
    """A copy without this share of its channels."""
    import torch_pruning

    module = copy.deepcopy(network)
    last = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1:]
    pruner = torch_pruning.pruner.BasePruner(
        module,
        torch.zeros(1, channels, resolution, resolution),
        importance=torch_pruning.importance.GroupMagnitudeImportance(),
        global_pruning=True,
        pruning_ratio=ratio,
        max_pruning_ratio=MOST,
        ignored_layers=last,
        round_to=MULTIPLE,
    )
    pruner.step()
    return module


def train_settings(config: RunConfig) -> TrainSettings:
    """What the SuperNet is fine-tuned with, for as many epochs; one process."""
    names = TrainSettings.model_fields
    found = {name: value for name, value in config.finetune.model_dump().items() if name in names}
    return TrainSettings.model_validate(found | {"processes": 1})


def pruned_files(config: RunConfig, weights: Path, work: Path, ratios: Sequence[float] = RATIOS) -> list[Path]:
    """The .onnx files of the base network pruned by each ratio and fine-tuned; those that are there are not made again."""
    train = load(config.data, "train")
    size, channels = config.data.resolution, train.channels
    settings = train_settings(config)
    steps = train.steps(settings.batch_size)
    network = create(config.model, train.classes, image_form(channels, size))
    assert isinstance(network, nn.Module)
    load_weights(network, weights)
    files = []
    for ratio in ratios:
        file = work / f"pruned-{round(100 * ratio)}.onnx"
        files.append(file)
        if file.exists():
            continue
        print(f"fine-tuning the network without {ratio:.0%} of its channels", flush=True)
        folder = work / file.stem
        folder.mkdir(parents=True, exist_ok=True)
        module = pruned(network, ratio, size, channels)
        job = Job(
            folder=folder, data=config.data, train=settings, steps_per_epoch=steps, total_steps=steps * settings.epochs
        )
        if checkpoint.finished_steps(job.checkpoint) < job.total_steps:
            with alone():
                Trainer(job, TrainableNetwork(module, (size, size), settings), train, torch.device("cpu")).run()
        checkpoint.load_model(job.checkpoint, module, average=settings.average > 0)
        partial = folder / "pruned.onnx"
        tailor_ir.compile(module.eval(), torch.zeros(1, channels, size, size), {}).export({}, partial)
        partial.rename(file)
    return files


@contextmanager
def alone() -> Iterator[None]:
    """A process group of this process."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCAL_RANK"] = "0"
        store = distributed.FileStore(f"{folder}/ranks", 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            yield
        finally:
            distributed.destroy_process_group()
