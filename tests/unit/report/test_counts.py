"""Counts in reports are of what they say that they count."""

from types import SimpleNamespace
from typing import Any, cast

from tasks.measuring.lut import Entry, Lut
from tasks.measuring.runtime_options.timing import Comparison
from tasks.report.gather import _lut

TIMES = {"p50_ms": 0.5, "p90_ms": 0.6, "spread": 0.1, "n": 20, "noisy": False}
NO_TIMES = {"p50_ms": None, "p90_ms": None, "spread": None, "n": 1, "noisy": False}


def entry(digest: str, state: str, **more: Any) -> Entry:
    """An operator of a table."""
    named = {
        "digest": digest,
        "operator": "Relu",
        "feature": "{}",
        "state": state,
        "measured_at": "2026-01-01T00:00:00+00:00",
    }
    return Entry(**cast("Any", {**named, **(TIMES if state == "ok" else NO_TIMES), **more}))


def test_fused_operators_have_not_failed() -> None:
    rows = [
        entry("a", "ok"),
        entry("b", "fused", method="in situ"),
        entry("c", "fused", method="in situ"),
        entry("d", "failed", reason="no such layer"),
    ]
    table = cast("Lut", SimpleNamespace(entries=lambda: rows, summary=dict))
    (row,) = _lut(table)["operators"]
    assert (row["count"], row["ok"], row["fused"], row["failed"]) == (4, 1, 2, 1)


def test_a_choice_that_costs_time_saves_none() -> None:
    slower = Comparison(ratio=1.06, low=1.05, high=1.07, largest=1.06, pairs=8)
    assert slower.rejection(0.02) == "takes 6.0% more time; needed: 2% less"
    assert slower.model_copy(update={"ratio": 0.99}).rejection(0.02) == "saves 1.0% of the time; needed: 2%"
