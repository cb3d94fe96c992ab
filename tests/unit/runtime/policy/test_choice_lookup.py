"""The look-up gives what trying all variants gives: for ties, infinite limits, and limits that nothing meets."""

import itertools
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import ChoiceLimits, LoadFactors, VariantLookUp, VariantTable
from adaptive_runtime.policy.lookup import MOST_ERRORS, rounded_errors
from tests.support import examples
from tests.support.runtime.variants import by_trying_all, limits, load_factors, preference, tables

any_limit = st.sampled_from([-inf, 0.0, 0.25, 0.3, 0.5, 0.9, 1.0, inf])


@settings(deadline=None, max_examples=examples(60))
@given(tables(most=80), any_limit, any_limit, any_limit)
def test_three_limits_give_the_best_variant(table: VariantTable, a: float, b: float, c: float) -> None:
    assert table.energy_mj is not None
    assert table.memory_mib is not None
    found = None
    for each in sorted(range(len(table)), key=lambda each: preference(table, each)):
        if table.latency_ms[each] <= a and table.energy_mj[each] <= b and table.memory_mib[each] <= c:
            found = each
            break
    assert VariantLookUp(table).best(a, b, c) == found


@given(tables(), limits)
def test_a_variant_keeps_the_extra_limits_if_it_keeps_both(table: VariantTable, limit: ChoiceLimits) -> None:
    assert table.energy_mj is not None
    assert table.memory_mib is not None
    look_up = VariantLookUp(table)
    energy_mj, memory_mib = look_up.extra_limits(limit)
    kept = [look_up.keeps_extras(each, limit) for each in range(len(table))]
    assert kept == [e <= energy_mj and m <= memory_mib for e, m in zip(table.energy_mj, table.memory_mib, strict=True)]


@settings(deadline=None, max_examples=examples(150))
@given(st.data())
def test_the_choice_under_load_is_that_of_trying_all(data: st.DataObject) -> None:
    table = data.draw(tables(most=80))
    look_up, size = VariantLookUp(table), len(table)
    for _ in range(4):  # variants with own factors come and go
        limit, factors = (
            data.draw(limits),
            data.draw(load_factors(size, most_own=data.draw(st.sampled_from([4, size])))),
        )
        without = data.draw(st.frozensets(st.integers(0, size - 1), max_size=size - 1))
        found = look_up.under(limit, factors, without)
        assert (found.variant, found.within) == by_trying_all(table, look_up.error_V, limit, factors, without)
        assert found.within == look_up.keeps(found.variant, limit, factors)
        assert found.effective_ms == look_up.effective_ms(found.variant, limit, factors)


@settings(deadline=None, max_examples=examples(40))
@given(st.data())
def test_variants_within_the_limits_come_in_the_order_of_preference(data: st.DataObject) -> None:
    table = data.draw(tables())
    limit, factors = data.draw(limits), data.draw(load_factors(len(table)))
    without = data.draw(st.frozensets(st.integers(0, len(table) - 1), max_size=len(table) - 1))
    score_V = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(table), max_size=len(table))), float)
    look_up = VariantLookUp(table)
    keeping = [each for each in range(len(table)) if each not in without and look_up.keeps(each, limit, factors)]
    assert list(look_up.within(limit, factors, without)) == sorted(keeping, key=lambda each: preference(table, each))
    ranked = list(look_up.ranked(score_V).within(limit, factors, without))
    assert ranked == sorted(keeping, key=lambda each: (-score_V[each], *preference(table, each)))


@given(tables())
def test_a_table_without_energy_and_memory_is_chosen_from_by_accuracy_and_latency(table: VariantTable) -> None:
    bare = table.model_copy(update={"energy_mj": None, "memory_mib": None})
    found = VariantLookUp(bare).under(ChoiceLimits(budget_ms=100.0), LoadFactors(mean=(1.0,) * 3, deviation=(0.0,) * 3))
    assert found.variant == min(range(len(bare)), key=lambda each: preference(bare, each))


def test_a_table_has_rows_and_numbers() -> None:
    with pytest.raises(ValidationError):
        VariantTable(names=(), accuracy=(), latency_ms=())
    for unknown in (nan, inf):
        with pytest.raises(ValidationError):
            VariantTable(names=("a",), accuracy=(0.5,), latency_ms=(1.0,), energy_mj=(unknown,))


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
    with pytest.raises(AdaptiveError, match="slow-down: variant -1; allowed: 0 to 0"):
        look_up.under(ChoiceLimits(budget_ms=2.0), LoadFactors(), frozenset({-1}))
    with pytest.raises(AdaptiveError, match="choice: no variant is left"):
        look_up.under(ChoiceLimits(budget_ms=2.0), LoadFactors(), frozenset({0}))
    classes = VariantLookUp(table.model_copy(update={"load_class": (1,)}))
    with pytest.raises(AdaptiveError, match="slow-down: factors of 1 load classes; allowed: 2, as in the table"):
        classes.under(ChoiceLimits(budget_ms=2.0), LoadFactors())
