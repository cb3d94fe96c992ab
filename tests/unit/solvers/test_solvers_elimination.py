"""Eliminations where columns follow from others: nothing but what codes lead to, and every code as its tables say."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.chain import Chain
from solvers.tables import Derived, Table, TooEntangled, with_derived
from tests.support import examples
from tests.support.solvers.random_problems import values_at


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_chain_with_columns_that_follow_gives_what_its_tables_give(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cardinalities = rng.integers(1, 4, size=5).tolist()
    sizes, derived = [*cardinalities], []
    for _ in range(int(rng.integers(1, 5))):
        columns = tuple(sorted(rng.choice(len(sizes), size=int(rng.integers(1, 4)), replace=False).tolist()))
        derived.append(Derived(columns, rng.random([sizes[column] for column in columns]) < 0.5))
        sizes.append(2)
    sums = []
    for _ in range(2):
        own = [tuple(rng.choice(len(sizes), size=int(rng.integers(0, 4)), replace=False).tolist()) for _ in range(6)]
        sums.append([Table(columns, rng.standard_normal([sizes[column] for column in columns])) for columns in own])
    chain = Chain(cardinalities, sums[0], sums[1:], derived)
    codes = np.array(list(product(*map(range, cardinalities))))
    gain, cost = (values_at(tables, with_derived(codes, derived)) for tables in sums)
    found = [chain.value(code) for code in codes]
    np.testing.assert_allclose([one for one, _ in found], gain, atol=1e-12)
    np.testing.assert_allclose([costs[0] for _, costs in found], cost, atol=1e-12)
    assert chain.rest(np.array([0.5]))[0][0] == pytest.approx((gain - 0.5 * cost).max())
    code, best, _ = chain.best(np.zeros(1))
    assert best == pytest.approx(gain.max())
    assert chain.value(code)[0] == pytest.approx(best)


def path(blocks: int) -> tuple[list[int], list[Derived]]:
    """Blocks in a row, of which each may reach back over one or two others: which are needed, from the last one on."""
    derived: list[Derived] = []
    reach: dict[int, list[int]] = {blocks: []}  # by block: columns that say that one behind reads it
    yes = np.array([False, True])
    for block in range(blocks, 0, -1):
        needed = None
        for column in reach.pop(block, []):
            if needed is not None:
                derived.append(Derived((needed, column), yes[:, None] | yes[None]))
                column = blocks + len(derived) - 1
            needed = column
        for back in (1, 2, 3):
            chosen = np.arange(3) == back - 1
            where = (block - 1,) if needed is None else (block - 1, needed)
            derived.append(Derived(where, chosen if needed is None else chosen[:, None] & yes[None]))
            reach.setdefault(block - back, []).append(blocks + len(derived) - 1)
    return [3] * blocks, derived


def test_a_long_row_of_blocks_has_a_few_states_at_each() -> None:
    cardinalities, derived = path(30)
    rng = np.random.default_rng(0)
    tables = [Table(one.columns, rng.random(one.values.shape)) for one in derived]
    chain = Chain(cardinalities, tables, [], derived)
    assert max(len(each.entries) for each in chain.eliminations) <= 8


def test_columns_that_follow_do_not_untie_variables_that_all_depend_on_each_other() -> None:
    tables = [Table((i, j), np.zeros((40, 40))) for i in range(8) for j in range(i)]
    with pytest.raises(TooEntangled):
        Chain([40] * 8, tables, [], [Derived((0,), np.arange(40) > 3)])
