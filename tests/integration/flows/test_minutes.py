"""Runs with `minutes`: a plan is told and kept, the same call goes on with its choices, and too few minutes are one line."""

import shutil
from pathlib import Path

import pytest

from flows.cli import main
from flows.pipeline.complete import SERVER
from flows.pipeline.stages.minutes import PLAN_FILE, Plan
from tasks.base.artifacts import read_lines
from tasks.base.schemas.results import HISTORY_FILE
from tests.support.flows.databases import database_in
from tests.support.flows.fixtures import Command
from tests.support.flows.tiny import TINY

MINE = "finetune.epochs=8"
"""The default, which leaves it to the plan."""


@pytest.mark.long
def test_the_same_call_goes_on_with_its_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, words = Command(tmp_path / "out"), (MINE, "minutes=1.5")
    command("run", *words)
    assert "plan for 1.5 minutes" in " ".join(capsys.readouterr().err.split())
    (file,) = (command.output / "runs").glob(f"*/{PLAN_FILE}")
    plan = Plan.read(file)
    assert plan.seconds <= 90
    assert plan.chosen == ("finetune", "search")
    (trained,) = (command.output / "stages" / "finetune").iterdir()
    assert len(read_lines(trained / HISTORY_FILE)) == plan.settings["finetune.most_steps"]
    assert not (file.parent / "trial").exists()
    shutil.rmtree(trained)
    again = command("run", *words)
    assert "which goes on" in " ".join(capsys.readouterr().err.split())
    assert trained.is_dir()  # under the same key
    assert next(row["stage"] for row in again["stages"] if not row["cached"]) == "finetune"
    assert Plan.read(file) == plan
    monkeypatch.delenv(SERVER, raising=False)  # commands in this process have left theirs
    found = command("run", *words)
    assert all(row["cached"] for row in found["stages"])
    assert "plan for" not in capsys.readouterr().err  # found again


@pytest.mark.long
def test_too_few_minutes_are_one_line_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = (f"output_dir={tmp_path / 'out'}", f"tracking.uri={database_in(tmp_path)}")
    assert main(["run", *TINY, *places, MINE, "minutes=0.01"]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("autotailor:")]
    assert len(told) == 1
    assert "minutes: got 0.01; allowed: " in told[0]
    assert not (tmp_path / "out" / "stages").exists()
