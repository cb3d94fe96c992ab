"""`--dry-run`: what each device knows and would measure, and nothing is measured."""

from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import Command

pytestmark = pytest.mark.slow

DEVICES = "device=[ncnn,onnxruntime]"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(tmp_path_factory.mktemp("dry") / "out")


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
    shown = capsys.readouterr().out
    assert "nothing is measured" in shown
    assert "from the settings" in shown


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


def test_another_output_folder_shares_a_store_that_is_named(fresh: Command, tmp_path: Path) -> None:
    known = fresh("profile")["stages"][0]["result"]["lut"]["entries"]
    store = f"profile.store={fresh.output / 'luts'}"
    (stage,) = Command(tmp_path / "out")("profile", store)["stages"]
    assert not stage["cached"]
    assert (stage["result"]["known"], stage["result"]["measured_now"]) == (known, 0)
    assert not (tmp_path / "out" / "luts").exists()


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


def test_adapting_has_a_dry_run_too(fresh: Command, tmp_path: Path) -> None:
    import json

    from flows.cli import main

    (compiled,) = fresh("compile")["stages"]
    file = tmp_path / "plan.json"
    words = [f"supernet={compiled['folder']}/supernet", "device=[onnxruntime]", f"output_dir={tmp_path / 'out'}"]
    assert main(["adapt", *words, "--dry-run", "--json", str(file)]) == 0
    assert json.loads(file.read_text())["plan"]["onnxruntime"]["known"] == 0
    assert {folder.name for folder in (tmp_path / "out" / "stages").iterdir()} == {"enumerate"}
