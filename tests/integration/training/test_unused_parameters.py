"""Gradients of parameters that the last SubNet of a step does not use are averaged over the ranks all the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from tasks.data import DataSettings, load
from tasks.training.finetune.job import JOB_FILE, Job
from tasks.training.finetune.settings import Settings
from tests.support import SUPPORT
from tests.support.finetune.unused_parameters import Branches

RATE, BATCH = 0.1, 64
DATA = DataSettings(kind="digits", resolution=8, channels=1)
SETTINGS = Settings(
    strategy="sandwich",
    epochs=1,
    batch_size=BATCH,
    micro_batch=16,
    optimiser="sgd",
    learning_rate=RATE,
    warmup_epochs=0,
    weight_decay=0,
    processes=2,
    label_smoothing=0.0,
    checkpoint_every_s=1000,
)


def expected() -> dict[str, torch.Tensor]:
    """One step of SGD with Nesterov momentum on the whole global batch, written out."""
    module = Branches()
    x_BCHW, y_B = next(load(DATA, "train").batches(BATCH, seed=SETTINGS.seed))
    hidden = torch.relu(module.shared(x_BCHW.flatten(1)))
    loss = functional.cross_entropy(module.first(hidden), y_B) + functional.cross_entropy(module.last(hidden), y_B)
    loss.backward()
    weights = {name: module.get_parameter(f"{name}.weight") for name in ("shared", "first", "last", "idle")}
    first_step = RATE * (1 + 0.9)
    return {
        name: (weight - first_step * (torch.zeros(()) if weight.grad is None else weight.grad)).detach()
        for name, weight in weights.items()
    }


@pytest.mark.long
def test_parameters_unused_by_the_last_subnet_get_the_mean_gradient_of_all_ranks(tmp_path: Path) -> None:
    job = Job(folder=tmp_path, data=DATA, finetune=SETTINGS, supernet=tmp_path, total_steps=1, steps_per_epoch=1)
    (tmp_path / JOB_FILE).write_text(job.model_dump_json())
    script = SUPPORT / "finetune" / "unused_parameters.py"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        "2",
        str(script),
        str(tmp_path / JOB_FILE),
        str(tmp_path / "out.safetensors"),
    ]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    trained, wanted, before = load_file(tmp_path / "out.safetensors"), expected(), Branches()
    for name, weight in wanted.items():
        torch.testing.assert_close(trained[name], weight, rtol=1e-5, atol=1e-6)
        moved = not torch.equal(trained[name], before.get_parameter(f"{name}.weight"))
        assert moved == (name != "idle")
