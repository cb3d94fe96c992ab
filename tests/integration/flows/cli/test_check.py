"""Typos in the space, impossible resolutions, limits and budgets that no SubNet keeps are told before anything is trained."""

import re
from pathlib import Path

import pytest

from flows.cli import main
from tests.support.flows.tiny import TINY

NETWORKS = """
import torch
from torch import nn

class Spectrum(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)

class Branches(nn.Module):
    def forward(self, x):
        return torch.relu(x) if x.sum() > 0 else -x

def network(odd, num_classes, in_chans):
    body = (nn.Conv2d(in_chans, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(odd, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))

def spectrum(num_classes, in_chans):
    return network(Spectrum(), num_classes, in_chans)

def branches(num_classes, in_chans):
    return network(Branches(), num_classes, in_chans)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("space.stage.9.depth=[0]",), "space: no variable matches 'stage.9.depth'"),
        (("search.limits.macs=1000",), "search.limits.macs: macs=1000 is below the least of any SubNet"),
        (("search.limits.memory_mib=0.001",), "search.limits.memory_mib: memory_mib=0.001 is below the least"),
        (("search.limits.parameters=10",), "search.limits.parameters: parameters=10 is below the least"),
        (("space.resolution=[32,64]",), "space: resolution 64: larger than the network's own, 32"),
    ],
)
def test_what_cannot_work_is_told_before_training(
    words: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert line in refused([*words, f"output_dir={output}"], capsys)
    assert_nothing_was_worked(output)


def test_a_budget_far_below_the_smallest_subnet_is_told_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    line = refused(["search.budgets_ms=[1e-5,100]", f"output_dir={output}"], capsys)
    assert re.search(
        r"search\.budgets_ms: 1e-05 ms is far below the smallest SubNet, [\d.e-]+ ms on 'onnxruntime'", line
    )
    assert_nothing_was_worked(output)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "line"),
    [("spectrum", "cannot be exported to ONNX"), ("branches", "the compiled network answers otherwise")],
)
def test_a_network_that_cannot_be_compiled_is_told_before_training(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "networks_for_checks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    model = ["model=callable", f"model.name=networks_for_checks:{name}", "space={}", "output_dir=out"]
    assert line in refused(model, capsys)
    assert_nothing_was_worked(tmp_path / "out")


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a search that ends with 2."""
    own = [word for word in TINY if not ("space={}" in words and word.startswith(("model", "space")))]
    assert main(["search", *own, *words]) == 2
    (line,) = (text for text in capsys.readouterr().err.splitlines() if text.startswith("autotailor: "))
    return line


def assert_nothing_was_worked(output: Path) -> None:
    """Neither a base network was trained nor an operator measured."""
    assert not list(output.glob("stages/base/*"))
    assert not list(output.glob("luts/*"))
