"""Training on objects of this process: a rank as a thread, which ends in one line and goes on from its checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import tailor_ir
from tasks.base.artifacts import read_lines
from tasks.base.errors import UserError
from tasks.base.own_code import LIVE
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.data.own import Data
from tasks.data.settings import OwnProblem
from tasks.training import finetune
from tasks.training.finetune.settings import Settings

COUNT = 240


class Two(nn.Module):
    """Two outputs of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.level, self.place = nn.Linear(20, 3), nn.Linear(20, 2)

    def forward(self, image: torch.Tensor, pose: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (B, 3) and places (B, 2)."""
        features = torch.cat([self.image(image).mean((2, 3)), pose], 1)
        return self.level(features), self.place(features)


def loss(outputs: dict[str, torch.Tensor], targets: dict[str, torch.Tensor]) -> torch.Tensor:
    place = functional.mse_loss(outputs["place"], targets["place"])
    return functional.cross_entropy(outputs["level"], targets["level"]) + place


def score(outputs: dict[str, torch.Tensor], targets: dict[str, torch.Tensor]) -> torch.Tensor:
    return (outputs["level"].argmax(1) == targets["level"]).float()


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> DataSettings:
    draw = torch.Generator().manual_seed(0)
    image, pose = torch.rand(COUNT, 1, 8, 12, generator=draw), torch.randn(COUNT, 4, generator=draw)
    level = (pose[:, 0] > 0).long() + (pose[:, 1] > 0).long()
    rows = {"image": image, "pose": pose, "level": level, "place": pose[:, :2]}
    monkeypatch.setitem(LIVE, "live:rows", Data(rows, inputs=["image", "pose"]))
    monkeypatch.setitem(LIVE, "live:loss", loss)
    monkeypatch.setitem(LIVE, "live:score", score)
    problem = OwnProblem(kind="own", loss="live:loss", score="live:score", outputs={"level": None, "place": None})
    return DataSettings(kind="own", name="live:rows", own_problem=problem)


@pytest.fixture
def supernet(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    net = tailor_ir.compile(Two().eval(), (torch.zeros(1, 1, 8, 12), torch.zeros(1, 4)))
    net.save(tmp_path / "supernet")
    return tmp_path / "supernet"


def settings(**options: Any) -> Settings:
    given = {
        "epochs": 6,
        "batch_size": 16,
        "micro_batch": 16,
        "processes": 1,
        "learning_rate": 0.02,
        "warmup_epochs": 0,
    }
    return Settings.model_validate({**given, **options})


def test_two_outputs_by_name_are_trained_by_own_functions(data: DataSettings, supernet: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    result = finetune.run(settings(), data, supernet, out, Silent())
    losses = [line["loss"] for line in read_lines(out / "history.jsonl")]
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    assert float(result["largest_test_accuracy"]) > 0.5


def test_an_error_of_a_loss_is_one_line_and_the_next_call_trains(
    data: DataSettings, supernet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()

    def broken(outputs: Any, targets: Any) -> torch.Tensor:
        raise ValueError("no such level")

    monkeypatch.setitem(LIVE, "live:loss", broken)
    with pytest.raises(UserError, match=r"problem\.loss 'live:loss': raises ValueError \(no such level\)"):
        finetune.run(settings(), data, supernet, out, Silent())
    monkeypatch.setitem(LIVE, "live:loss", loss)
    finetune.run(settings(epochs=2), data, supernet, out, Silent())
    assert read_lines(out / "history.jsonl")
