"""The engine of a device in a whole run: chosen before anything is profiled, used by every stage behind it, and reported."""

from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tasks.base.schemas.exports import EXPORTS_FILE, Exports
from tasks.measuring.runtime_options.settings import RUNTIME_OPTIONS_FILE, ChosenEngine
from tests.support.flows.fixtures import Command
from tests.support.flows.text_run import UNTUNED

BASIC = {"graph": "basic"}
Run = tuple[dict[str, Any], Command]


def folder(output: Path, stage: str) -> Path:
    (found,) = (output / "stages" / stage / "onnxruntime").iterdir()
    return found


def test_every_stage_behind_it_runs_models_with_the_chosen_engine(text_run: Run) -> None:
    report, own = text_run
    stages = [row["stage"] for row in report["stages"]]
    assert stages.index("compile") < stages.index("runtime_options/onnxruntime") < stages.index("profile/onnxruntime")
    chosen = ChosenEngine.read(folder(own.output, "runtime_options") / RUNTIME_OPTIONS_FILE)
    assert BASIC.items() <= chosen.chosen.items()
    exports = Exports.read(folder(own.output, "export") / EXPORTS_FILE)
    assert exports.device.engine.choices == chosen.chosen
    for card in exports.subnets:
        assert card.engine is not None
        assert card.engine.choices == chosen.chosen
        assert card.engine.speed_up == pytest.approx(chosen.speed_up)
        assert "graph=basic" in (folder(own.output, "export") / f"{card.digest}.md").read_text()


def test_the_report_says_what_the_engine_brings(text_run: Run) -> None:
    report, own = text_run
    (device,) = report["devices"]
    (card,) = [one for one in report["headline"] if one["label"] == "onnxruntime: engine"]
    assert card["value"] == f"{device['engine']['speed_up']:.2f} ×"
    assert "graph=basic" in card["note"]
    assert "Every latency on this page is with it" in (own.output / "report.html").read_text()


def test_the_same_command_again_times_nothing(text_run: Run) -> None:
    _, own = text_run
    assert all(row["cached"] for row in own("run")["stages"])
    states = {row["stage"]: row["state"] for row in own("run", "--dry-run")["dry_run"]}
    assert states.pop("report") == "to work"
    assert set(states.values()) == {"complete"}


def test_tables_of_other_engines_are_kept_apart(text_run: Run) -> None:
    _, own = text_run
    assert own("profile", "--dry-run")["plan"]["onnxruntime"]["to_measure"] == 0
    plain = Command(own.output, UNTUNED)("profile", "--dry-run")["plan"]["onnxruntime"]
    assert (plain["known"], plain["to_measure"]) == (0, plain["operators"])


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (
            "device.onnxruntime.runtime_options.graph=fast",
            "runtime option 'graph': got 'fast'; allowed: all, extended, basic",
        ),
        ("runtime_options.fixed.winograd=off", "no runtime option 'winograd' on this device"),
    ],
)
def test_an_unknown_choice_is_one_line(text_run: Run, capsys: pytest.CaptureFixture[str], word: str, line: str) -> None:
    assert main(["profile", *UNTUNED, f"output_dir={text_run[1].output}", word]) == 2
    (said,) = [one for one in capsys.readouterr().err.splitlines() if "runtime options of device" in one]
    assert line in said
