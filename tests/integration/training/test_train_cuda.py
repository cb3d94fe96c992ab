"""Trainings on a GPU have the losses of those on processors; machines without a GPU leave these tests out."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.base.artifacts import read_lines
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.evaluation.models import ModelSettings
from tasks.training import base_network as base
from tasks.training import compile as compile_stage
from tasks.training import finetune
from tasks.training.finetune.job import Job
from tests.support.finetune.one_rank import killed_at, train_here
from tests.support.finetune.small_training import settings as small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

DIGITS = DataSettings(kind="digits")
MODEL = ModelSettings(name="test_resnet")
"""Without dropout, whose random numbers are others on each device."""
SPACE: Any = {"stage.4.width_mult": (0.5, 1.0), "*.block": ("merged", "pruned_0.5", "low_rank_0.5", "separable")}
STEPS, STOP = 18, 7
RTOL = 1e-6
"""In float64."""
MIXED_RTOL = 0.05


def based(folder: Path, **changes: Any) -> list[float]:
    """Losses of one epoch of the network itself."""
    folder.mkdir(exist_ok=True)
    used = base.Settings.model_validate({**small(1).model_dump(), "epochs": 1, **changes})
    base.run(used, MODEL, DIGITS, folder, Silent())
    return [line["loss"] for line in read_lines(folder / "history.jsonl")]


def test_a_network_trains_as_on_a_processor(tmp_path: Path) -> None:
    expected = based(tmp_path / "cpu")
    assert len(expected) == STEPS
    assert based(tmp_path / "cuda", device="cuda") == pytest.approx(expected, rel=RTOL)
    mixed = based(tmp_path / "mixed", device="cuda", precision="bfloat16", channels_last=True)
    assert mixed != expected
    assert mixed[0] == pytest.approx(expected[0], rel=MIXED_RTOL)


def test_processes_that_have_no_gpu_of_their_own_are_left_out(tmp_path: Path) -> None:
    several = 2 * torch.cuda.device_count()
    found = based(tmp_path / "several", device="cuda", processes=several, batch_size=32 * several)
    assert found == pytest.approx(based(tmp_path / "cpu", batch_size=32 * several), rel=RTOL)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SuperNet of the small network with sizes and alternatives."""
    trained, folder = tmp_path_factory.mktemp("trained"), tmp_path_factory.mktemp("compiled")
    based(trained)
    weights = trained / "weights.safetensors"
    compile_stage.run(compile_stage.Settings(alternative_images=0), MODEL, DIGITS, weights, SPACE, folder, Silent())
    return folder / "supernet"


def used(**changes: Any) -> finetune.Settings:
    common = {"epochs": 2, "batch_size": 64, "micro_batch": 32, "processes": 1, "precision": "float64"}
    return finetune.Settings.model_validate({**common, "recalibration_images": 128, **changes})


@pytest.mark.parametrize("strategy", ["sandwich", ["branches", "tune"]])
def test_a_supernet_trains_as_on_a_processor(compiled: Path, strategy: Any, tmp_path: Path) -> None:
    histories = []
    for device in ("cpu", "cuda"):
        folder = tmp_path / device
        folder.mkdir()
        result = finetune.run(used(device=device, strategy=strategy), DIGITS, compiled, folder, Silent())
        assert 0 < result["largest_test_accuracy"] <= 1
        histories.append(read_lines(folder / "history.jsonl"))
    assert len(histories[0]) == 2 * STEPS
    losses = [[line["loss"] for line in history] for history in histories]
    assert losses[1] == pytest.approx(losses[0], rel=RTOL)


def test_a_training_that_was_killed_goes_on(compiled: Path, tmp_path: Path) -> None:
    def job(name: str) -> Job:
        settings = used(device="cuda", strategy="sandwich", checkpoint_every_s=0)
        folder = tmp_path / name
        return Job(
            folder=folder, data=DIGITS, finetune=settings, supernet=compiled, steps_per_epoch=STEPS, total_steps=STEPS
        )

    whole = train_here(job("whole"))
    killed_at(job("killed"), STOP)
    goes_on = train_here(job("killed"))
    assert [line["step"] for line in goes_on] == list(range(1, STEPS + 1))
    assert [line["loss"] for line in goes_on] == pytest.approx([line["loss"] for line in whole], rel=RTOL)
