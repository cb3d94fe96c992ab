"""How long a stage will take, as a dry run tells it before."""

import json
from pathlib import Path

import pytest

from flows.pipeline.results import SECONDS
from flows.pipeline.stages.forecast import Expectation, _lasted
from tasks.base.artifacts import RESULT_FILE, MadeFrom
from tasks.base.artifacts.folders import MADE_FROM_FILE


def finished(folder: Path, seconds: float, **settings: int) -> Path:
    """A complete folder of a stage that took so long."""
    folder.mkdir()
    (folder / RESULT_FILE).write_text(json.dumps({SECONDS: seconds}))
    (folder / MADE_FROM_FILE).write_text(MadeFrom(settings=settings, code="c").model_dump_json())
    return folder


@pytest.mark.parametrize(("epochs", "expected_s"), [(None, 10.0), (6, 30.0), (0, 0.0)])
def test_an_earlier_run_tells_how_long_so_many_epochs_take(
    epochs: int | None, expected_s: float, tmp_path: Path
) -> None:
    assert next(_lasted([finished(tmp_path / "a", 10.0, epochs=2)], epochs)) == expected_s


def test_what_was_trained_in_no_epoch_and_what_is_damaged_tell_nothing_of_epochs(tmp_path: Path) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / RESULT_FILE).write_text("{")
    folders = [tmp_path / "gone", tmp_path / "damaged", finished(tmp_path / "a", 4.0, epochs=0)]
    assert list(_lasted(folders, 3)) == [4.0]
    assert list(_lasted([], 3)) == []


def test_the_table_tells_what_is_known_of_the_time() -> None:
    assert Expectation("base", "complete", "took 3.0 s", last_s=3.0).time == ""
    assert Expectation("latency/ncnn", "to work", "", device_s=2.4, last_s=9.0).time == "about 2 s"
    assert Expectation("base", "depends", "", last_s=9.0).time == "about 9 s*"
    assert Expectation("base", "to work", "").time == "–"
