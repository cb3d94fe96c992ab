"""A training of one rank in this process: the loop alone, without torchrun and without a process that imports everything."""

from pathlib import Path
from typing import Any

import pytest

from tasks.base.artifacts import read_lines
from tasks.training.finetune import checkpoint
from tasks.training.finetune.job import Job
from tasks.training.finetune.worker import train

ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
"""What torchrun tells the only rank of the only node."""


def train_here(job: Job) -> list[dict[str, Any]]:
    """The history of a job that is trained to its end; its checkpoint stays in the job's folder, made where it is not."""
    job.folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ALONE.items():
            patch.setenv(name, value)
        train(job, job.folder)
    return read_lines(job.history)


def killed_at(job: Job, stop: int) -> None:
    """Train until the checkpoint after step `stop` is written."""

    class Killed(Exception):
        pass

    real = checkpoint.save

    def save(path: Path, module: Any, optimiser: Any, step: int, *more: Any) -> None:
        real(path, module, optimiser, step, *more)
        if step == stop:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", save)
        with pytest.raises(Killed):
            train_here(job)
    assert checkpoint.finished_steps(job.checkpoint) == stop
