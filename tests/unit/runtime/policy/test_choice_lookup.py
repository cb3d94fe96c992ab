"""The look-up gives what trying all variants gives: for ties, infinite limits, and limits that nothing meets."""

import itertools
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import ChoiceLimits, LoadFactors, VariantLookUp, VariantTable
from adaptive_runtime.policy.cells import MOST_ERRORS, rounded_errors
from adaptive_runtime.policy.dominance import STRONG_ROWS, replacements
from adaptive_runtime.policy.lookup import MOST_APART
from adaptive_runtime.policy.within import BLOCK, LARGEST_EXACT, FirstWithin
from tests.support import examples
from tests.support.runtime.variants import by_trying_all, limits, load_factors, preference, tables

any_limit = st.sampled_from([-inf, 0.0, 0.25, 0.3, 0.5, 0.9, 1.0, inf])


def first_by_trying(columns_N3: np.ndarray, row: tuple[float, float, float]) -> int:
    within = np.flatnonzero((columns_N3 <= row).all(1))
    return int(within[0]) if len(within) else len(columns_N3)


@given(st.lists(st.tuples(*[st.sampled_from([-inf, 0.25, 0.5, 0.75, inf])] * 3), max_size=30), any_limit, any_limit)
def test_the_first_row_within_limits_is_found_with_ties_and_infinities(
    rows: list[tuple[float, float, float]], a: float, b: float
) -> None:
    columns_N3 = np.array(rows).reshape(-1, 3)
    for c in (-inf, 0.5, inf):
        assert FirstWithin(columns_N3).first(a, b, c) == first_by_trying(columns_N3, (a, b, c))


@pytest.mark.parametrize("rows", [LARGEST_EXACT - 1, LARGEST_EXACT + 1, 17 * BLOCK, 20 * BLOCK + 5])
@pytest.mark.parametrize("steps", [7, 10**6])
def test_the_first_row_of_a_large_table_is_found_where_no_row_replaces_another(rows: int, steps: int) -> None:
    rng = np.random.default_rng(rows)
    columns_N3 = rng.integers(0, steps, (rows, 3)) / steps
    columns_N3 = columns_N3[np.argsort(-columns_N3.sum(1))]
    index = FirstWithin(columns_N3)
    asked = [
        *rng.random((300, 3)),
        *columns_N3[:200],
        [inf] * 3,
        [-1.0, 1, 1],
        [1, -1.0, 1],
        [1, 1, -1.0],
        [0.01, 1, 1],
    ]
    for a, b, c in np.array(asked).tolist():
        assert index.first(a, b, c) == first_by_trying(columns_N3, (a, b, c))


@settings(deadline=None, max_examples=examples(40))
@given(st.integers(1, 400), st.integers(1, 3), st.sampled_from([3, 10, 10**6]), st.integers(0, 99))
def test_a_row_is_replaced_by_an_earlier_kept_row_that_is_nowhere_larger(
    rows: int, columns: int, steps: int, seed: int
) -> None:
    columns_ND = np.random.default_rng(seed).integers(0, steps, (rows, columns)).astype(float)
    by_N = replacements(columns_ND)
    assert (by_N[by_N] == by_N).all()
    assert (columns_ND[by_N] <= columns_ND).all()
    assert (by_N <= np.arange(rows)).all()
    for row in np.flatnonzero(by_N == np.arange(rows)):
        assert not (columns_ND[:row] <= columns_ND[row]).all(1).any()


@pytest.mark.parametrize("related", [0.0, 0.9, 1.0])
def test_rows_of_a_large_table_are_replaced_by_kept_rows(related: float) -> None:
    rng = np.random.default_rng(5)
    columns_N3 = np.round(rng.random((2 * STRONG_ROWS, 3)), 2)
    order_N = np.argsort(-related * columns_N3.sum(1) - (1 - related) * rng.random(len(columns_N3)))
    columns_N3 = columns_N3[order_N]
    by_N = replacements(columns_N3)
    within_NN = (columns_N3[None] <= columns_N3[:, None]).all(2) & np.tri(len(columns_N3), k=-1, dtype=bool)
    np.testing.assert_array_equal(by_N == np.arange(len(by_N)), ~within_NN.any(1))
    assert (by_N[by_N] == by_N).all()
    assert (columns_N3[by_N] <= columns_N3).all()


@settings(deadline=None, max_examples=examples(60))
@given(tables(), any_limit, any_limit, any_limit)
def test_three_limits_give_the_best_variant(table: VariantTable, a: float, b: float, c: float) -> None:
    assert table.energy_mj is not None
    assert table.memory_mib is not None
    within = [
        each
        for each in range(len(table))
        if table.latency_ms[each] <= a and table.energy_mj[each] <= b and table.memory_mib[each] <= c
    ]
    found = VariantLookUp(table).best(a, b, c)
    assert found == min(within, key=lambda each: preference(table, each), default=None)


@given(tables(), limits)
def test_a_variant_keeps_the_extra_limits_if_it_keeps_both(table: VariantTable, limit: ChoiceLimits) -> None:
    assert table.energy_mj is not None
    assert table.memory_mib is not None
    look_up = VariantLookUp(table)
    energy_mj, memory_mib = look_up.extra_limits(limit)
    kept = [look_up.keeps_extras(each, limit) for each in range(len(table))]
    assert kept == [e <= energy_mj and m <= memory_mib for e, m in zip(table.energy_mj, table.memory_mib, strict=True)]


@settings(deadline=None, max_examples=examples(100))
@given(st.data())
def test_the_choice_under_load_is_that_of_trying_all(data: st.DataObject) -> None:
    table = data.draw(tables())
    look_up = VariantLookUp(table)
    for _ in range(4):  # variants with own factors come and go
        limit, factors = data.draw(limits), data.draw(load_factors(len(table)))
        without = data.draw(st.frozensets(st.integers(0, len(table) - 1), max_size=len(table) - 1))
        found = look_up.under(limit, factors, without)
        assert (found.variant, found.within) == by_trying_all(table, look_up.error_V, limit, factors, without)
        assert found.within == look_up.keeps(found.variant, limit, factors)
        assert found.effective_ms == look_up.effective_ms(found.variant, limit, factors)


@settings(deadline=None, max_examples=examples(20))
@given(st.data())
def test_many_variants_with_own_factors_are_chosen_among_alike(data: st.DataObject) -> None:
    size = MOST_APART + 20
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    columns = {name: tuple((rng.integers(1, 9, size) / 8).tolist()) for name in ("accuracy", "latency_ms")}
    columns |= {name: tuple((rng.integers(1, 9, size) / 8).tolist()) for name in ("energy_mj", "memory_mib")}
    table = VariantTable(names=tuple(map(str, range(size))), **columns)
    own = {each: (float(rng.integers(1, 9)) / 4, 0.1) for each in range(MOST_APART + 10)}
    factors, limit = LoadFactors(mean=(1.5,), deviation=(0.2,), own=own), data.draw(limits)
    look_up = VariantLookUp(table)
    without = data.draw(st.frozensets(st.integers(0, size - 1), max_size=size - 1))
    found = look_up.under(limit, factors, without)
    assert (found.variant, found.within) == by_trying_all(table, look_up.error_V, limit, factors, without)


@given(tables())
def test_errors_are_rounded_up_to_few(table: VariantTable) -> None:
    errors_V = VariantLookUp(table).error_V
    assert (errors_V >= table.latency_error_V).all()
    assert len(np.unique(errors_V)) <= MOST_ERRORS
    assert set(errors_V) <= set(table.latency_error_V)


@given(st.lists(st.sampled_from(np.linspace(0.0, 0.3, 9).tolist()), min_size=1, max_size=30))
def test_errors_are_raised_by_no_more_than_any_four_others_would(errors: list[float]) -> None:
    error_V = np.array(errors)
    kept = itertools.combinations(sorted({*errors}), min(MOST_ERRORS, len({*errors})))
    raised = [
        sum(min(level - one for level in levels if level >= one) for one in errors)
        for levels in kept
        if max(levels) == max(errors)
    ]
    assert (rounded_errors(error_V) - error_V).sum() == pytest.approx(min(raised), abs=1e-9)


def test_of_many_errors_most_are_hardly_raised() -> None:
    rng = np.random.default_rng(0)
    error_V = np.append(rng.uniform(0.0, 0.02, 5000), rng.uniform(0.2, 0.25, 500))
    rounded_V = rounded_errors(error_V)
    assert len(np.unique(rounded_V)) == MOST_ERRORS
    assert (rounded_V - error_V).min() >= 0.0
    # rounding to four quantiles would raise a sixth of them to 0.2 and more
    assert ((rounded_V - error_V)[:5000] > 0.02).mean() < 1 / 64


def test_a_limit_of_what_the_table_does_not_know_is_refused() -> None:
    table = VariantTable(names=("a",), accuracy=(0.5,), latency_ms=(1.0,))
    assert table.unknown == ("latency_error", "energy_mj", "memory_mib", "load_class")
    look_up = VariantLookUp(table)
    with pytest.raises(
        AdaptiveError, match=r"^limit of energy: the table knows no energy; measure it, or leave it out$"
    ):
        look_up.under(ChoiceLimits(budget_ms=2.0, energy_mj=1.0), LoadFactors())
    with pytest.raises(AdaptiveError, match="knows no memory"):
        look_up.keeps(0, ChoiceLimits(budget_ms=2.0, memory_mib=1.0), LoadFactors())
    with pytest.raises(AdaptiveError, match="slow-down: variant 1; allowed: 0 to 0"):
        look_up.under(ChoiceLimits(budget_ms=2.0), LoadFactors(own={1: (1.0, 0.0)}))
