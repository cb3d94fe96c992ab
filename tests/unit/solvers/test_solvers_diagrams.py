"""Diagrams are sets of codes: equal sets have one number, whatever they were made of."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.diagrams import ALL, NONE, Diagrams
from tests.support import examples

CARDINALITIES = (2, 3, 2, 4)
CODES = np.array(list(product(*map(range, CARDINALITIES))))
Mask = tuple[tuple[int, ...], np.ndarray]


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    columns = tuple(draw(st.permutations(range(4)))[: draw(st.integers(0, 3))])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return columns, rng.random([CARDINALITIES[column] for column in columns]) < draw(st.sampled_from([0.1, 0.5, 0.9]))


def among(mask: Mask) -> np.ndarray:
    """Whether each of CODES is in a mask's set."""
    columns, values = mask
    return np.broadcast_to(values[tuple(CODES[:, column] for column in columns)], len(CODES))


def spread(diagrams: Diagrams, one: int) -> np.ndarray:
    return diagrams.mask(one, range(4), CARDINALITIES).reshape(-1)


@settings(max_examples=examples(200), deadline=None)
@given(masks(), masks())
def test_sets_combine_as_masks_do(a: Mask, b: Mask) -> None:
    diagrams = Diagrams()
    one, other = (diagrams.of(columns, values, {}) for columns, values in (a, b))
    assert np.array_equal(spread(diagrams, one), among(a))
    assert np.array_equal(spread(diagrams, diagrams.union(one, other)), among(a) | among(b))
    assert np.array_equal(spread(diagrams, diagrams.intersection(one, other)), among(a) & among(b))
    assert np.array_equal(spread(diagrams, diagrams.complement(one)), ~among(a))
    assert diagrams.within(one, other) == bool((~among(a) | among(b)).all())
    assert (one == other) == np.array_equal(among(a), among(b))
    assert (one == ALL, one == NONE) == (bool(among(a).all()), not among(a).any())


@settings(max_examples=examples(100), deadline=None)
@given(masks(), masks())
def test_a_column_with_a_meaning_stands_for_its_set(a: Mask, b: Mask) -> None:
    """A mask over a column that is 1 in a set, and others, is the set that the column's values give."""
    diagrams = Diagrams()
    first_columns, first_values = a
    meaning = diagrams.of(first_columns, first_values, {})
    columns, values = b
    one = diagrams.of((*columns, 9), np.stack([values, ~values], axis=-1), {9: meaning})
    assert np.array_equal(spread(diagrams, one), among(a) ^ among(b))


@settings(max_examples=examples(100), deadline=None)
@given(masks())
def test_the_columns_of_a_set_are_those_that_decide_it(a: Mask) -> None:
    diagrams = Diagrams()
    whole = among(a).reshape(CARDINALITIES)
    deciding = tuple(axis for axis in range(4) if (whole != whole.take([0], axis)).any())
    columns, values = a
    assert diagrams.columns(diagrams.of(columns, values, {})) == deciding
