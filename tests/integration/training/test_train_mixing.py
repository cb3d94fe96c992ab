"""Mixup and CutMix in the training: SubNets, the largest one that teaches them, and a frozen teacher see the same images."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tailor_ir
from tasks.base.progress import Silent
from tasks.data import DataSettings, load
from tasks.evaluation.models import ModelSettings
from tasks.training import compile as compile_stage
from tasks.training import finetune
from tasks.training.finetune.job import Job
from tasks.training.finetune.numerics import loss_of
from tasks.training.finetune.settings import Mixing, mix
from tests.support.finetune.one_rank import train_here

DIGITS = DataSettings(kind="digits")

MODEL = ModelSettings(name="test_convnext")
"""Without BatchNorm and dropout: a network in training computes what it computes as a teacher."""
MIXING = Mixing(mixup_alpha=0.8, cutmix_alpha=1.0, probability=0.75)
BATCH, MICRO_BATCH = 96, 32


def settings(**changes: Any) -> finetune.Settings:
    common = {"epochs": 1, "batch_size": BATCH, "micro_batch": MICRO_BATCH, "processes": 1, "precision": "float64"}
    others = {"strategy": "sandwich", "device": "cpu", "mixing": MIXING, "distillation": 0.5}
    return finetune.Settings.model_validate({**common, **others, **changes})


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SuperNet with random weights."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("compiled")
    compile_stage.run(compile_stage.Settings(), MODEL, DIGITS, None, {"*.depth": "auto"}, folder, Silent())
    return folder / "supernet"


def first_loss(supernet: Path, used: finetune.Settings) -> float:
    """Loss of the largest SubNet in the first step, written out."""
    net = tailor_ir.load(supernet)
    module = net.build(net.max_config).double()
    x_BCHW, y_B = next(load(DIGITS, "train").batches(BATCH, seed=used.seed))
    losses = []
    for place, (x, y) in enumerate(zip(x_BCHW.split(MICRO_BATCH), y_B.split(MICRO_BATCH), strict=True)):
        mixed, target = mix(x.double(), y, used.mixing, 10, (used.seed, 0, place))
        logits_BK = module(mixed).detach()
        teacher_BK = logits_BK if used.teacher == "base" else None
        losses.append(loss_of(logits_BK, target, used, teacher_BK, used.soft_share("sandwich")))
    return float(torch.stack(losses).mean())


@pytest.mark.long
@pytest.mark.parametrize("teacher", ["largest", "base"])
def test_students_and_teachers_see_the_same_mixed_images(compiled: Path, tmp_path: Path, teacher: str) -> None:
    used = settings(teacher=teacher)
    job = Job(folder=tmp_path, data=DIGITS, finetune=used, supernet=compiled, steps_per_epoch=1, total_steps=1)
    (line,) = train_here(job)
    expected = first_loss(compiled, used)
    assert line["loss_largest"] == pytest.approx(expected, rel=1e-6)
    assert expected != pytest.approx(first_loss(compiled, settings(teacher=teacher, mixing={})), rel=1e-4)
