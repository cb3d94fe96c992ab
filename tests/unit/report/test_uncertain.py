"""Accuracies are told with their standard errors, and harm and small splits above all numbers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from flows.config import RunConfig
from flows.pipeline import pages
from flows.pipeline.pages import exported_rows, front_rows, report_rows
from flows.pipeline.run import Output, Run
from flows.pipeline.stages.spec import Context
from flows.pipeline.stages.winners import SEARCH
from tasks.base.schemas.exports import Exports
from tasks.base.schemas.predictions import ACCURACY_VALIDATION_FILE, AccuracyValidation, Uncertainty
from tasks.base.schemas.results import BeforeTuning, FinetuneResult
from tasks.base.schemas.winners import Front
from tasks.evaluation.subnets.record import graded
from tasks.evaluation.uncertainty import standard_error, too_small, uncertain
from tasks.report.headline import headline, remarks, terminal_table

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


def test_graded_scores_have_the_error_of_their_own_spread() -> None:
    rng = np.random.default_rng(0)
    close_N, right_N = rng.uniform(0.8, 0.9, MANY).astype(np.float16), rng.random(MANY) < 0.85
    assert graded(right_N) == graded(right_N.astype(np.float64)) == {}, "right and wrong answers are binomial"
    error = standard_error(0.85, MANY, **graded(close_N))
    assert error == pytest.approx(close_N.astype(np.float64).std() / MANY**0.5, rel=0.02)
    assert uncertain(0.85, 100, **graded(close_N)) == "85.0 ± 0.3 %"
    assert uncertain(0.85, 100) == "85.0 ± 3.6 %"
    assert 0 < graded(close_N)["spread"] < graded(close_N, right_N)["spread"] < 1


def test_with_answers_as_labels_the_report_says_how_far_the_inputs_limit_it() -> None:
    plain, report = remarks(_report(), None), _report(problem="fidelity")
    for row in report["devices"][0]["winners"]:
        row["spread"] = 0.5
    line = "3000 test inputs: scores are within ± 0.46 points, a difference below 0.65 points cannot be told"
    assert remarks(report, None)[0] == line
    assert line not in plain


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


KNOWN = Uncertainty(samples=FEW, predictor_points=1.2)


def _winners(**more: Any) -> Any:
    """Two of them, as parts of what stages return."""
    row = {
        "digest": "a", "budget_ms": 2.0, "predicted_ms": 1.0, "measured_ms": 1.0, "within_budget": True, "macs": 1,
        "parameters": 1, "resolution": 8, **more,
    }  # fmt: skip
    shares = (
        {"predicted_accuracy": 0.5, "measured_accuracy": 0.5},
        {"predicted_accuracy": 0.8, "measured_accuracy": 0.5},
    )
    return tuple(SimpleNamespace(**row, **share) for share in shares)


def test_prefect_tells_of_a_search_with_errors() -> None:
    refinement = SimpleNamespace(measured=1, failed=0, replaced=0, moved=0)
    front = cast("Front", SimpleNamespace(winners=_winners(), uncertainty=KNOWN, refinement=refinement))
    assert pages.front(front)["predicted accuracy"] == "50.0 ± 1.2 % to 80.0 ± 1.2 %"
    assert pages.front(front)["validation accuracy"] == pages.refined(front)["validation accuracy"] == "50.0 ± 8.6 %"
    row = front_rows(front)[0]
    assert (row["predicted accuracy"], row["validation accuracy"]) == ("50.0 ± 1.2 %", "50.0 ± 8.6 %")
    assert row["test accuracy"] == "–"


def test_prefect_tells_of_an_export_with_errors() -> None:
    card = SimpleNamespace(digest="a", samples={"test": FEW}, spread=1.0, files={}, adapted=None, macs=1, parameters=1)
    largest = SimpleNamespace(latency=SimpleNamespace(p50_ms=1.0), own_choices=None)
    parts: dict[str, Any] = {"subnets": (card,), "largest": largest, "uncertainty": KNOWN}
    exports = cast("Exports", SimpleNamespace(winners=_winners(accuracy={"test": 0.5}), **parts))
    assert pages.exported(exports)["test accuracy"] == "50.0 ± 8.6 %"
    row = exported_rows(exports)[1]
    assert (row["predicted accuracy"], row["test accuracy"]) == ("80.0 ± 1.2 %", "50.0 ± 8.6 %")
    base = {"accuracy": 0.5, "measured_ms": 1.0, "macs": 1, "parameters": 1, "resolution": 8}
    (row,) = report_rows({"base": base, "winners": [], "test_samples": FEW})
    assert row["test accuracy"] == "50.0 ± 8.6 %"


@pytest.mark.parametrize(("kind", "samples"), [("digits", FEW), ("glyph_scenes", None)])
def test_stages_know_the_predictors_error_and_the_samples_of_shares(
    kind: str, samples: int | None, tmp_path: Path
) -> None:
    stated = AccuracyValidation(
        samples=FEW, standard_error_points=8.6, mean_error_points=1.2, max_error_points=2.0, kendall_tau=None, rows=(),
        interactions=None,
    )  # fmt: skip
    stated.write(tmp_path / ACCURACY_VALIDATION_FILE)
    config = RunConfig.model_validate({"device": {"here": {"backend": "onnxruntime"}}, "data": {"kind": kind}})
    output = Output(stage="sensitivities", key="k", folder=tmp_path, result={}, seconds=0.0, cached=False)
    at = Context(cast("Run", None), config, SEARCH, "here", {"sensitivities": {"": output}})
    assert at.uncertainty("here") == Uncertainty(samples=samples, predictor_points=1.2)
