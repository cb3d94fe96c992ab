"""The whole front is the one that listing all codes gives, within what it states."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import exact, front
from solvers.chain import Chain
from solvers.front import Points, pareto_mask, whole_front
from solvers.tables import Table
from tests.support import examples
from tests.support.solvers.random_problems import random_problem, random_tables, values_at

seeds = st.integers(0, 2**32 - 1)
some = settings(max_examples=examples(80), deadline=None)


def listed(chain: Chain, tolerance: float, most: float = np.inf) -> Points:
    return whole_front(chain, most, tolerance)


def best_within(cost: np.ndarray, gain: np.ndarray, budget: float) -> float:
    return float(gain[cost <= budget * (1 + 1e-9)].max(initial=-np.inf))


def check(found: Points, cost: np.ndarray, gain: np.ndarray, codes: np.ndarray) -> None:
    """Whatever the budget, and each of them what it says it is."""
    rows = [int(np.flatnonzero((codes == code).all(axis=1))[0]) for code in found.codes]
    np.testing.assert_allclose(found.cost, cost[rows], rtol=1e-9)
    np.testing.assert_allclose(found.gain, gain[rows], rtol=0, atol=1e-9)
    assert (np.diff(found.cost) > 0).all()
    assert (np.diff(found.gain) > 0).all()
    for budget in cost.tolist():
        best = best_within(cost, gain, budget * (1 - found.error) * (1 - 2e-9))
        assert best_within(found.cost, found.gain, budget) >= best - 1e-9


@some
@given(seeds, st.booleans())
def test_without_a_tolerance_it_is_every_subnet_that_no_other_one_dominates(seed: int, few: bool) -> None:
    chain, codes, gain, (cost,) = random_problem(seed, 1)
    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(exact, "MOST_PARTIAL", 6)
            patch.setattr(front, "BEAMS", (1, None))
        found = listed(chain, 0.0)
    check(found, cost, gain, codes)
    assert found.error == 0
    rows = np.flatnonzero(pareto_mask(cost, np.round(gain, 9)))
    order = rows[np.argsort(cost[rows])]
    np.testing.assert_allclose(found.cost, cost[order], rtol=1e-9)
    np.testing.assert_allclose(found.gain, gain[order], rtol=0, atol=1e-8)


@some
@given(seeds, st.floats(1e-4, 0.2), st.booleans())
def test_with_one_the_best_within_any_budget_is_as_good_as_that_of_a_little_less(
    seed: int, tolerance: float, few: bool
) -> None:
    chain, codes, gain, (cost,) = random_problem(seed, 1)
    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(exact, "MOST_PARTIAL", 6)
            patch.setattr(front, "BEAMS", (1, None))
        found = listed(chain, tolerance)
    check(found, cost, gain, codes)
    assert found.error <= tolerance + 1e-12
    assert len(found.cost) <= pareto_mask(cost, gain).sum()
    assert found.cost[0] == pytest.approx(cost.min())


@some
@given(seeds, st.floats(0, 1))
def test_what_costs_more_than_the_most_is_left_out(seed: int, share: float) -> None:
    chain, _, _, (cost,) = random_problem(seed, 1)
    most = float(np.quantile(cost, share))
    found = listed(chain, 0.0, most)
    complete = listed(chain, 0.0)
    assert found.cost.tolist() == complete.cost[complete.cost <= most * (1 + 1e-9)].tolist()


def test_a_gain_that_nothing_changes_leaves_the_cheapest_subnet() -> None:
    rng = np.random.default_rng(0)
    tables = random_tables(rng, [3, 4], positive=True)
    chain = Chain([3, 4], [Table((0,), np.zeros(3))], [tables])
    found = listed(chain, 0.0)
    codes = np.array([[a, b] for a in range(3) for b in range(4)])
    assert found.codes.tolist() == [codes[np.argmin(values_at(tables, codes))].tolist()]
