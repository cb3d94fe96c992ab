"""Accuracies are told with their standard errors, and harm and small splits above all numbers."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tasks.evaluation.uncertainty import standard_error, too_small, uncertain
from tasks.report.headline import headline, remarks
from tasks.report.terminal import terminal_table
from tasks.schemas.results import BeforeTuning, FinetuneResult

FEW, MANY = 30, 3000


def test_an_accuracy_has_its_standard_error() -> None:
    assert uncertain(0.5, FEW) == "50.0 ± 8.6 %"
    assert uncertain(1.0, FEW) != "100.0 ± 0.0 %", "all of thirty right is not certain"
    assert uncertain(0.912, None) == "91.2 %"
    assert uncertain(None, FEW) == "–"


def test_a_split_is_too_small_where_neighbours_differ_by_less_than_their_errors() -> None:
    shares = [0.5, 0.56, 0.6, 0.95]
    line = too_small("test", FEW, shares)
    assert line is not None
    assert line.startswith(
        "30 test samples are too few to tell winners apart: accuracies are within ± 8.6 points, and 2 of 3"
    )
    assert too_small("test", MANY, shares) is None
    assert too_small("test", FEW, [0.1, 0.5, 0.95]) is None
    assert too_small("test", None, shares) is None
    assert standard_error(0.5, MANY) < standard_error(0.5, FEW)


def _report(**more: Any) -> dict[str, Any]:
    winners = [
        {"digest": name, "accuracy": share, "measured_accuracy": share}
        for name, share in zip("abc", (0.5, 0.53, 0.56), strict=True)
    ]
    device = {"name": "board", "winners": winners}
    return {"devices": [device], "samples": {"validation": FEW, "test": MANY}, **more}


@pytest.mark.parametrize("lost", [0.0, 12.0])
def test_remarks_tell_of_harm_and_of_splits_that_are_too_small(lost: float) -> None:
    before = BeforeTuning(largest_validation_accuracy=1.0, change_points=-lost, error_points=3.5)
    found = remarks(_report(), cast("FinetuneResult", SimpleNamespace(before=before)))
    assert [line for line in found if "costs the largest SubNet 12.0 ± 3.5 points" in line] == found[:-1]
    assert len(found) == (2 if lost else 1)
    assert found[-1].startswith("board: 30 validation samples are too few")
    assert "test samples" not in found[-1]


def test_the_first_card_and_the_terminal_say_them() -> None:
    report = _report(model="net", score="accuracy", accuracies={"base model, test": 0.5}, streams=[])
    report["supernet"] = {"distinct": "7", "unique_operators": 3}
    report |= {"devices": [], "samples": {"validation": FEW, "test": FEW}}
    report["headline"] = headline(report, 1.0)
    assert report["headline"][0]["value"] == "50.0 ± 8.6 %"
    report["remarks"] = ["board: a remark"]
    assert "board: a remark" in str(terminal_table(report)[0].caption)
