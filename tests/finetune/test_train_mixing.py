"""Mixup and CutMix in the training: SubNets, the largest one that teaches them, and a frozen teacher see the same images."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tailor_ir
from tasks import compile as compile_stage
from tasks import finetune
from tasks.artifacts import read_lines
from tasks.data import DataSettings, load
from tasks.finetune.losses import loss_of
from tasks.finetune.mixing import Mixing, mix
from tasks.models import ModelSettings
from tasks.progress import Silent

MODEL = ModelSettings(name="test_convnext")
"""Without BatchNorm and dropout: a network in training computes what it computes as a teacher."""
MIXING = Mixing(mixup_alpha=0.8, cutmix_alpha=1.0, probability=0.75)
BATCH, MICRO_BATCH = 256, 32


def settings(**changes: Any) -> finetune.Settings:
    common = {"epochs": 1, "batch_size": BATCH, "micro_batch": MICRO_BATCH, "processes": 1, "precision": "float64"}
    others = {"device": "cpu", "recalibration_images": 64, "mixing": MIXING, "distillation": 0.5, "average": 0.5}
    return finetune.Settings.model_validate({**common, **others, **changes})


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SuperNet with random weights."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("compiled")
    compile_stage.run(compile_stage.Settings(), MODEL, DataSettings(), None, {"*.depth": "auto"}, folder)
    return folder / "supernet"


def train(supernet: Path, folder: Path, **changes: Any) -> list[dict[str, float]]:
    folder.mkdir()
    finetune.run(settings(**changes), DataSettings(), supernet, folder, Silent())
    return read_lines(folder / "history.jsonl")


def first_loss(supernet: Path, used: finetune.Settings) -> float:
    """Loss of the largest SubNet in the first step, written out."""
    net = tailor_ir.load(supernet)
    module = net.build(net.max_config).double()
    x_BCHW, y_B = next(load(DataSettings(), "train").batches(BATCH, seed=used.seed))
    losses = []
    for place, (x, y) in enumerate(zip(x_BCHW.split(MICRO_BATCH), y_B.split(MICRO_BATCH), strict=True)):
        mixed, target = mix(x.double(), y, used.mixing, 10, (used.seed, 0, place))
        logits_BK = module(mixed).detach()
        losses.append(loss_of(logits_BK, target, logits_BK if used.teacher == "base" else None, used))
    return float(torch.stack(losses).mean())


@pytest.mark.parametrize("teacher", ["largest", "base"])
def test_students_and_teachers_see_the_same_mixed_images(compiled: Path, tmp_path: Path, teacher: str) -> None:
    history = train(compiled, tmp_path / "run", teacher=teacher)
    expected = first_loss(compiled, settings(teacher=teacher))
    assert history[0]["loss_largest"] == pytest.approx(expected, rel=1e-6)
    assert expected != pytest.approx(first_loss(compiled, settings(teacher=teacher, mixing={})), rel=1e-4)


def test_two_processes_mix_as_one_does(compiled: Path, tmp_path: Path) -> None:
    """With a frozen teacher, the alpha-divergence and an average of the weights; one of the two runs channels-last."""
    options = {"strategy": "progressive", "teacher": "base", "divergence": "alpha"}
    one, two = (
        train(compiled, tmp_path / str(count), processes=count, channels_last=count == 2, **options) for count in (1, 2)
    )
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-6)
    nets = [tailor_ir.load(tmp_path / name / "supernet").elastic.tensors() for name in ("1", "2")]
    before = tailor_ir.load(compiled).elastic.tensors()
    moved = [name for name, tensor in nets[0].items() if not torch.equal(tensor, before[name])]
    assert len(moved) > len(before) / 2
    for name in moved:
        torch.testing.assert_close(nets[0][name], nets[1][name], rtol=1e-5, atol=1e-6)
