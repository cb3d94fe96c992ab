"""Budgets that a search made go to where the measured front has SubNets; budgets of a user stay."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.base.schemas.stored import Predicted
from tasks.base.schemas.winners import Front, Hypervolume
from tasks.evaluation.subnets import Accuracy
from tasks.search import Settings as SearchSettings
from tasks.search.refine.known import Known, best, moved, settled

MARGIN = 0.01
ONE = Predicted(
    digest="one", config={}, predicted_ms=1.0, predicted_accuracy=0.5, predicted_score=0.5, macs=1, parameters=1
)


def known(*rows: tuple[float, int]) -> list[Known]:
    """Candidates by latency [ms] and right answers of 1,000."""
    return [Known(f"{n}", (ms,), (ms,), Accuracy(correct, 1000, 1.0)) for n, (ms, correct) in enumerate(rows)]


def latencies(rows: list[Known], budgets_ms: list[float]) -> list[float]:
    """Of the winners [ms]."""
    return [best(rows, (budget_ms,), MARGIN).ms[0] for budget_ms in budgets_ms]


def test_a_budget_that_buys_nothing_goes_to_the_subnet_that_adds_most() -> None:
    rows = known((1.0, 500), (1.2, 600), (1.3, 605), (2.0, 700), (2.5, 650), (4.0, 800))
    found = moved(rows, [1.1, 2.1, 2.8, 3.4, 4.2], MARGIN)
    assert latencies(rows, found) == [1.0, 1.2, 1.3, 2.0, 4.0]
    assert {1.1, 2.1, 4.2} < set(found)
    assert latencies(rows, moved(rows, [1.1, 2.1, 2.8, 4.2], MARGIN)) == [1.0, 1.2, 2.0, 4.0]


def test_a_budget_that_no_subnet_keeps_goes_elsewhere_or_is_left_out() -> None:
    rows = known((1.0, 500), (1.2, 600), (2.0, 700))
    found = moved(rows, [0.9, 1.005, 1.3, 2.1], MARGIN)
    assert latencies(rows, found) == [1.0, 1.2, 2.0]
    assert found[1:] == [1.3, 2.1]
    assert found[0] == 1.05  # as far above the fastest as the lowest budget of a search
    assert moved(rows, [1.1, 1.3, 2.1, 3.0], MARGIN) == [1.1, 1.3, 2.1, 3.0]
    assert moved([], [1.0, 2.0], MARGIN) == [1.0, 2.0]


def test_of_equally_accurate_subnets_one_has_a_budget() -> None:
    slower = Known("slower", (1.5,), (1.5,), Accuracy(600, 1000, 0.5))
    rows = [*known((1.0, 500), (1.2, 600), (3.0, 700)), slower]
    assert best(rows, (2.0,), MARGIN) == slower  # its loss is smaller
    assert latencies(rows, moved(rows, [1.1, 2.0, 3.1, 4.0], MARGIN)) == [1.0, 1.5, 3.0, 3.0]


@pytest.mark.parametrize(
    ("settings", "devices", "is_moved"), [({}, 1, True), ({"budgets_ms": (1.1, 2.1, 2.8)}, 1, False), ({}, 2, False)]
)
def test_budgets_of_a_user_and_those_of_several_devices_stay(
    settings: dict[str, object], devices: int, is_moved: bool
) -> None:
    asked = SearchSettings.model_validate(settings).model_dump(mode="json")
    front = Front(
        device="here",
        winners=(),
        front=(),
        fastest=ONE,
        largest=ONE,
        baseline=(),
        hypervolume=Hypervolume(value=0.0, reference_ms=1.0, reference_accuracy=0.0),
        evaluations=0,
        evaluated=0,
        whole_front=None,
        settings=asked,
    )
    rows, budgets_ms = known((1.0, 500), (1.2, 600), (2.0, 700)), [(ms,) * devices for ms in (1.1, 2.1, 2.8)]
    found = settled([front] * devices, rows, budgets_ms, MARGIN)
    assert (found != budgets_ms) == is_moved


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 1000)), min_size=1, max_size=12),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=8, unique=True),
)
def test_every_budget_is_kept_and_no_winner_is_lost(rows: list[tuple[float, int]], budgets_ms: list[float]) -> None:
    every = known(*rows)
    found = moved(every, budgets_ms, MARGIN)
    assert found == sorted(found)
    assert len(found) <= len(budgets_ms)
    if min(one.ms[0] for one in every) > max(budgets_ms):
        assert found == sorted(budgets_ms), "the fastest SubNet wins, though it keeps none"
        return
    winners = [best(every, (budget_ms,), MARGIN) for budget_ms in found]
    assert all(one.ms[0] <= budget_ms for one, budget_ms in zip(winners, found, strict=True))
    assert all(a.accuracy.share <= b.accuracy.share for a, b in itertools.pairwise(winners))
    kept = [ms for ms in budgets_ms if min(one.ms[0] for one in every) <= (1 - MARGIN) * ms]
    assert {best(every, (ms,), MARGIN).accuracy.share for ms in kept} <= {one.accuracy.share for one in winners}
