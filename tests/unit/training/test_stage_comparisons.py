"""Every stage that touches weights compares networks at its end: what changes an answer ends the stage with one line."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model
from torch import nn

import tailor_ir
from tailor_ir import CheckFailed, SuperNet
from tailor_ir.subnets.elastic import Elastic
from tailor_ir.supernet import network as supernets
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.training import base_network as base
from tasks.training import compile as compiling
from tasks.training import evaluate_given as given
from tasks.training import finetune, pretraining
from tasks.training.finetune import checkpoint, launcher
from tasks.training.finetune.job import Job
from tasks.training.finetune.settings import PretrainingSettings as Pretraining
from tests.support.finetune.two_parts import MODEL

DIGITS = DataSettings(kind="digits", resolution=8, augment=False)
SPACE: Any = {"*.width_mult": (0.5, 1.0), "alternatives": ["low_rank"]}
COMPILING = compiling.Settings(alternative_images=0)
SILENT = Silent()
IMAGES = 64
Stage = Callable[[], object]


@torch.no_grad()
def damage(module: nn.Module) -> None:
    """Change the first weights of a network, so that it answers otherwise."""
    next(module.parameters()).mul_(-2.0)


@torch.no_grad()
def damage_elastic(network: Elastic) -> None:
    """Change weights of the network that all SubNets share."""
    network.tensor("head.bias").add_(1.0)


def after(function: Callable[..., Any], done: Callable[..., None]) -> Callable[..., Any]:
    """A function after which something else is done with its operands and its result."""

    def both(*operands: Any, **named: Any) -> Any:
        result = function(*operands, **named)
        done(*operands, result)
        return result

    return both


@pytest.fixture(scope="module")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SuperNet of the network of two parts."""
    folder = tmp_path_factory.mktemp("compiled")
    compiling.run(COMPILING, MODEL, DIGITS, None, SPACE, folder, SILENT)
    return folder / "supernet"


@pytest.fixture
def wrong_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """SubNets that stand alone have wrong weights."""
    monkeypatch.setattr(supernets, "build", after(supernets.build, lambda *each: damage(each[-1])))


def fails(stage: Stage, line: str, folder: Path) -> None:
    """The stage ends with a line, and leaves no SuperNet."""
    with pytest.raises(CheckFailed, match=f"^{line} answers otherwise than ") as failure:
        stage()
    assert "\n" not in str(failure.value)
    assert not (folder / "supernet").exists()


def compile_into(folder: Path) -> Stage:
    return lambda: compiling.run(COMPILING, MODEL, DIGITS, None, SPACE, folder, SILENT)


def test_base_compares_the_network_with_the_weights_that_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(module: nn.Module, path: str) -> None:
        other = copy.deepcopy(module)
        damage(other)
        save_model(other, path)

    def stage() -> object:
        return base.run(base.Settings(epochs=0, device="cpu"), MODEL, DIGITS, tmp_path, SILENT)

    stage()
    monkeypatch.setattr(base, "save_model", torn)
    fails(stage, "stage base: the network with the weights that were written", tmp_path)


def test_given_compares_the_forms_of_the_supernet(supernet: Path, tmp_path: Path, wrong_builds: None) -> None:
    fails(
        lambda: given.evaluate_supernet(supernet, DIGITS, IMAGES), "stage given: the SubNet that stands alone", tmp_path
    )


@pytest.mark.parametrize(
    ("step", "name"), [("order of channels", "sort_channels"), ("first weights", "fit_alternatives")]
)
def test_compile_compares_the_network_after_each_step(
    step: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, name, after(getattr(compiling, name), lambda net, *_: damage_elastic(net.elastic)))
    fails(compile_into(tmp_path), f"stage compile, {step}: the largest SubNet", tmp_path)


def test_compile_compares_the_forms_of_the_supernet(tmp_path: Path, wrong_builds: None) -> None:
    fails(compile_into(tmp_path), "stage compile: the SubNet that stands alone", tmp_path)


def tune(supernet: Path, folder: Path, strategy: str) -> Stage:
    settings = finetune.Settings(epochs=1, strategy=strategy, device="cpu", processes=1, recalibration_images=IMAGES)
    return lambda: finetune.run(settings, DIGITS, supernet, folder, SILENT)


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training is over before it begins: its checkpoint has the weights of the SuperNet."""

    def launch(job: Job, *_: object) -> Job:
        assert job.supernet is not None
        network = tailor_ir.load(job.supernet).elastic
        checkpoint.save(job.checkpoint, network, torch.optim.SGD(network.parameters(), 0.1), job.total_steps)
        return job

    monkeypatch.setattr(launcher, "launch", launch)


def test_finetune_compares_the_network_where_alternatives_alone_are_trained(
    supernet: Path, tmp_path: Path, untrained: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        checkpoint, "load_model", after(checkpoint.load_model, lambda path, network, *_: damage_elastic(network))
    )
    stage = tune(supernet, tmp_path, "branches")
    fails(stage, "stage finetune, alternatives alone trained: the largest SubNet", tmp_path)


def test_finetune_compares_the_forms_of_the_supernet(
    supernet: Path, tmp_path: Path, untrained: None, wrong_builds: None
) -> None:
    fails(tune(supernet, tmp_path, "sandwich"), "stage finetune: the SubNet that stands alone", tmp_path)


FIRST = Pretraining(backbone="backbone", data=DIGITS, classifier_images=IMAGES)


def cut_out(supernet: Path, folder: Path) -> Stage:
    return lambda: pretraining.make_backbone(FIRST, COMPILING, MODEL, SPACE, supernet, folder, SILENT)


@pytest.fixture(scope="module")
def backbone(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SuperNet of the backbone alone."""
    folder = tmp_path_factory.mktemp("backbone")
    cut_out(supernet, folder)()
    return folder / "supernet"


def test_backbone_compares_the_forms_of_its_supernet(supernet: Path, tmp_path: Path, wrong_builds: None) -> None:
    fails(cut_out(supernet, tmp_path), "stage backbone: the SubNet that stands alone", tmp_path)


def join(supernet: Path, backbone: Path, folder: Path) -> Stage:
    return lambda: pretraining.join("backbone", DIGITS, IMAGES, supernet, backbone, folder, SILENT)


def test_join_compares_the_network_whose_weights_are_as_they_were(
    supernet: Path, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        SuperNet,
        "recalibrate_alternatives",
        after(SuperNet.recalibrate_alternatives, lambda net, *_: damage_elastic(net.elastic)),
    )
    fails(join(supernet, backbone, tmp_path), "stage join, weights as they were: the largest SubNet", tmp_path)


def test_join_compares_the_forms_of_the_supernet(
    supernet: Path, backbone: Path, tmp_path: Path, wrong_builds: None
) -> None:
    fails(join(supernet, backbone, tmp_path), "stage join: the SubNet that stands alone", tmp_path)
