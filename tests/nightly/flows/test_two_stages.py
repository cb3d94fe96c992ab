"""Two stages of training in one run: the backbone on digits, then the detector on scenes; and what is refused before."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tailor_ir
from flows.cli import main
from tests.support.boxes import small_detectors
from tests.support.flows.fixtures import Command
from tests.support.flows.tiny import TINY

TWO_STAGES = (
    "model=callable",
    f"model.name={Path(small_detectors.__file__)}:ssdlite",
    "data=glyph_boxes",
    "data.classes=2",
    "data.images=120",
    "data.resolution=32",
    "base.label_smoothing=0",
    "space.alternatives=[pruned]",
    "finetune.strategy=tune",
    "pretraining.backbone=backbone",
    "data@pretraining.data=digits",
    "pretraining.base.epochs=1",
    "pretraining.base.processes=1",
    "pretraining.finetune.epochs=1",
    "pretraining.finetune.processes=1",
    "pretraining.finetune.strategy=branches",
    "pretraining.classifier_images=128",
)
WORDS = (*TWO_STAGES, *(word for word in TINY if not word.startswith(("model.name", "data=", "space."))))
STAGES = ("check", "pretrain", "base", "compile", "backbone", "distill", "join", "finetune")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Commands in a folder where the SuperNet was trained in two stages, alternatives alone."""
    command = Command(tmp_path_factory.mktemp("two") / "out", WORDS)
    command("finetune")
    return command


def folder_of(command: Command, stage: str) -> Path:
    (found,) = (command.output / "stages" / stage).iterdir()
    return found


def result_of(command: Command, stage: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder_of(command, stage) / "result.json").read_text())
    return found


def tensors_of(command: Command, stage: str) -> dict[str, torch.Tensor]:
    return tailor_ir.load(folder_of(command, stage) / "supernet").elastic.tensors()


def to_do(command: Command, *words: str) -> dict[str, str]:
    """The state of each stage of the same run with other words."""
    return {row["stage"]: row["state"] for row in command("finetune", *words, "--dry-run")["dry_run"]}


def waiting(states: dict[str, str]) -> list[str]:
    return [stage for stage, state in states.items() if state != "complete"]


def test_stages_are_worked_in_order_and_found_complete_again(trained: Command) -> None:
    assert {folder.name for folder in (trained.output / "stages").iterdir()} == set(STAGES)
    states = to_do(trained)
    assert list(states) == list(STAGES)
    assert set(states.values()) == {"complete"}
    assert waiting(to_do(trained, "finetune.seed=1")) == ["finetune"]
    assert waiting(to_do(trained, "pretraining.finetune.seed=1")) == ["distill", "join", "finetune"]


def test_the_network_begins_with_the_backbone_that_was_trained_first(trained: Command) -> None:
    first, second = (load_file(folder_of(trained, stage) / "weights.safetensors") for stage in ("pretrain", "base"))
    backbone = [name for name in second if name.startswith("backbone.")]
    assert set(backbone) == {name for name in first if name.startswith("backbone.")}
    moved = torch.cat([(first[name] - second[name]).flatten() for name in backbone if name.endswith("weight")])
    sizes = torch.cat([first[name].flatten() for name in backbone if name.endswith("weight")])
    assert 0 < moved.norm() < 0.5 * sizes.norm()


def test_alternatives_come_from_the_first_data_and_the_network_stays_as_it_was(trained: Command) -> None:
    whole, distilled, joined = (tensors_of(trained, stage) for stage in ("compile", "distill", "join"))
    graph = tailor_ir.load(folder_of(trained, "join") / "supernet").structure.graph
    original = graph.original().initializers
    assert all(torch.equal(joined[name], whole[name]) for name in original)
    own = [name for name in graph.parameters if name not in original and name in distilled]
    assert len(own) > 10
    assert all(torch.equal(joined[name], distilled[name]) for name in own)
    assert any(not torch.equal(joined[name], whole[name]) for name in own)
    result = result_of(trained, "join")
    assert not result["moved"]
    assert result["tensors"] > len(own)


def test_the_classifier_is_better_than_chance_before_the_backbone_is_trained_further(trained: Command) -> None:
    assert result_of(trained, "backbone")["validation_accuracy"] > 0.2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("model=tiny",), "pretraining.backbone=backbone with model.kind=timm, which has no parts by name"),
        (("data=digits",), "data.kind=digits: a network that classifies whole images has no head for a second stage"),
        (
            ("data@pretraining.data=glyph_scenes",),
            "pretraining.data.kind=glyph_scenes: segmentation of images; allowed",
        ),
        (("data@pretraining.data=sounds",), "pretraining.data.channels=1 with data.channels=3"),
        (("pretraining.space.exits=auto",), "pretraining.space.exits: no exit of a backbone"),
        (("pretraining.backbone=body",), "has no part 'body'; allowed: backbone, head"),
        (("pretraining.space.depth=auto",), "alternative 'pruned_"),
    ],
)
def test_what_has_no_two_stages_is_told_before_anything_is_trained(
    words: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["finetune", *WORDS, *words, f"output_dir={tmp_path / 'out'}"]) == 2
    (told,) = (text for text in capsys.readouterr().err.splitlines() if text.startswith("autotailor: "))
    assert line in told
    assert not list(tmp_path.glob("out/stages/pretrain/*"))
