"""All SubNets of a network as operators in one running order, values that cross each cut, and segments.

Nothing is run. The order holds for every SubNet: an operator comes after all producers that it may read. Therefore a
cut of the whole network is a cut of each SubNet. The values that cross the cut, and their sizes, follow from axes and
presence, for whole populations at once.

Segments are operators between two cuts that exactly one value crosses, in every SubNet. A device that runs a segment
needs the value that enters it and nothing else. When SubNets and the devices of their segments are chosen together, a
change of device costs the transfer of that one value. The value may differ between SubNets, for example after a block
that may be skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from solvers.chain import Chain
from solvers.tables import ENTRIES, Codes, Table, TooEntangled, spread
from tailor_ir.axes import Axis
from tailor_ir.operators.table import OperatorPlace, OperatorTable, OperatorTerm, running_order
from tailor_ir.partition.dataflow import INPUT, HandedValue, SubnetDataflow
from tailor_ir.spaces.presence import ALWAYS, NEVER, Presence, Producers, Roster, Variables, any_of
from tailor_ir.spaces.space import Grids, Space, Structure

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueReading:
    """A read of a value: by the operator at a position, in the SubNets that have the operator and choose the value.

    position: the number of operators stands for the network's output. present: SubNets with the operator. chosen: SubNets that
    read this producer.
    """

    position: int
    present: Presence
    chosen: Presence

    def among(self, codes: Codes) -> NDArray[np.bool_]:
        """Whether each SubNet of extended codes (n, V + D) reads the value here: (n,), or () if all or none do."""
        return self.present.among(codes) & self.chosen.among(codes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CarriedValue:
    """A value, in all SubNets that have it.

    writer: position of an operator, or `INPUT`. readings: by position, ascending. bytes_: over the choices of `variables`
    (columns of codes), one axis for each variable.
    """

    name: str
    writer: int
    readings: tuple[ValueReading, ...]
    axes: tuple[Axis, ...]
    element_bytes: int
    variables: Variables
    bytes_: NDArray[np.int64]

    def last(self, codes: Codes) -> NDArray[np.int64]:
        """Position of the last reader (n,) in each SubNet of extended codes (n, V + D); `INPUT` if nothing reads it."""
        found = np.full(len(codes), INPUT, np.int64)
        for reading in self.readings:
            found = np.where(reading.among(codes), reading.position, found)
        return found


class PrePartition:
    """The operators of all SubNets in running order, and the values between them, for one batch size.

    For n operators there are n + 1 cuts: cut k has the first k operators on its left side. If a SubNet lacks an operator, the
    cuts on both sides of the operator are the same.
    """

    def __init__(
        self, structure: Structure, table: OperatorTable, element_bytes: Mapping[str, int], batch: int
    ) -> None:
        """table: of the same structure and batch. element_bytes: bytes per element of values that are not float32."""
        self.space, self._structure, self._table, self._batch = structure.space, structure, table, batch
        places = table.places()
        sources = structure.space.sources
        reads = [[source for name in one.reads for source, _ in sources.all_of(name)] for one in places]
        self._order = running_order(reads, [one.writes for one in places])
        self.operators: tuple[OperatorPlace, ...] = tuple(places[at] for at in self._order)
        readings = self._readings(sources)
        writers = dict.fromkeys(structure.graph.inputs, INPUT)
        writers.update((name, at) for at, one in enumerate(self.operators) for name in one.writes)
        grids = Grids(structure.space, batch)
        self.values = tuple(
            self._value(name, writers[name], found, grids, element_bytes.get(name, FLOAT_BYTES))
            for name, found in sorted(readings.items(), key=lambda each: writers[each[0]])
        )

    @property
    def cuts(self) -> int:
        """Number of cuts, including those before the first and after the last operator."""
        return len(self.operators) + 1

    @cached_property
    def terms(self) -> tuple[OperatorTerm, ...]:
        """The operators as functions of the few variables on which each depends, in the order of `operators`."""
        terms = tuple(self._table.terms())
        return tuple(terms[at] for at in self._order)

    def crossing_bytes(self, codes: Codes) -> NDArray[np.int64]:
        """Bytes (n, cuts) that cross each cut in each SubNet of codes (n, V)."""
        return self._crossing(codes, count=False)

    def crossing_values(self, codes: Codes) -> NDArray[np.int64]:
        """Number (n, cuts) of values that cross each cut in each SubNet of codes (n, V)."""
        return self._crossing(codes, count=True)

    def under(self, code: NDArray[np.int64]) -> SubnetDataflow:
        """One SubNet (V,): its operators, and the values between them with their shapes."""
        extended = self.space.extended(code[None])
        there = self._roster.at(extended[0])
        positions = tuple(at for at, present in enumerate(there) if present)
        place = {at: number for number, at in enumerate(positions)} | {INPUT: INPUT, len(there): len(positions)}
        sizes = self.space.sizes(code, self._batch)
        found = []
        for value in self.values:
            readers = [place[one.position] for one in value.readings if one.among(extended).all()]
            if readers:
                shape = sizes.shape(value.axes)
                found.append(
                    HandedValue(
                        name=value.name,
                        shape=shape,
                        bytes=int(np.prod(shape, dtype=np.int64)) * value.element_bytes,
                        writer=place[value.writer],
                        readers=tuple(dict.fromkeys(readers)),
                    )
                )
        placed = {one.names: one for one in self._table.placed(code).operators}
        operators = tuple(placed[self.operators[at].names] for at in positions)
        return SubnetDataflow(operators=operators, positions=positions, values=tuple(found))

    @cached_property
    def _roster(self) -> Roster:
        return Roster([one.present for one in self.operators])

    def _readings(self, sources: Producers) -> dict[str, list[ValueReading]]:
        """Value -> its readings."""
        found: dict[str, list[ValueReading]] = {}
        asked = [(at, one.present, name) for at, one in enumerate(self.operators) for name in one.reads]
        asked += [(len(self.operators), ALWAYS, name) for name in self._structure.graph.outputs]
        for position, present, name in asked:
            for source, chosen in sources.all_of(name):
                found.setdefault(source, []).append(ValueReading(position=position, present=present, chosen=chosen))
        return found

    def _value(
        self, name: str, writer: int, readings: Sequence[ValueReading], grids: Grids, element_bytes: int
    ) -> CarriedValue:
        axes = self._structure.axis_map.axes[name]
        variables = grids.variables(axes)
        elements = grids.rows(axes, variables).prod(axis=1, dtype=np.int64)
        return CarriedValue(
            name=name,
            writer=writer,
            readings=tuple(readings),
            axes=tuple(axes),
            element_bytes=element_bytes,
            variables=variables,
            bytes_=(elements * element_bytes).reshape(grids.shape(variables)),
        )

    def _crossing(self, codes: Codes, *, count: bool) -> NDArray[np.int64]:
        """Bytes (with `count`: number) of values that cross each cut: sums of changes after writers and last readers."""
        codes = np.asarray(codes)
        extended, rows = self.space.extended(codes), np.arange(len(codes))
        changes = np.zeros((len(codes), self.cuts + 1), np.int64)
        for value in self.values:
            last = value.last(extended)
            size = np.ones((), np.int64) if count else value.bytes_[tuple(codes[:, v] for v in value.variables)]
            amount = np.where(last > value.writer, size, 0)
            changes[:, value.writer + 1] += amount
            changes[rows, last + 1] -= amount
        return changes.cumsum(axis=1)[:, : self.cuts]


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
