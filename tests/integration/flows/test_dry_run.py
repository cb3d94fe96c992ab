"""`--dry-run`: which stages would be worked and why; what each device knows and would measure. Nothing is measured."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tests.support.damage import flip
from tests.support.flows.fixtures import Command
from tests.support.flows.prefect_server import own_rows
from tests.support.flows.tiny import TINY

DEVICES = "device=[ncnn,onnxruntime]"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(tmp_path_factory.mktemp("dry") / "out")


@pytest.mark.long
def test_a_dry_run_measures_nothing_and_the_store_is_told_apart_by_device(
    fresh: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    result = fresh("profile", DEVICES, "--dry-run")
    assert {folder.name for folder in (fresh.output / "stages").iterdir()} == {"compile", "enumerate"}
    assert not (fresh.output / "luts").exists()
    (enumerated,) = result["stages"]
    total = enumerated["result"]["unique_operators"]
    for row in result["plan"].values():
        assert (row["operators"], row["known"], row["to_measure"]) == (total, 0, total)
        assert row["estimated_s"] > 0
        assert row["estimated_from"] == "settings"
    assert len({row["store"] for row in result["plan"].values()}) == 2
    (shown_in_prefect,) = own_rows("artifacts/latest", artifacts={"key": {"any_": ["plan"]}})
    rows = json.loads(shown_in_prefect["data"])
    assert [(row["device"], row["to measure"]) for row in rows] == [
        (name, str(total)) for name in ("ncnn", "onnxruntime")
    ]
    shown = capsys.readouterr().out
    assert "nothing is measured" in shown
    assert "from the settings" in shown


@pytest.mark.long
@pytest.mark.parametrize(("method", "source"), [("in situ", "settings"), ("alone", "earlier measurements")])
def test_after_profiling_a_larger_space_has_less_to_measure_than_operators(
    fresh: Command, method: str, source: str
) -> None:
    words = (f"profile.method='{method}'",)
    (profiled,) = fresh("profile", *words)["stages"]
    plan = fresh("profile", "space.resolution=[16,24,32]", *words, "--dry-run")["plan"]["onnxruntime"]
    assert plan["known"] == profiled["result"]["measured_now"]
    assert plan["to_measure"] == plan["operators"] - plan["known"] > 0
    assert plan["estimated_from"] == source
    assert (plan["subnets"] is None) == (method == "alone")
    (larger,) = fresh("profile", "space.resolution=[16,24,32]", *words)["stages"]
    assert (larger["result"]["known"], larger["result"]["measured_now"]) == (plan["known"], plan["to_measure"])


@pytest.mark.long
def test_another_output_folder_shares_a_store_that_is_named(fresh: Command, tmp_path: Path) -> None:
    known = fresh("profile")["stages"][0]["result"]["lut"]["entries"]
    store = f"profile.store={fresh.output / 'luts'}"
    (stage,) = Command(tmp_path / "out")("profile", store)["stages"]
    assert not stage["cached"]
    assert (stage["result"]["known"], stage["result"]["measured_now"]) == (known, 0)
    assert not (tmp_path / "out" / "luts").exists()


@pytest.mark.long
def test_measuring_again_works_a_complete_stage_and_what_follows_sees_the_new_table(fresh: Command) -> None:
    def stage(*overrides: str) -> dict[str, Any]:
        (found,) = fresh("profile", *overrides)["stages"]
        return found

    before = stage()
    files = {file.name: file.read_bytes() for file in Path(before["folder"], "lut").iterdir()}
    again = stage("profile.remeasure=[all]")
    assert before["cached"]
    assert not again["cached"]
    assert again["folder"] == before["folder"]
    assert again["result"]["measured_now"] == before["result"]["lut"]["entries"]
    assert {file.name: file.read_bytes() for file in Path(before["folder"], "lut").iterdir()} != files
    assert stage()["cached"]
    assert [path.name for path in Path(before["folder"]).parent.iterdir() if path.suffix] == []


@pytest.mark.long
def test_adapting_has_a_dry_run_too(fresh: Command, tmp_path: Path) -> None:

    (compiled,) = fresh("compile")["stages"]
    file = tmp_path / "plan.json"
    words = [f"supernet={compiled['folder']}/supernet", "device=[onnxruntime]", f"output_dir={tmp_path / 'out'}"]
    assert main(["retarget", *words, "--dry-run", "--json", str(file)]) == 0
    assert json.loads(file.read_text())["plan"]["onnxruntime"]["known"] == 0
    assert {folder.name for folder in (tmp_path / "out" / "stages").iterdir()} == {"enumerate"}


def states(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """State and reason of each stage."""
    return {row["stage"]: (row["state"], row["why"]) for row in result["dry_run"]}


def test_in_a_fresh_folder_every_stage_would_be_worked_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")  # nobody is asked
    assert main(["run", *TINY, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "0 of 12 stages are complete" in shown
    assert re.search(r"latency/onnxruntime\s+. to work . about \d+ s", shown)
    assert shown.count("no folder yet") == 11
    assert re.search(r"finetune\s+. to work . –", shown)
    assert "–: not known before its first run" in shown
    assert "always made anew" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_after_a_run_every_stage_is_complete(command: Command, finished: dict[str, Any]) -> None:
    before = {path: path.stat().st_mtime_ns for path in command.output.rglob("*")}
    found = command("run", "--dry-run")
    own = {row["stage"] for row in finished["stages"]}
    assert own
    assert {row["stage"] for row in found["dry_run"] if row["state"] == "complete"} == own
    assert all(Path(row["folder"], "result.json").exists() for row in found["dry_run"] if row["stage"] in own)
    assert {path: path.stat().st_mtime_ns for path in command.output.rglob("*")} == before


def test_a_training_takes_as_long_as_the_last_one_did_by_epochs(command: Command, finished: dict[str, Any]) -> None:
    took = {row["stage"]: row["seconds"] for row in finished["stages"]}
    rows = {row["stage"]: row for row in command("run", "finetune.epochs=3", "--dry-run")["dry_run"]}
    assert rows["finetune"]["state"] == "to work"
    assert rows["finetune"]["last_s"] == pytest.approx(3 * took["finetune"])
    assert rows["sensitivities"]["last_s"] == pytest.approx(took["sensitivities"])
    assert rows["base"]["last_s"] is None


@pytest.mark.long
def test_profiling_a_further_device_takes_as_long_as_what_it_does_not_know(
    command: Command, finished: dict[str, Any]
) -> None:
    words = ("device=[ncnn]", "runtime_options.tune=true")
    rows = {row["stage"]: row for row in command("run", *words, "--dry-run")["dry_run"]}
    assert rows["runtime_options/ncnn"]["device_s"] == 60
    assert rows["profile/ncnn"]["state"] == "to work"
    plan = command("profile", *words, "--dry-run")["plan"]["ncnn"]
    assert rows["profile/ncnn"]["device_s"] == plan["estimated_s"] > 0


@pytest.mark.long
def test_reasons_are_changed_settings_damage_what_comes_before_and_what_is_unfinished(tmp_path: Path) -> None:
    own = Command(tmp_path / "own")
    own("enumerate")
    assert {state for state, _ in states(own("enumerate", "--dry-run")).values()} == {"complete"}
    changed = states(own("enumerate", "space.resolution=[20,24,32]", "--dry-run"))
    assert changed["compile"] == ("to work", "settings changed: space.resolution [24,32] → [20,24,32]")
    assert changed["enumerate"] == ("depends", "on what compile will give")
    copy = Command(Path(shutil.copytree(own.output, tmp_path / "out")))
    (operators,) = copy.output.glob("stages/enumerate/*/operators.json")
    flip(operators)
    damaged = states(copy("enumerate", "--dry-run"))
    assert damaged["compile"][0] == "complete"
    assert damaged["enumerate"] == ("to work", "damaged: operators.json has another content")
    (compiled,) = copy.output.glob("stages/compile/*")
    compiled.rename(compiled.with_name(f"{compiled.name}.partial"))
    unfinished = states(copy("enumerate", "--dry-run"))
    assert unfinished["compile"] == ("to work", "unfinished; goes on from there")
    assert unfinished["enumerate"] == ("depends", "on what compile will give")
