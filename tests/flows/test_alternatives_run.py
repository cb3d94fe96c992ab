"""The whole pipeline on a space with alternatives to blocks: from the command line to exported files and the report."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import Command
from tests.flows.tiny import TINY

pytestmark = pytest.mark.slow

WISH = (
    "space.alternatives=[merged,pruned_0.5,low_rank_0.5,separable]",
    "space.resolution=frozen",
    "search=exact",
    "finetune.random_subnets=2",
)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Commands in an output folder of their own: others count what is in the shared one."""
    return Command(tmp_path_factory.mktemp("alternatives") / "out", (*TINY, *WISH))


@pytest.fixture(scope="module")
def report(command: Command) -> dict[str, Any]:
    return command("run")


def test_winners_have_other_blocks(report: dict[str, Any], command: Command) -> None:
    (device,) = report["devices"]
    cards = [json.loads(file.read_text()) for file in (command.output / "exports" / "onnxruntime").glob("*.json")]
    chosen = {row["choice"] for card in cards if "architecture" in card for row in card["architecture"]["variables"]}
    assert chosen & {"merged_2", "merged_3", "pruned_0.5", "low_rank_0.5", "separable"}, chosen
    for winner in device["winners"]:
        assert winner["reason"] is None
        assert winner["max_difference"] <= 1e-4
    assert list((command.output / "exports" / "onnxruntime").glob("*.onnx"))
    assert (
        "merged_2" in Path(report["report_html"]).read_text() or "low_rank" in Path(report["report_html"]).read_text()
    )


def test_one_subnet_is_shown_with_its_blocks(
    report: dict[str, Any], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report
    budget_ms = report["devices"][0]["winners"][0]["budget_ms"]
    found = command("search", "--budget-ms", str(budget_ms))
    assert "block " in capsys.readouterr().out
    assert found
