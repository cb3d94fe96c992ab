"""One SubNet as operators and the values that they pass to each other; the cuts between its operators.

A SubNet of n operators has n + 1 cuts: cut k has the first k operators on its left side. A value crosses a cut if it is written
on the left (the network's input always is) and read on the right (the network's outputs are read after all operators). A value
with several readers crosses once.
"""

from dataclasses import dataclass

from tailor_ir.operators.table import PlacedOperator

INPUT = -1
"""The writer of the network's input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedValue:
    """A value of one SubNet.

    name: in the graph and in exported files. shape: including the batch. bytes: of the value as the network computes it.
    writer: position of an operator, or `INPUT`. readers: positions, ascending; the number of operators stands for the network's
    output.
    """

    name: str
    shape: tuple[int, ...]
    bytes: int
    writer: int
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetDataflow:
    """One SubNet in its running order. positions: its operators' positions in `PrePartition.operators`."""

    operators: tuple[PlacedOperator, ...]
    positions: tuple[int, ...]
    values: tuple[HandedValue, ...]

    @property
    def cuts(self) -> int:
        """Number of cuts, including those before the first and after the last operator."""
        return len(self.operators) + 1

    def crossing(self, cut: int) -> tuple[HandedValue, ...]:
        """The values that cross one cut."""
        return tuple(value for value in self.values if value.writer < cut <= value.readers[-1])
