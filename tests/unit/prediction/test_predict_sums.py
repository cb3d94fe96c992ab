"""Tables merged and gathered at once give the sums of the tables one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import tables as solver_tables
from solvers.tables import Table, merged
from tasks.prediction.sums import Sums
from tests.support import examples

CARDINALITIES = (25, 3, 1, 7, 2, 30, 4)


@st.composite
def tables(draw: st.DrawFn) -> list[Table]:
    """Tables over some of the variables, in any order of columns."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found = []
    for _ in range(draw(st.integers(0, 9))):
        columns = tuple(draw(st.permutations(range(len(CARDINALITIES))))[: draw(st.integers(0, 3))])
        found.append(Table(columns, rng.standard_normal([CARDINALITIES[column] for column in columns])))
    return found


@settings(deadline=None, max_examples=examples(60))
@given(tables(), st.integers(0, 2**32 - 1))
def test_sums_of_merged_tables_are_those_of_the_tables(found: list[Table], seed: int) -> None:
    codes = np.random.default_rng(seed).integers(CARDINALITIES, size=(200, len(CARDINALITIES)))
    one_by_one = np.zeros(len(codes))
    for columns, values in found:
        one_by_one += values[tuple(codes[:, column] for column in columns)]
    np.testing.assert_allclose(Sums(CARDINALITIES, found).predict(codes), one_by_one, rtol=0, atol=1e-9)


@settings(deadline=None, max_examples=examples(30))
@given(tables())
def test_merged_tables_are_fewer_and_none_is_large(found: list[Table]) -> None:
    fewer = merged(found, CARDINALITIES)
    assert len(fewer) <= len(found)
    largest = max((values.size for _, values in found), default=0)
    assert all(values.size <= max(largest, solver_tables.ENTRIES) for _, values in fewer)
    assert all(list(columns) == sorted(columns) for columns, _ in fewer)


def test_more_subnets_than_a_chunk() -> None:
    rng = np.random.default_rng(0)
    table = Table((0, 5), rng.standard_normal((25, 30)))
    codes = rng.integers(CARDINALITIES, size=(2 * solver_tables.CHUNK + 1, len(CARDINALITIES)))
    np.testing.assert_array_equal(Sums(CARDINALITIES, [table]).predict(codes), table[1][codes[:, 0], codes[:, 5]])
