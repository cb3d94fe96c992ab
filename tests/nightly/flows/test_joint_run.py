"""A run that searches SubNets together with their devices: its result, its table, and a winner as a file for `partition`."""

import json
from pathlib import Path
from typing import Any

import pytest

from adaptive_runtime.bundle.chains import PARTS_FILE, PartsManifest
from flows.cli import main
from tasks.base.schemas.placed import ChosenSubNet, JointFront
from tests.support.flows.fixtures import Command
from tests.support.flows.tiny import TINY

DEVICES = "[onnxruntime,torch]"
PLACEMENT = (
    f"search.placement={DEVICES}",
    "search.partition.coding_images=16",
    "search.partition.bandwidth_mbps=1000",
    "search.partition.latency_ms=0.01",
)
Report = dict[str, Any]


@pytest.fixture(scope="module")
def both(finished: Report, command: Command) -> Command:
    """Commands in the folder of the finished run, for its device and another one."""
    assert finished["devices"]
    words = (f"device={DEVICES}" if word.startswith("device=") else word for word in TINY)
    return Command(command.output, (*words, *PLACEMENT))


@pytest.fixture(scope="module")
def searched(both: Command) -> Report:
    return both("search")


def test_a_search_over_two_devices_has_a_plan_for_every_budget(searched: Report) -> None:
    found = JointFront.model_validate({name: value for name, value in searched["joint"].items() if name != "seconds"})
    assert found.devices == ("onnxruntime", "torch")
    assert set(found.coding_points) == {"fp32", "fp16", "int8"}
    assert all(len(points) == found.pieces + 1 for points in found.coding_points.values())
    for row in found.winners:
        assert row.predicted_ms <= row.budget_ms
        assert row.predicted_ms <= (row.home_ms or row.predicted_ms) * (1 + 1e-9)
    assert [stage["stage"].split("/")[0] for stage in searched["stages"]] == ["search", "search"]


def test_a_budgets_winner_is_shown_and_a_file_that_partition_takes(
    both: Command, searched: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget_ms = searched["joint"]["winners"][4]["budget_ms"]
    file = tmp_path / "both.json"
    (row,) = both("search", "--budget-ms", str(budget_ms), "--to", str(file))["chosen"]
    assert row["predicted_ms"] <= budget_ms
    shown = capsys.readouterr().out
    assert "onnxruntime + torch" in shown
    assert row["digest"] in shown
    chosen = ChosenSubNet.read(file)
    assert chosen.plan is not None
    assert chosen.subnet.digest == row["digest"]
    words = [f"output_dir={both.output}", f"subnet={file}", f"partition.devices={DEVICES}"]
    words += ["partition.bandwidth_mbps=[1000]", "partition.latency_ms=0.01", f"partition.parts={tmp_path / 'parts'}"]
    assert main(["partition", *words, "--json", str(tmp_path / "plan.json")]) == 0
    planned = json.loads((tmp_path / "plan.json").read_text())
    assert planned["network"] == row["digest"]
    assert planned["plans"][0]["latency_ms"] <= row["predicted_ms"] * (1 + 1e-6)
    assert PartsManifest.read(tmp_path / "parts" / PARTS_FILE).digest == row["digest"]
