"""The arithmetic of comparing winners with baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.search.baselines import stage as comparison
from tasks.search.baselines.stage import Point, picks, taken

SHARES = st.integers(0, 1000).map(lambda n: n / 1000)
TIMES = st.integers(1, 400).map(lambda n: n / 8)
POINTS = st.lists(st.builds(Point, TIMES, SHARES, SHARES), min_size=1, max_size=12)
BUDGETS = st.lists(TIMES, min_size=1, max_size=8)


@dataclass(frozen=True)
class Case:
    """Two fronts of three networks each, by hand."""

    winners = (Point(1.0, 0.5, 0.50), Point(2.0, 0.7, 0.68), Point(4.0, 0.8, 0.80))
    others = (Point(1.5, 0.5, 0.48), Point(3.0, 0.6, 0.62), Point(4.0, 0.8, 0.80))
    budgets_ms = (1.0, 2.0, 3.0, 4.0)


def compare(
    winners: Sequence[Point], baselines: Mapping[str, Sequence[Point]], budgets_ms: Sequence[float]
) -> dict[str, Any]:
    """As it is stored."""
    return comparison.compare(winners, baselines, budgets_ms).to_json()


def test_a_comparison_by_hand() -> None:
    found = compare(Case.winners, {"a": Case.others}, Case.budgets_ms)
    assert [row["winners"] for row in found["budgets"]] == [0.50, 0.68, 0.68, 0.80]
    assert [row["baselines"]["a"] for row in found["budgets"]] == [None, 0.48, 0.62, 0.80]
    assert found["above_every"] == 0.75
    assert found["not_below_any"] == 1.0
    assert (found["reference_ms"], found["reference_accuracy"]) == (4.0, 0.48)
    row = found["baselines"]["a"]
    assert row["accuracy_gain_points"] == pytest.approx((20 + 6 + 0) / 3)
    assert row["budgets_of_both"] == 3
    assert row["latency_gain"] == pytest.approx((1.5 / 1.0 * 3.0 / 2.0 * 4.0 / 4.0) ** (1 / 3))
    assert row["not_reached"] == 0
    ours, theirs = 1.0 * 0.02 + 2.0 * 0.20, 1.5 * 0.0 + 1.0 * 0.14
    assert found["hypervolume"] == pytest.approx(ours)
    assert row["hypervolume_ratio"] == pytest.approx(ours / theirs)


def test_a_network_is_chosen_by_other_images_than_it_is_judged_by() -> None:
    lucky = (Point(1.0, 0.6, 0.5), Point(2.0, 0.5, 0.9))
    assert picks(lucky) == [lucky[0]]
    found = compare([Point(1.0, 0.6, 0.6)], {"lucky": lucky}, (2.0,))
    assert found["above_every"] == 1.0
    assert found["baselines"]["lucky"]["accuracy_gain_points"] == pytest.approx(10)


def test_what_no_winner_reaches_is_counted_and_not_averaged() -> None:
    found = compare([Point(1.0, 0.6, 0.6)], {"a": [Point(2.0, 0.5, 0.5), Point(3.0, 0.9, 0.9)]}, (3.0,))
    assert found["baselines"]["a"]["latency_gain"] == pytest.approx(2.0)
    assert found["baselines"]["a"]["not_reached"] == 1
    assert found["above_every"] == found["not_below_any"] == 0.0


@given(POINTS, TIMES)
def test_a_budget_takes_the_best_within_it(points: list[Point], budget_ms: float) -> None:
    within = [point for point in points if point.ms <= budget_ms]
    own = taken(picks(points), budget_ms)
    if not within:
        assert own is None
        return
    assert own is not None
    assert own in within
    assert own.known == max(point.known for point in within)
    assert own.ms == min(point.ms for point in within if point.known == own.known)


@given(POINTS, BUDGETS)
def test_a_method_gains_nothing_over_itself(points: list[Point], budgets_ms: list[float]) -> None:
    found = compare(points, {"itself": list(reversed(points))}, budgets_ms)
    row = found["baselines"]["itself"]
    nothing = sum(all(point.ms > budget_ms for point in points) for budget_ms in budgets_ms)
    assert found["above_every"] == row["above"] == 0
    assert found["not_below_any"] == row["not_below"] == 1
    assert row["budgets_of_both"] == len(budgets_ms) - nothing
    assert row["accuracy_gain_points"] in (None, 0)
    assert row["latency_gain"] == pytest.approx(1)
    assert row["not_reached"] == 0
    assert row["hypervolume_ratio"] in (None, 1)


@given(POINTS, POINTS, BUDGETS, st.sampled_from([0.25, 2.0, 8.0]))
def test_the_unit_of_time_does_not_matter(
    winners: list[Point], others: list[Point], budgets_ms: list[float], factor: float
) -> None:
    found = compare(winners, {"a": others}, budgets_ms)
    scaled = [[point._replace(ms=factor * point.ms) for point in points] for points in (winners, others)]
    again = compare(scaled[0], {"a": scaled[1]}, [factor * budget_ms for budget_ms in budgets_ms])
    assert again["above_every"] == found["above_every"]
    for name, value in found["baselines"]["a"].items():
        assert again["baselines"]["a"][name] == pytest.approx(value)


@given(POINTS, BUDGETS, st.sampled_from([0.0, 0.125, 0.5]), st.sampled_from([1.0, 2.0, 4.0]))
def test_gains_are_what_they_are_made_to_be(
    points: list[Point], budgets_ms: list[float], better: float, faster: float
) -> None:
    shifted = [Point(point.ms, point.known, point.true + better) for point in points]
    gain = compare(shifted, {"a": points}, budgets_ms)["baselines"]["a"]["accuracy_gain_points"]
    assert gain is None or gain == pytest.approx(100 * better, abs=1e-9)
    quick = [point._replace(ms=point.ms / faster) for point in points]
    row = compare(quick, {"a": points}, budgets_ms)["baselines"]["a"]
    assert row["latency_gain"] == pytest.approx(faster)


@given(POINTS, POINTS, BUDGETS, POINTS)
def test_more_baselines_leave_fewer_budgets_above_every_one(
    winners: list[Point], some: list[Point], budgets_ms: list[float], more: list[Point]
) -> None:
    one = compare(winners, {"a": some}, budgets_ms)
    both = compare(winners, {"a": some, "b": more}, budgets_ms)
    assert both["above_every"] <= one["above_every"] == one["baselines"]["a"]["above"]
    assert both["not_below_any"] <= one["not_below_any"]
    assert both["baselines"]["a"]["accuracy_gain_points"] == one["baselines"]["a"]["accuracy_gain_points"]


@given(POINTS, POINTS, BUDGETS)
def test_what_nobody_would_take_changes_nothing(
    winners: list[Point], others: list[Point], budgets_ms: list[float]
) -> None:
    fastest = min(others, key=lambda one: (one.ms, -one.known))
    useless = fastest._replace(ms=fastest.ms + 1, true=1.0)
    found = compare(winners, {"a": others}, budgets_ms)["baselines"]["a"]
    again = compare(winners, {"a": [*others, useless]}, budgets_ms)["baselines"]["a"]
    assert {**again, "points": found["points"]} == found


def test_a_baseline_that_could_not_be_measured_is_below() -> None:
    found = compare(Case.winners, {"failed": []}, Case.budgets_ms)
    assert found["above_every"] == found["baselines"]["failed"]["above"] == 1.0
    row = found["baselines"]["failed"]
    assert (row["hypervolume_ratio"], row["accuracy_gain_points"], row["latency_gain"]) == (None, None, None)
    assert (row["points"], row["not_reached"], row["budgets_of_both"]) == (0, 0, 0)
