"""The segments of a network: operators between two cuts that exactly one value crosses, in every SubNet.

A device that runs a segment needs the value that enters it and nothing else. When SubNets and the devices of their segments are
chosen together, a change of device costs the transfer of that one value. The value may differ between SubNets, for example
after a block that may be skipped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import prod

import numpy as np

from solvers.chain import Chain
from solvers.errors import TooEntangled
from solvers.tables import ENTRIES, Table, spread
from tailor_ir.operators.table import OperatorTerm
from tailor_ir.partition.pre_partition import FLOAT_BYTES, CarriedValue, PrePartition
from tailor_ir.spaces.presence import NEVER, Presence, any_of
from tailor_ir.spaces.space import Space

SAMPLES = 256
"""Number of random SubNets that rule out most other cuts, before all SubNets are checked."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossingValue:
    """A value that crosses a cut, and the SubNets in which it does."""

    value: CarriedValue
    where: Presence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossingBytes:
    """The bytes that cross a cut: tables over columns of extended codes, whose sum is the number of bytes.

    floats: for float32 values. others: for values of other types.
    """

    floats: tuple[Table, ...]
    others: tuple[Table, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetworkPiece:
    """A segment. operators: positions in `PrePartition.operators`, ascending. terms: theirs, in the same order.

    present: the SubNets that have at least one of the operators. reads_input: whether some SubNet reads the input here.
    """

    operators: tuple[int, ...]
    terms: tuple[OperatorTerm, ...]
    present: Presence
    reads_input: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetworkPieces:
    """All segments in running order. crossing: bytes at the cut before each, and after the last one, where the answer is."""

    pieces: tuple[NetworkPiece, ...]
    crossing: tuple[CrossingBytes, ...]

    def of_operators(self) -> dict[int, int]:
        """Position of an operator in `PrePartition.operators` -> number of its segment."""
        return {at: number for number, piece in enumerate(self.pieces) for at in piece.operators}


def find_pieces(cuts: PrePartition) -> NetworkPieces:
    """The segments of a network. Nothing is run.

    A cut counts if no SubNet has two values that cross it. The cuts before the first and after the last operator always count.
    """
    crossing = crossing_values(cuts)
    ends = [0, *_single_cuts(cuts, crossing), len(cuts.operators)]
    terms = cuts.terms
    reading = {one.position for value in cuts.values if value.writer < 0 for one in value.readings}
    pieces = tuple(
        NetworkPiece(
            operators=tuple(range(first, end)),
            terms=tuple(terms[first:end]),
            present=any_of(one.present for one in cuts.operators[first:end]),
            reads_input=not reading.isdisjoint(range(first, end)),
        )
        for first, end in pairwise(ends)
    )
    sizes = cuts.space.all_cardinalities.tolist()
    return NetworkPieces(pieces=pieces, crossing=tuple(_bytes(crossing[cut], sizes) for cut in ends))


def crossing_values(cuts: PrePartition) -> list[list[CrossingValue]]:
    """For each cut, the values that cross it in some SubNet: written before the cut, and read after it."""
    found: list[list[CrossingValue]] = [[] for _ in range(cuts.cuts)]
    for value in cuts.values:
        where, readings = NEVER, list(value.readings)
        while readings:
            position = readings[-1].position
            while readings and readings[-1].position == position:
                reading = readings.pop()
                where |= reading.present & reading.chosen
            before = max(readings[-1].position if readings else value.writer, value.writer)
            if not where.never:
                for cut in range(before + 1, position + 1):
                    found[cut].append(CrossingValue(value=value, where=where))
    return found


def _single_cuts(cuts: PrePartition, crossing: Sequence[Sequence[CrossingValue]]) -> Iterator[int]:
    """The cuts between operators that one value crosses in every SubNet."""
    space = cuts.space
    some = space.random_codes(SAMPLES, np.random.default_rng(0))
    most = cuts.crossing_values(np.concatenate([space.cardinalities[None] - 1, some])).max(axis=0)
    for cut in range(1, len(cuts.operators)):
        if most[cut] <= 1 and _is_single(space, crossing[cut]):
            yield cut


def _is_single(space: Space, crossing: Sequence[CrossingValue]) -> bool:
    """Whether no SubNet has two of the values; False if that cannot be decided."""
    if all((one.where & other.where).never for one, other in combinations(crossing, 2)):
        return True
    tables = [Table(one.where.variables, one.where.mask.astype(float)) for one in crossing]
    try:
        chain = Chain(space.cardinalities.tolist(), tables, (), space.derived)
    except TooEntangled:
        return False
    return chain.best(np.zeros(0))[1] <= 1


def _bytes(crossing: Sequence[CrossingValue], sizes: Sequence[int]) -> CrossingBytes:
    floats = [one for one in crossing if one.value.element_bytes == FLOAT_BYTES]
    others = [one for one in crossing if one.value.element_bytes != FLOAT_BYTES]
    return CrossingBytes(floats=tuple(_tables(floats, sizes)), others=tuple(_tables(others, sizes)))


def _tables(crossing: Sequence[CrossingValue], sizes: Sequence[int]) -> Iterator[Table]:
    """Tables of bytes; one table of all values if it is small, without columns that make no difference."""
    tables = []
    for one in crossing:
        columns = tuple(sorted({*one.value.variables, *one.where.variables}))
        there = spread(one.where.variables, one.where.mask, columns)
        bytes_ = spread(one.value.variables, one.value.bytes_, columns)
        tables.append(Table(columns, np.where(there, bytes_, 0).astype(float)))
    union = tuple(sorted(set().union(*(table.columns for table in tables)))) if tables else ()
    if prod(sizes[column] for column in union) > ENTRIES:
        yield from tables
    elif tables:
        whole = np.zeros([sizes[column] for column in union])
        for table in tables:
            whole += table.over(union)
        yield _squeezed(Table(union, whole))


def _squeezed(table: Table) -> Table:
    """The table without columns along which it is constant."""
    columns, values = list(table.columns), table.values
    for axis in reversed(range(len(columns))):
        first = values.take([0], axis=axis)
        if (values == first).all():
            values = first.squeeze(axis)
            del columns[axis]
    return Table(tuple(columns), values)
