"""All SubNets of a network as operators in one running order, with the values that cross each cut.

Nothing is run. The order holds for every SubNet: an operator comes after all producers that it may read. Therefore a
cut of the whole network is a cut of each SubNet. The values that cross the cut, and their sizes, follow from axes and
presence, for whole populations at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from solvers.tables import Codes
from tailor_ir.axes import FLOAT_BYTES, Axis
from tailor_ir.operators.table import OperatorPlace, OperatorTable, running_order
from tailor_ir.partition.dataflow import INPUT, HandedValue, SubnetDataflow
from tailor_ir.spaces.presence import ALWAYS, Presence, Roster, Variables
from tailor_ir.spaces.space import Grids, Structure


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
        self.space, self._table, self._batch = structure.space, table, batch
        places = table.places()
        sources = structure.space.sources
        reads = [[source for name in one.reads for source, _ in sources.all_of(name)] for one in places]
        order = running_order(reads, [one.writes for one in places])
        self.operators: tuple[OperatorPlace, ...] = tuple(places[at] for at in order)
        readings: dict[str, list[ValueReading]] = {}
        asked = [(at, one.present, name) for at, one in enumerate(self.operators) for name in one.reads]
        asked += [(len(self.operators), ALWAYS, name) for name in structure.graph.outputs]
        for position, present, name in asked:
            for source, chosen in sources.all_of(name):
                reading = ValueReading(position=position, present=present, chosen=chosen)
                readings.setdefault(source, []).append(reading)
        writers = dict.fromkeys(structure.graph.inputs, INPUT)
        writers.update((name, at) for at, one in enumerate(self.operators) for name in one.writes)
        grids = Grids(structure.space, batch)
        values = []
        for name in sorted(readings, key=lambda name: writers[name]):
            axes, bytes_of_one = structure.axis_map.axes[name], element_bytes.get(name, FLOAT_BYTES)
            variables = grids.variables(axes)
            elements = grids.rows(axes, variables).prod(axis=1, dtype=np.int64).reshape(grids.shape(variables))
            values.append(
                CarriedValue(
                    name=name,
                    writer=writers[name],
                    readings=tuple(readings[name]),
                    axes=tuple(axes),
                    element_bytes=bytes_of_one,
                    variables=variables,
                    bytes_=elements * bytes_of_one,
                )
            )
        self.values = tuple(values)

    @property
    def cuts(self) -> int:
        """Number of cuts, including those before the first and after the last operator."""
        return len(self.operators) + 1

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
