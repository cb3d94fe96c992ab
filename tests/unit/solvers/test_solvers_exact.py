"""The exact search finds what listing all codes finds, within what it states."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import exact
from solvers.chain import Chain
from solvers.exact import Optimum, optimum
from solvers.tables import Infeasible, NotANumber, Table, TooEntangled, Undecided, Values
from tests.support import examples
from tests.support.solvers.random_problems import random_problem

seeds = st.integers(0, 2**32 - 1)
some = settings(max_examples=examples(60), deadline=None)


@some
@given(seeds, st.integers(1, 3), st.floats(0, 1))
def test_the_optimum_is_that_of_brute_force(seed: int, constraints: int, share: float) -> None:
    chain, codes, gain, costs = random_problem(seed, constraints)
    rng = np.random.default_rng(seed)
    budgets = np.quantile(costs, share, axis=1) * rng.uniform(0.8, 1.2, constraints)
    feasible = (costs <= budgets[:, None]).all(axis=0)
    if not feasible.any():
        with pytest.raises(Infeasible):
            optimum(chain, budgets)
        return
    found = optimum(chain, budgets)
    assert found.error == 0.0
    assert found.gain == pytest.approx(gain[feasible].max(), abs=1e-9)
    row = int(np.flatnonzero((codes == found.code).all(axis=1))[0])
    assert found.gain == pytest.approx(gain[row], abs=1e-9)
    np.testing.assert_allclose(found.costs, costs[:, row], rtol=1e-9)
    assert (found.costs <= budgets * (1 + 1e-9)).all()


def optimum_or_most(chain: Chain, budgets: Values, tolerance: float) -> Optimum | float:
    """What was found, or the most that one gains which was not found."""
    try:
        return optimum(chain, budgets, tolerance)
    except Undecided as undecided:
        return undecided.most


@some
@given(seeds, st.integers(1, 2), st.floats(0.1, 0.9))
def test_where_partial_codes_are_left_out_the_stated_error_holds(seed: int, constraints: int, share: float) -> None:
    chain, _, gain, costs = random_problem(seed, constraints)
    budgets = np.quantile(costs, share, axis=1)
    before = exact.MOST_PARTIAL, exact.BEAMS
    exact.MOST_PARTIAL, exact.BEAMS = 8, (1,)
    try:
        found = optimum_or_most(chain, budgets, 0.05)
    except Infeasible:
        assert not (costs <= (1 - 0.05) * budgets[:, None]).all(axis=0).any()
        return
    finally:
        exact.MOST_PARTIAL, exact.BEAMS = before
    if isinstance(found, float):
        feasible = (costs <= budgets[:, None]).all(axis=0)
        assert constraints > 1
        assert not feasible.any() or found >= gain[feasible].max() - 1e-9
        return
    assert 0 <= found.error <= 0.05 + 1e-12
    assert constraints > 1 or found.gap == 0
    assert (found.costs <= budgets * (1 + 1e-9)).all()
    tighter = (costs <= (1 - found.error) * budgets[:, None]).all(axis=0)
    assert not tighter.any() or found.gain + found.gap >= gain[tighter].max() - 1e-9


@some
@given(seeds, st.integers(1, 2), st.floats(0.1, 0.9))
def test_without_a_tolerance_no_partial_codes_count_as_equal(seed: int, constraints: int, share: float) -> None:
    chain, _, gain, costs = random_problem(seed, constraints)
    budgets = np.quantile(costs, share, axis=1)
    feasible = (costs <= budgets[:, None]).all(axis=0)
    if not feasible.any():
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "MOST_PARTIAL", 8)
        patch.setattr(exact, "BEAMS", (1,))
        found = optimum_or_most(chain, budgets, 0.0)
    best = gain[feasible].max()
    if isinstance(found, float):
        assert constraints > 1
        assert found >= best - 1e-9
        return
    assert found.error == 0
    assert found.gain <= best + 1e-9 <= found.gain + found.gap + 2e-9
    assert constraints > 1 or found.gap == 0


@pytest.mark.parametrize("seed", [104, 184, 194, 397, 576])
def test_an_optimum_that_uses_its_budgets_exactly_is_kept(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "BEAMS", (1, 4))
    for constraints in (2, 3):
        chain, _, gain, costs = random_problem(seed, constraints)
        budgets = costs[:, np.random.default_rng(seed).integers(costs.shape[1])]
        feasible = (costs <= budgets[:, None] * (1 + 1e-9)).all(axis=0)
        assert optimum(chain, budgets).gain == pytest.approx(gain[feasible].max(), abs=1e-9)


def test_prices_and_least_costs_are_those_of_brute_force() -> None:
    for seed in range(20):
        chain, codes, gain, costs = random_problem(seed, 2)
        prices = np.random.default_rng(seed).exponential(size=2)
        code, own_gain, own_costs = chain.best(prices)
        best = (gain - prices @ costs).max()
        assert own_gain - prices @ own_costs == pytest.approx(best, abs=1e-9)
        assert chain.rest(prices)[0][0] == pytest.approx(best, abs=1e-9)
        assert [rest[0][0] for rest in chain.least] == pytest.approx(costs.min(axis=1).tolist())
        assert (codes == code).all(axis=1).any()


def test_variables_that_all_depend_on_each_other_are_refused() -> None:
    cardinalities = [40] * 8
    tables = [Table((i, j), np.zeros((40, 40))) for i in range(8) for j in range(i)]
    with pytest.raises(TooEntangled, match=r"^tables of 6\.\de\+\d+ numbers$") as caught:
        Chain(cardinalities, tables, [tables])
    assert caught.value.entries > 1e12


def test_stages_that_only_the_resolution_ties_together_are_decided_one_after_the_other() -> None:
    cardinalities = [5]
    tables: list[Table] = []
    for _ in range(6):
        depth = len(cardinalities)
        cardinalities += [6, *([2, 4] * 5)]
        for kernel in range(depth + 1, depth + 11, 2):
            tables.append(Table((0, depth, kernel, kernel + 1), np.zeros((5, 6, 2, 4))))
    chain = Chain(cardinalities, tables, [tables])
    assert max(len(each.gain) for each in chain.eliminations) == 5 * 6 * 2 * 4


@pytest.mark.parametrize("where", ["gain", "cost"])
def test_a_table_without_a_number_is_refused(where: str) -> None:
    tables = [Table((0,), np.array([1.0, 2.0])), Table((1,), np.array([1.0, np.nan]))]
    sums = {"gain": tables[:1], "cost": tables[:1], where: tables}
    with pytest.raises(NotANumber, match=r"no number \(NaN\)"):
        Chain([2, 2], sums["gain"], [sums["cost"]])
