"""Fine-tuning a SuperNet with everything that can be chosen: learned kernel transforms, mixed images, a frozen teacher.

The matrices train, decay by nothing, and are checkpointed; two processes train as one does.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import tailor_ir
from tasks.base.artifacts import read_lines
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.evaluation.models import ModelSettings
from tasks.training import compile as compile_stage
from tasks.training import finetune
from tasks.training.finetune import checkpoint
from tasks.training.finetune.job import Job
from tasks.training.finetune.launcher import launch
from tasks.training.finetune.loop import make_optimiser
from tasks.training.finetune.networks import TrainableSuperNet
from tasks.training.finetune.settings import Mixing
from tests.support.finetune.one_rank import train_here

DIGITS = DataSettings(kind="digits")

MODEL = ModelSettings(name="test_convnext")
SPACE = {"*.kernel_size": (3, 5, 7), "*.depth": "auto"}
STEPS = 6
RTOL = 1e-6
"""In float64, as for SuperNets without transforms."""


def settings(processes: int, **other: Any) -> finetune.Settings:
    return finetune.Settings(
        epochs=1,
        batch_size=64,
        micro_batch=32,
        processes=processes,
        precision="float64",
        device="cpu",
        recalibration_images=64,
        weight_decay=0.5,
        **other,
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SuperNet with random weights."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("compiled")
    compile_stage.run(compile_stage.Settings(kernel_transform=True), MODEL, DIGITS, None, SPACE, folder, Silent())
    return folder / "supernet"


def opened(supernet: Path) -> TrainableSuperNet:
    return TrainableSuperNet(tailor_ir.load(supernet), lambda step: [], None, settings(1), 1.0)


def test_the_stage_compiles_transforms_that_are_the_identity(compiled: Path) -> None:
    matrices = tailor_ir.load(compiled).kernel_matrices
    assert [len(matrix) for matrix in matrices] == [25, 9] * (len(matrices) // 2)
    assert len(matrices) > 8
    assert all(torch.equal(matrix, torch.eye(len(matrix))) for matrix in matrices)


@pytest.mark.long
def test_two_processes_train_the_matrices_and_mix_as_one_does(compiled: Path, tmp_path: Path) -> None:
    """With a frozen teacher, the alpha-divergence and an average of the weights; one of the two runs channels-last.

    Before the first step SubNets answer as their teacher: rounding decides which of two divergences of zero is told.
    """
    options: dict[str, Any] = {"teacher": "base", "divergence": "alpha", "distillation": 0.5, "average": 0.5}
    options |= {"strategy": "random", "random_subnets": 3}
    options["mixing"] = Mixing(mixup_alpha=0.8, cutmix_alpha=1.0, probability=0.75)
    one, two = (
        Job(
            folder=tmp_path / str(count),
            data=DIGITS,
            finetune=settings(count, channels_last=count == 2, **options),
            supernet=compiled,
            steps_per_epoch=STEPS,
            total_steps=STEPS,
        )
        for count in (1, 2)
    )
    curve = [line["loss"] for line in train_here(one)]
    two.folder.mkdir()
    launch(two, "training", Silent())
    assert len(curve) == STEPS
    assert [line["loss"] for line in read_lines(two.history)][1:] == pytest.approx(curve[1:], rel=RTOL)
    before, *nets = (tailor_ir.load(compiled) for _ in range(3))
    for job, net in zip((one, two), nets, strict=True):
        checkpoint.load_model(job.checkpoint, net.elastic, average=True)
    first, second = (net.elastic.tensors() for net in nets)
    start = before.elastic.tensors()
    moved = [name for name, tensor in first.items() if not torch.equal(tensor, start[name])]
    assert len(moved) > len(start) / 2
    for name in moved:
        torch.testing.assert_close(first[name], second[name], rtol=1e-5, atol=1e-6)
    for matrix, other in zip(nets[0].kernel_matrices, nets[1].kernel_matrices, strict=True):
        assert not torch.equal(matrix, torch.eye(len(matrix)))
        torch.testing.assert_close(matrix, other, rtol=1e-5, atol=1e-6)


def test_a_killed_training_goes_on_with_its_matrices(compiled: Path, tmp_path: Path) -> None:
    network, smallest = opened(compiled), tailor_ir.load(compiled).min_config
    net = network.module
    optimiser = make_optimiser(net, settings(1), network.undecayed())
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.interpolate(x, (DIGITS.resolution,) * 2).expand(-1, DIGITS.channels, -1, -1)

    def steps(module: Any, state: torch.optim.Optimizer, count: int) -> list[float]:
        losses = []
        for _ in range(count):
            module.activate(smallest)
            loss = module(x).square().sum()
            losses.append(loss.item())
            loss.backward()
            state.step()
            state.zero_grad()
        return losses

    steps(net, optimiser, 2)
    job = Job(folder=tmp_path, data=DIGITS, total_steps=5, steps_per_epoch=5, finetune=settings(1))
    checkpoint.save(job.checkpoint, net, optimiser, 2)
    again = opened(compiled)
    restored = make_optimiser(again.module, settings(1), again.undecayed())
    checkpoint.load_model(job.checkpoint, again.module)
    checkpoint.load_optimiser(job.checkpoint, restored)
    assert not torch.equal(again.undecayed()[0], torch.eye(25))
    assert steps(again.module, restored, 3) == steps(net, optimiser, 3)


@pytest.mark.parametrize("moved", [False, True])
def test_matrices_do_not_decay(compiled: Path, moved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network = opened(compiled)
    # what a move to another device does: parameters are new objects
    monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", moved)
    network.module.double()
    decayed, spared = make_optimiser(network.module, settings(1), network.undecayed()).param_groups
    assert decayed["weight_decay"] == 0.5
    assert spared["weight_decay"] == 0.0
    matrices = set(network.undecayed())
    assert matrices <= set(spared["params"])
    assert {p.ndim for p in set(spared["params"]) - matrices} == {1}
    assert len(decayed["params"]) + len(spared["params"]) == len(list(network.module.parameters()))
