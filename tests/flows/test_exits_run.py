"""The whole pipeline on a space with exits: from the command line to exported files and the report."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import Command
from tests.flows.tiny import TINY

pytestmark = pytest.mark.slow

WISH = ("space.exits=auto", "space.resolution=frozen", "search=exact")


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Commands in an output folder of their own: others count what is in the shared one."""
    return Command(tmp_path_factory.mktemp("exits") / "out", (*TINY, *WISH))


@pytest.fixture(scope="module")
def report(command: Command) -> dict[str, Any]:
    return command("run")


def test_winners_have_exits(report: dict[str, Any], command: Command) -> None:
    (device,) = report["devices"]
    cards = [json.loads(file.read_text()) for file in (command.output / "exports" / "onnxruntime").glob("*.json")]
    rows = [row for card in cards if "architecture" in card for row in card["architecture"]["variables"]]
    assert any(row["choice"] != "last" for row in rows if row["name"] == "exit"), rows
    for winner in device["winners"]:
        assert winner["reason"] is None
        assert winner["max_difference"] <= 1e-4
    assert list((command.output / "exports" / "onnxruntime").glob("*.onnx"))
    assert "exit" in Path(report["report_html"]).read_text()


def test_one_subnet_is_shown_with_its_exit(
    report: dict[str, Any], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    budget_ms = report["devices"][0]["winners"][0]["budget_ms"]
    assert command("search", "--budget-ms", str(budget_ms))
    assert "exit" in capsys.readouterr().out


def test_the_page_of_a_supernet_shows_its_exits(command: Command) -> None:
    command("compile", "--view")
    assert "exit/" in (command.output / "supernet.html").read_text()
