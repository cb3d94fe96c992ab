"""A network that comes trained: a lower learning rate, and its weights back where fine-tuning did harm."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from flows.config import RunConfig
from tailor_ir import SuperNet
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.data.problems import Tallied
from tasks.evaluation.subnets import Accuracy
from tasks.evaluation.subnets.evaluations import Ends
from tasks.training.finetune import Settings, checkpoint, launcher
from tasks.training.finetune.checkpoint import BeforeWeights
from tasks.training.finetune.job import GENTLE, REFINING, Job, phases_of
from tasks.training.finetune.settings import TrainSettings

ONNX = {"kind": "onnx", "path": "net.onnx"}
IMAGES = 100


def _ends(largest: int, smallest: int) -> Ends:
    """Both get the first so many of all images right."""
    numbers = np.arange(IMAGES)
    return Ends(*(Accuracy.tallied(Tallied(share / IMAGES, 1.0, numbers < share)) for share in (largest, smallest)))


@pytest.mark.parametrize(
    ("config", "gentle"),
    [
        ({}, False),
        ({"model": ONNX}, True),
        ({"model": {"checkpoint": "net.pt"}}, True),
        ({"model": {"pretrained": True}}, True),
        ({"model": {"kind": "callable", "name": "nets:make", "trained": True}}, True),
        ({"base": {"epochs": 0}}, True),
        ({"model": ONNX, "finetune": {"learning_rate": None}}, True),
        ({"model": ONNX, "finetune": {"learning_rate": 1e-3}}, False),
        ({"model": ONNX, "finetune": {"gentle": False}}, False),
    ],
)
def test_a_network_that_comes_trained_is_fine_tuned_gently(config: dict[str, Any], gentle: bool) -> None:
    found = RunConfig.model_validate(config)
    assert found.finetune.gentle is gentle
    again = RunConfig.model_validate(found.model_dump(mode="json"))
    assert again.finetune == found.finetune


def test_phases_that_leave_the_network_alone_keep_their_rate() -> None:
    def rates(**options: Any) -> list[float]:
        used = Settings.model_validate({"epochs": 4, **options})
        return [one.rate for one in phases_of(used, 4, 10, 40)]

    both = {"strategy": "sandwich,branches,tune"}
    assert rates(**both) == [1, 1, REFINING]
    assert rates(**both, gentle=True) == [GENTLE, 1, REFINING]
    assert rates(**both, gentle=True, phase_rates=[1, 1, 1]) == [1, 1, 1]
    assert rates(strategy="branches", gentle=True) == [1]


@pytest.mark.parametrize(
    ("after", "kept", "said"),
    [
        ((100, 85), False, None),  # no harm
        ((99, 85), False, None),  # within the standard error: one image of a hundred
        (
            (88, 80),
            False,
            "costs the largest SubNet 12.0 ± 3.5 points of validation accuracy (100.0 % before); smaller",
        ),
        (
            (20, 15),
            True,
            "costs the largest SubNet 80.0 ± 4.3 points of validation accuracy (100.0 % before); the weights",
        ),
    ],
)
def test_the_better_weights_are_kept_and_harm_is_said(after: tuple[int, int], kept: bool, said: str | None) -> None:
    elastic = torch.nn.Linear(2, 2)
    given = elastic.weight.detach().clone()
    before = BeforeWeights(cast("SuperNet", SimpleNamespace(elastic=elastic)), _ends(100, 10))
    torch.nn.init.zeros_(elastic.weight)
    lines: list[str] = []
    ends, told = before.better(_ends(*after), lines.append)
    assert told.kept is kept
    assert torch.equal(elastic.weight, given) is kept
    assert (ends.largest.share, ends.smallest.share) == ((1.0, 0.1) if kept else tuple(one / IMAGES for one in after))
    assert told.is_worse is bool(lines) is (said is not None)
    assert not said or said in lines[0]


class Told(Silent):
    """Progress that remembers its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_training_tells_its_steps_when_it_begins(
    goes_on: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train = TrainSettings(epochs=2, batch_size=32, micro_batch=16, processes=2, device="cpu")
    job = Job(
        folder=tmp_path, data=DataSettings(kind="digits"), total_steps=6, steps_per_epoch=3, last_batch=5, train=train
    )
    if goes_on:
        job.checkpoint.touch()
    is_finished = iter([False, True])
    monkeypatch.setattr(launcher, "_is_finished", lambda _: next(is_finished))
    monkeypatch.setattr(launcher, "_run", lambda *_: (0, ()))
    monkeypatch.setattr(checkpoint, "mend", lambda *_: None)
    monkeypatch.setattr(checkpoint, "finished_steps", lambda _: 0)
    told = Told()
    launcher.launch(job, "fine-tuning", told)
    steps = "2 epochs of 3 steps with batches of 32, the last of 5; 6 steps: few; a smaller batch_size makes more"
    assert told.lines == ([] if goes_on else [f"fine-tuning: {steps}"])
