"""A request of several runs keeps its budget as a whole: slow runs are made up for by the runs behind them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.policy import (
    ChoiceLimits,
    ChoiceState,
    Decision,
    DecisionInputs,
    LoadFactors,
    MostAccurate,
    RequestProgress,
    Switching,
    VariantLookUp,
    VariantTable,
    choose,
)
from adaptive_runtime.policy.lookup import deviations
from tests.support import examples

TABLE = VariantTable(names=("fast", "middle", "accurate"), accuracy=(0.7, 0.8, 0.9), latency_ms=(2.0, 5.0, 10.0))
FAST, MIDDLE, ACCURATE = range(3)
BEST = MostAccurate(VariantLookUp(TABLE))
FACTORS = LoadFactors(mean=(1.0,), deviation=(0.1,))
RUNNING = ChoiceState(running=ACCURATE)


def decided(
    limits: ChoiceLimits,
    *,
    for_run: bool = True,
    without: frozenset[int] = frozenset(),
    cold: frozenset[int] = frozenset(),
) -> tuple[ChoiceState, Decision]:
    inputs = DecisionInputs(5.0, limits, FACTORS, for_run=for_run, without=without, cold=cold)
    decision = choose(RUNNING, inputs, BEST, Switching(BEST))
    return decision.after, decision


def test_the_variant_goes_on_while_the_request_is_in_time() -> None:
    state, decision = decided(ChoiceLimits(budget_ms=12.5, quantile=0.95))
    assert (decision.variant, decision.step, decision.within) == (ACCURATE, "stay", True)
    assert state == RUNNING


@pytest.mark.parametrize(("left_ms", "variant", "within"), [(7.0, MIDDLE, True), (3.0, FAST, True), (1.0, FAST, False)])
def test_the_best_that_is_in_time_serves_one_run_and_the_next_request_begins_as_before(
    left_ms: float, variant: int, within: bool
) -> None:
    state, decision = decided(ChoiceLimits(budget_ms=left_ms, quantile=0.95))
    assert (decision.variant, decision.step, decision.within) == (variant, "hurry", within)
    assert f"{left_ms:.3g} ms are left for each run" in decision.reason
    assert state == RUNNING
    after, next_one = decided(ChoiceLimits(budget_ms=12.5, quantile=0.95), for_run=False)
    assert (next_one.variant, next_one.step, after.running) == (ACCURATE, "stay", ACCURATE)


def test_a_run_is_not_given_to_what_is_cold_or_does_not_work() -> None:
    tight = ChoiceLimits(budget_ms=7.0, quantile=0.95)
    assert decided(tight, cold=frozenset({MIDDLE}))[1].variant == FAST
    assert decided(tight, without=frozenset({MIDDLE}))[1].variant == FAST
    assert decided(tight, without=frozenset({FAST, MIDDLE, ACCURATE}))[1].variant == ACCURATE
    wide = ChoiceLimits(budget_ms=50.0, quantile=0.95)
    assert decided(wide, without=frozenset({ACCURATE}))[1].variant == MIDDLE


@given(
    budget_ms=st.floats(1, 100),
    spent=st.floats(0, 2),
    runs=st.integers(2, 16),
    part=st.floats(0, 1),
    q=st.floats(0.5, 0.99),
)
@settings(max_examples=examples(60), deadline=None)
def test_the_runs_left_share_the_time_left_and_scatter_more_than_all(
    budget_ms: float, spent: float, runs: int, part: float, q: float
) -> None:
    limits, left = ChoiceLimits(budget_ms=budget_ms, quantile=q, memory_mib=7.0), 1 + round(part * (runs - 1))
    found = RequestProgress(runs, left, spent * budget_ms).limits(limits)
    assert found.memory_mib == 7.0
    assert 0 < found.budget_ms <= budget_ms / left + 1e-9
    if spent < 0.999:
        assert found.budget_ms * left == pytest.approx((1 - spent) * budget_ms, rel=1e-6)
    assert q - 1e-9 <= found.quantile < 1
    above = deviations(found.quantile) / max(1e-9, deviations(q))
    assert q < 0.6 or found.quantile > 1 - 1e-6 or above == pytest.approx((runs / left) ** 0.5, rel=1e-3)
    assert RequestProgress(spent_ms=spent * budget_ms).limits(limits) is limits


def test_runs_that_took_longer_than_they_should_are_expected_of_those_left() -> None:
    limits = ChoiceLimits(budget_ms=100.0)
    in_time, late = (RequestProgress(4, 2, 40.0, expected_ms).limits(limits) for expected_ms in (50.0, 10.0))
    assert in_time.budget_ms == pytest.approx(30.0)
    assert late.budget_ms == pytest.approx(30.0 / 4)
    assert in_time.quantile == late.quantile


def test_a_request_may_have_less_time_than_others() -> None:
    limits = ChoiceLimits(budget_ms=100.0)
    assert RequestProgress(budget_ms=20.0).limits(limits).budget_ms == pytest.approx(20.0)
    assert RequestProgress(4, 4, budget_ms=20.0).limits(limits).budget_ms == pytest.approx(5.0)
    assert RequestProgress(budget_ms=200.0).limits(limits) is limits
    assert 0 < RequestProgress(budget_ms=-3.0).limits(limits).budget_ms < 1.0
    step = RequestProgress(3, 3).after(effective_ms=4.0, spent_ms=6.0)
    assert (step.left, step.spent_ms, step.expected_ms, step.pace) == (2, 6.0, 4.0, 1.5)
