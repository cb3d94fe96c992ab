"""Trainings that cannot go on as they are: numbers that are none, a corrupt shard, too little memory: one clear line each."""

import io
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tasks.base.artifacts import read_lines
from tasks.base.errors import UserError, is_out_of_memory
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.training import base_network as base
from tasks.training.finetune.checkpoint import finished_steps
from tests.support.finetune.short_training import STEPS, alone, losses, settings, train
from tests.support.finetune.small_training import MODEL

DIVERGING: dict[str, Any] = {"learning_rate": 1e12, "warmup_epochs": 0.0}
HINT = "lower learning_rate or set clip_norm$"


@pytest.mark.long
def test_numbers_that_are_none_end_the_training_with_one_line_and_reach_no_checkpoint(tmp_path: Path) -> None:
    """Where each step has a checkpoint, weights may be found to be no numbers before a loss is."""
    found = "(the loss is (nan|inf)|a weight is no number any more)"
    with pytest.raises(UserError, match=rf"training step \d+: {found}; {HINT}") as error:
        train(tmp_path / "run", processes=2, restarts=1, **DIVERGING)
    known = losses(tmp_path / "run")
    assert 1 <= len(known) < STEPS
    assert all(map(math.isfinite, known.values()))
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    failed = re.search(r"training step (\d+)", str(error.value))
    assert failed is not None
    assert finished_steps(checkpoint) == int(failed[1]) - 1 >= 1
    assert all(tensor.isfinite().all() for tensor in load_file(checkpoint).values())


def test_losses_that_are_no_numbers_end_a_training_between_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"training step \d+: the loss is (nan|inf); {HINT}"):
        alone(tmp_path, checkpoint_every_s=1000, **DIVERGING)
    known = losses(tmp_path)
    assert 1 <= len(known) < STEPS
    assert all(map(math.isfinite, known.values()))


COLOURS = ((220, 40, 40), (40, 220, 40), (40, 40, 220))
SHARDS, ROWS, BATCH, EPOCHS = 6, 32, 32, 16


def write_shards(folder: Path) -> None:
    """Noisy images of three colours: six shards for training, one each for validation and test."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name in (*(f"train-{number}" for number in range(SHARDS)), "validation-0", "test-0"):
        labels = [row % 3 for row in range(ROWS)]
        images = []
        for label in labels:
            content = io.BytesIO()
            pixels = np.clip(np.array(COLOURS[label]) + rng.normal(0, 60, (16, 16, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(content, "PNG")
            images.append(content.getvalue())
        pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": labels}), folder / f"{name}.parquet")


class Breaker(Silent):
    """Cuts a shard off in the middle when the training has begun: a step is told before its checkpoint is written."""

    def __init__(self, shard: Path) -> None:
        self.shard, self.content = shard, shard.read_bytes()
        self.steps: list[int] = []

    def metrics(self, values: dict[str, float], step: int) -> None:
        self.steps.append(step)
        if step == 2:
            self.shard.write_bytes(self.content[: len(self.content) // 2])


@pytest.mark.long
def test_a_shard_that_is_corrupt_is_named_and_once_mended_the_training_goes_on(tmp_path: Path) -> None:
    folder, shards = tmp_path / "run", tmp_path / "shards"
    write_shards(shards)
    folder.mkdir()
    breaker = Breaker(shards / "train-3.parquet")
    data = DataSettings(kind="parquet", path=shards, resolution=32)
    options = settings(processes=2, batch_size=BATCH, micro_batch=16, epochs=EPOCHS)
    total = EPOCHS * SHARDS * ROWS // BATCH
    with pytest.raises(UserError, match=r"parquet '.*train-3\.parquet': cannot be read .*; replace or remove it$"):
        base.run(options, MODEL, data, folder, breaker)
    done = finished_steps(folder / "checkpoint.safetensors")
    assert 1 <= done < total
    breaker.shard.write_bytes(breaker.content)
    base.run(options, MODEL, data, folder, breaker)
    assert sorted(set(breaker.steps)) == list(losses(folder)) == list(range(1, total + 1))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("could not create a primitive descriptor for a convolution forward"), False),
        (RuntimeError("Connection closed by peer"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


SMALL_MEMORY = """
import os, resource, sys
from pathlib import Path
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # threads take memory, too
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]) << 20,) * 2)
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.evaluation.models import ModelSettings
from tasks.training import base_network as base

class Loud(Silent):
    def say(self, line):
        print(line, flush=True)

settings = base.Settings(
    epochs=1, batch_size=1024, micro_batch=1024, optimiser="sgd", learning_rate=0.05, processes=1, device="cpu",
    recalibration_images=64,
)
folder = Path(sys.argv[1])
data = DataSettings(kind="digits", resolution=96)
print(base.run(settings, ModelSettings(name="test_resnet"), data, folder, Loud())["micro_batch"])
"""


@pytest.mark.long
def test_where_memory_runs_out_smaller_micro_batches_are_tried_and_said(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SMALL_MEMORY, str(tmp_path), "6144"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    *lines, last = result.stdout.splitlines()
    said = [line for line in lines if "out of memory" in line]
    assert "out of memory with micro-batches of 1024 images; goes on with 512" in said[0]
    assert int(last) == 1024 >> len(said)
    assert len(read_lines(tmp_path / "history.jsonl")) == 2, "the last batch is smaller"


def test_a_base_network_of_no_epochs_is_taken_as_it_is(tmp_path: Path) -> None:
    chosen = base.Settings(epochs=0, processes=1, device="cpu", recalibration_images=64)
    result = base.run(chosen, MODEL, DataSettings(kind="digits"), tmp_path, Silent())
    assert result["trained"] is False
    assert not (tmp_path / "history.jsonl").exists()
