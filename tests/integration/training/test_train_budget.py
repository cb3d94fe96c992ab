"""Fine-tuning within a budget of memory: the losses of plain steps, the peak that was predicted, and refusals."""

import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import tailor_ir
from tasks.base.artifacts import read_json, read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.training import finetune
from tasks.training.finetune.job import Job
from tasks.training.finetune.memory import PlanTeller
from tests.support.finetune.one_rank import train_here

DIGITS = DataSettings(kind="digits")
STEPS = 3


@pytest.fixture(scope="module")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SuperNet of an untrained small network."""
    folder = tmp_path_factory.mktemp("compiled") / "supernet"
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10, in_chans=DIGITS.channels).eval()
    tailor_ir.compile(network, torch.zeros(1, DIGITS.channels, DIGITS.resolution, DIGITS.resolution)).save(folder)
    return folder


def trained(supernet: Path, folder: Path, memory_mib: float | None) -> list[dict[str, Any]]:
    """The history of a few steps of one rank."""
    options = {
        "epochs": 1,
        "batch_size": 32,
        "micro_batch": 16,
        "processes": 1,
        "strategy": "sandwich",
        "device": "cpu",
    }
    settings = finetune.Settings.model_validate({**options, "memory_mib": memory_mib})
    job = Job(
        folder=folder, data=DIGITS, finetune=settings, supernet=supernet, steps_per_epoch=STEPS, total_steps=STEPS
    )
    return train_here(job)


class Heard(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: dict[str, float] = {}

    def say(self, line: str) -> None:
        self.lines.append(line)

    def metrics(self, values: dict[str, float], step: int) -> None:
        self.values |= values


@pytest.mark.long
def test_steps_within_a_budget_have_the_losses_and_the_peak_that_were_promised(supernet: Path, tmp_path: Path) -> None:
    plain = trained(supernet, tmp_path / "plain", None)
    with pytest.raises(
        UserError, match=r"finetune\.memory_mib=1: a step needs .* MiB or more; raise the budget"
    ) as told:
        trained(supernet, tmp_path / "refused", 1)
    assert not read_lines(tmp_path / "refused" / "history.jsonl")
    least_mib, plain_mib = map(float, re.findall(r"([0-9.]+) MiB", str(told.value))[:2])
    budget_mib = 0.5 * (least_mib + plain_mib)
    heard = Heard()
    (tmp_path / "lean").mkdir()
    teller = PlanTeller(tmp_path / "lean", "fine-tuning", heard)
    lean = trained(supernet, tmp_path / "lean", budget_mib)
    losses = [{name: value for name, value in line.items() if name.startswith("loss")} for line in lean]
    assert losses == [{name: value for name, value in line.items() if name.startswith("loss")} for line in plain]
    plan = read_json(tmp_path / "lean" / "memory-0.json")
    assert lean[1]["step_predicted_mib"] == plan["peak_mib"] <= budget_mib < plan["plain_mib"]
    assert 0.85 * plan["peak_mib"] <= lean[1]["step_peak_mib"] <= 1.001 * plan["peak_mib"]
    teller.look(0)
    teller.measured(lean[1])
    assert re.search(r"wait on disk: \d+ MiB a step are predicted.* times the time", heard.lines[0])
    assert "MiB were predicted" in heard.lines[1]
    assert heard.values["step_predicted_mib"] == plan["peak_mib"]
