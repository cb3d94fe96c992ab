"""Fronts that got worse between two reports."""

from typing import Any

import pytest

from flows.pages.worse import lost_points, worse_fronts

FRONT = [(1.0, 0.80), (2.0, 0.90)]


@pytest.mark.parametrize(
    ("now", "points"),
    [
        (FRONT, 0.0),
        ([(1.04, 0.80), (2.08, 0.90)], 0.0),
        ([(1.0, 0.78), (2.0, 0.88)], 2.0),
        ([(1.2, 0.80), (2.0, 0.90)], 40.0),
        ([(0.5, 0.90)], -5.0),
    ],
)
def test_a_front_loses_accuracy_at_the_latencies_that_it_had(now: list[tuple[float, float]], points: float) -> None:
    assert lost_points(FRONT, now) == pytest.approx(points)


def reported(*accuracies: float | None, **changes: Any) -> dict[str, Any]:
    """A report with a winner for each accuracy."""
    winners = [{"measured_ms": 1.0 + at, "accuracy": accuracy} for at, accuracy in enumerate(accuracies)]
    return {"model": "net", "data": "digits", "devices": [{"name": "board", "winners": winners}], **changes}


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (reported(0.8, 0.9), {}),
        (reported(0.809, 0.909), {}),
        (reported(0.82, 0.92), {"board": 2.0}),
        (reported(0.82, None), {"board": 2.0}),
        (reported(0.99, 0.99, model="other"), {}),
        (reported(0.99, 0.99, devices=[]), {}),
        (reported(None), {}),
        ({}, {}),
    ],
)
def test_reports_of_the_same_network_and_data_are_compared(before: dict[str, Any], expected: dict[str, float]) -> None:
    found = worse_fronts(before, reported(0.8, 0.9))
    assert found == {name: pytest.approx(points) for name, points in expected.items()}
