"""One epoch of a small real training with any settings: of ranks under torchrun, or of one rank in this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_model

from tasks.base.artifacts import read_lines
from tasks.base.progress import Silent
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings
from tasks.data.dataset import PlannedEpoch
from tasks.data.samples import image_form
from tasks.evaluation.models import create
from tasks.training import base_network as base
from tasks.training.finetune.job import Job
from tests.support.finetune.one_rank import train_here
from tests.support.finetune.small_training import MODEL

STEPS = 18
DIGITS, EPOCH = DataSettings(kind="digits"), PlannedEpoch(STEPS)


def settings(**changes: Any) -> base.Settings:
    common = {
        "epochs": 1,
        "batch_size": 64,
        "micro_batch": 32,
        "optimiser": "sgd",
        "learning_rate": 0.05,
        "processes": 1,
    }
    return base.Settings.model_validate({**common, "device": "cpu", "checkpoint_every_s": 0, **changes})


@contextmanager
def as_many_cores(processes: int, first_core: int = 0) -> Iterator[None]:
    """As ranks, so that each has one thread, and results can be equal to the last bit."""
    allowed = os.sched_getaffinity(0)
    cores = sorted(allowed) * 2
    first_core %= len(allowed)
    os.sched_setaffinity(0, cores[first_core : first_core + processes])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def train(folder: Path, progress: Silent | None = None, first_core: int = 0, **changes: Any) -> StageResult:
    folder.mkdir(exist_ok=True)
    options = settings(**changes)
    with as_many_cores(options.processes, first_core):
        return base.run(options, MODEL, DataSettings(kind="digits"), folder, progress or Silent())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights.safetensors")


def assert_same(folder: Path, expected: Path) -> None:
    """The same weights to the last bit, and nothing else left behind."""
    found, wanted = weights(folder), weights(expected)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in found.items())
    assert {file.name for file in folder.iterdir()} == {file.name for file in expected.iterdir()}


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_lines(folder / "history.jsonl")}


def alone(folder: Path, data: DataSettings = DIGITS, planned: PlannedEpoch = EPOCH, **changes: Any) -> dict[int, float]:
    """Losses of one rank in this process; its weights stay in the checkpoint."""
    folder.mkdir(exist_ok=True)
    initial = folder / "initial.safetensors"
    module = create(MODEL, 10, image_form(data.channels, data.resolution))
    assert isinstance(module, torch.nn.Module)
    save_model(module, str(initial))
    used = settings(**changes)
    job = Job(
        folder=folder,
        data=data,
        train=used,
        model=MODEL,
        initial=initial,
        steps_per_epoch=planned.steps,
        last_batch=planned.last,
        total_steps=planned.steps,
    )
    return {line["step"]: line["loss"] for line in train_here(job)}
