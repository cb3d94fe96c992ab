"""Tables over few variables: spread, added, merged and gathered, they give what looking up each table gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.tables import Gathering, Table, merged, spread, total
from tests.support.solvers.random_problems import values_at

CARDINALITIES = (5, 3, 1, 4, 2)
SCOPE = (0, 1, 2, 3, 4)


@st.composite
def some_tables(draw: st.DrawFn) -> list[Table]:
    """Tables over some of the variables, in any order of columns."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found = []
    for _ in range(draw(st.integers(0, 6))):
        columns = tuple(draw(st.permutations(SCOPE))[: draw(st.integers(0, 3))])
        found.append(Table(columns, rng.standard_normal([CARDINALITIES[column] for column in columns])))
    return found


def every_code() -> np.ndarray:
    return np.indices(CARDINALITIES).reshape(len(CARDINALITIES), -1).T


@settings(deadline=None)
@given(some_tables())
def test_the_total_over_all_variables_is_the_sum_at_every_code(tables: list[Table]) -> None:
    found = total(tables, SCOPE, CARDINALITIES)
    assert found.shape == CARDINALITIES
    np.testing.assert_allclose(found.ravel(), values_at(tables, every_code()), rtol=0, atol=1e-12)


@settings(deadline=None)
@given(some_tables())
def test_gathering_merged_tables_is_the_sum_at_every_code(tables: list[Table]) -> None:
    fewer = merged(tables, CARDINALITIES)
    assert len(fewer) <= 1  # all variables together have few choices
    found = Gathering(CARDINALITIES, fewer)(every_code())
    np.testing.assert_allclose(found, values_at(tables, every_code()), rtol=0, atol=1e-12)


@settings(deadline=None)
@given(some_tables())
def test_ascending_columns_and_a_factor_leave_the_function(tables: list[Table]) -> None:
    for table in tables:
        other = table.ascending().scaled(-2.0)
        assert list(other.columns) == sorted(table.columns)
        np.testing.assert_array_equal(values_at([other], every_code()), -2.0 * values_at([table], every_code()))


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.bool_])
def test_values_are_spread_over_a_scope_with_their_own_type(dtype: type[np.generic]) -> None:
    values = np.arange(12).reshape(3, 4).astype(dtype)
    found = spread((7, 2), values, (1, 2, 5, 7))
    assert found.dtype == dtype
    assert found.shape == (1, 4, 1, 3)
    np.testing.assert_array_equal(found[0, :, 0, :], values.T)


def test_a_constant_has_no_column() -> None:
    assert Table.constant(2.5).columns == ()
    assert total([Table.constant(2.5)], (1,), CARDINALITIES).tolist() == [2.5, 2.5, 2.5]
