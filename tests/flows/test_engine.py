"""The engine of a device in a whole run: chosen before anything is profiled, used by every stage behind it, and reported."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tasks.engine.chosen import ENGINE_FILE, ChosenEngine
from tasks.schemas.exports import EXPORTS_FILE, Exports
from tests.flows.conftest import Command
from tests.flows.tiny import TINY

pytestmark = pytest.mark.slow

QUICK = "engine.measure.patience=0"
FIXED = "device.onnxruntime.engine.graph=basic"
TUNED = ("engine.tune=true", "engine.rounds=3", "engine.random_subnets=1", "engine.measure.time_cap_ms=3", QUICK, FIXED)
BASIC = {"graph": "basic"}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(tmp_path_factory.mktemp("engine") / "out")


@pytest.fixture(scope="module")
def report(own: Command, trained_stages: Callable[[Path, Sequence[str]], None]) -> dict[str, Any]:
    """Trained before: an engine is chosen behind the training."""
    trained_stages(own.output, ["base", "compile", "finetune", "enumerate"])
    return own("run", *TUNED)


def folder(output: Path, stage: str) -> Path:
    (found,) = (output / "stages" / stage / "onnxruntime").iterdir()
    return found


def test_every_stage_behind_it_runs_models_with_the_chosen_engine(own: Command, report: dict[str, Any]) -> None:
    stages = [row["stage"] for row in report["stages"]]
    assert stages.index("compile") < stages.index("engine/onnxruntime") < stages.index("profile/onnxruntime")
    chosen = ChosenEngine.read(folder(own.output, "engine") / ENGINE_FILE)
    assert BASIC.items() <= chosen.chosen.items()
    exports = Exports.read(folder(own.output, "export") / EXPORTS_FILE)
    assert exports.device.engine.choices == chosen.chosen
    for card in exports.subnets:
        assert card.engine is not None
        assert card.engine.choices == chosen.chosen
        assert card.engine.speed_up == pytest.approx(chosen.speed_up)
        assert "graph=basic" in (folder(own.output, "export") / f"{card.digest}.md").read_text()


def test_the_report_says_what_the_engine_brings(own: Command, report: dict[str, Any]) -> None:
    (device,) = report["devices"]
    (card,) = [one for one in report["headline"] if one["label"] == "onnxruntime: engine"]
    assert card["value"] == f"{device['engine']['speed_up']:.2f} ×"
    assert "graph=basic" in card["note"]
    assert "Every latency on this page is with it" in (own.output / "report.html").read_text()


def test_the_same_command_again_times_nothing(own: Command, report: dict[str, Any]) -> None:
    assert all(row["cached"] for row in own("run", *TUNED)["stages"])
    states = {row["stage"]: row["state"] for row in own("run", *TUNED, "--dry-run")["dry_run"]}
    assert states.pop("report") == "to work"
    assert set(states.values()) == {"complete"}


def test_tables_of_other_engines_are_kept_apart(own: Command, report: dict[str, Any]) -> None:
    assert own("profile", *TUNED, "--dry-run")["plan"]["onnxruntime"]["to_measure"] == 0
    plain = own("profile", "--dry-run")["plan"]["onnxruntime"]
    assert (plain["known"], plain["to_measure"]) == (0, plain["operators"])


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("device.onnxruntime.engine.graph=fast", "engine option 'graph': got 'fast'; allowed: all, extended, basic"),
        ("engine.fixed.winograd=off", "engine: no option 'winograd' on this device"),
    ],
)
def test_an_unknown_choice_is_one_line(
    own: Command, report: dict[str, Any], capsys: pytest.CaptureFixture[str], word: str, line: str
) -> None:
    assert main(["profile", *TINY, f"output_dir={own.output}", word]) == 2
    (said,) = [one for one in capsys.readouterr().err.splitlines() if "engine of device" in one]
    assert line in said
