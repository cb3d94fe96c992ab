"""Pieces of a network: at their ends one value crosses in every SubNet, and its bytes are tables over few variables."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from solvers.tables import Table, with_derived
from tailor_ir import OperatorTerm, find_pieces
from tests.support import examples
from tests.unit.ir.test_partition import NAMES, codes_of, net_of

NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)


def sums(tables: tuple[Table, ...], codes: np.ndarray) -> np.ndarray:
    """The sum of the tables at each code (n, V)."""
    return sum((values[tuple(codes[:, list(columns)].T)] for columns, values in tables), np.zeros(len(codes)))


@pytest.mark.long_cases("vit_tiny_patch16_224")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(4), deadline=None, phases=NO_SHRINKING)
@given(seed=st.integers(0, 1000))
def test_one_value_crosses_at_the_ends_of_a_piece_and_its_bytes_are_known(name: str, seed: int) -> None:
    net = net_of(name)
    cuts = net.pre_partition()
    found = find_pieces(cuts)
    codes = codes_of(net, 30, seed)
    ends = [0, *(piece.operators[-1] + 1 for piece in found.pieces)]
    assert [at for piece in found.pieces for at in piece.operators] == list(range(len(cuts.operators)))
    assert (cuts.crossing_values(codes)[:, ends] == 1).all()
    extended = with_derived(codes, net.space.derived)
    in_bytes = np.stack([sums((*one.floats, *one.others), extended) for one in found.crossing], axis=1)
    assert (in_bytes == cuts.crossing_bytes(codes)[:, ends]).all()


@pytest.mark.parametrize("name", NAMES)
def test_at_every_other_cut_some_subnet_has_more_values(name: str) -> None:
    net = net_of(name)
    cuts = net.pre_partition()
    ends = {0, *(piece.operators[-1] + 1 for piece in find_pieces(cuts).pieces)}
    most = cuts.crossing_values(codes_of(net, 2000, 0)).max(axis=0)
    assert all(most[cut] > 1 for cut in range(cuts.cuts) if cut not in ends)


@pytest.mark.parametrize("name", NAMES)
def test_a_piece_is_present_where_one_of_its_operators_is(name: str) -> None:
    net = net_of(name)
    codes = codes_of(net, 20, 1)
    extended = net.space.extended(codes)
    for piece in find_pieces(net.pre_partition()).pieces:
        counts = sum(np.broadcast_to(_has(term, extended), len(codes)).astype(int) for term in piece.terms)
        assert (np.broadcast_to(piece.present.among(extended), len(codes)) == (counts > 0)).all()


def _has(term: OperatorTerm, extended: np.ndarray) -> np.ndarray:
    """Whether each SubNet has the operator of a term."""
    return np.asarray(term.features.numbers[tuple(extended[:, column] for column in term.variables)] >= 0)
