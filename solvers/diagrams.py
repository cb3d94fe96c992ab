"""Sets of codes as ordered decision diagrams: equal sets have equal numbers, so that nothing is compared code by code.

A diagram branches on one column after the other, always in the same order. Along a network a set depends on neighbouring
columns alone, so its diagram is narrow. Source: Bryant, *Graph-based algorithms for Boolean function manipulation* (IEEE
Transactions on Computers C-35, 1986), extended to columns of several values.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
NONE, ALL = 0, 1
"""The numbers of the empty set and of the set of all codes."""


class Diagrams:
    """Sets that share one order of columns: the order in which the columns are first met."""

    def __init__(self) -> None:
        # column, and the child set for each of its values
        self._nodes: list[tuple[int, tuple[int, ...]]] = [(-1, ()), (-1, ())]
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._ranks: dict[int, int] = {}
        self._complements: dict[int, int] = {NONE: ALL, ALL: NONE}
        self._unions: dict[tuple[int, int], int] = {}

    def of(self, columns: Sequence[int], mask: Mask, meanings: Mapping[int, int]) -> int:
        """The set of codes for which a mask, with one axis for each column, is true.

        meanings: for two-valued columns, the set in which the column is 1.
        """
        known: dict[tuple[int, bytes], int] = {}
        for column in columns:
            if column not in meanings:
                self._ranks.setdefault(column, len(self._ranks))

        def chosen(axis: int, values: Mask) -> int:
            if values.all():
                return ALL
            if not values.any():
                return NONE
            key = axis, values.tobytes()
            if key not in known:
                children = [chosen(axis + 1, each) for each in values]
                known[key] = self._decided(columns[axis], children, meanings)
            return known[key]

        return chosen(0, np.asarray(mask, bool))

    def union(self, one: int, other: int) -> int:
        """The codes in at least one of two sets."""
        if one in (other, ALL) or other == NONE:
            return one
        if one == NONE or other == ALL:
            return other
        key = (one, other) if one < other else (other, one)
        if key not in self._unions:
            column = min((self._nodes[each][0] for each in key), key=self._ranks.__getitem__)
            pairs = zip(*(self._under(each, column, key) for each in key), strict=True)
            self._unions[key] = self._node(column, tuple(self.union(*pair) for pair in pairs))
        return self._unions[key]

    def complement(self, one: int) -> int:
        """The codes that are not in a set."""
        if one not in self._complements:
            column, children = self._nodes[one]
            self._complements[one] = self._node(column, tuple(map(self.complement, children)))
            self._complements[self._complements[one]] = one
        return self._complements[one]

    def intersection(self, one: int, other: int) -> int:
        """The codes in both of two sets."""
        return self.complement(self.union(self.complement(one), self.complement(other)))

    def within(self, one: int, other: int) -> bool:
        """Whether each code of a set is in another one."""
        return self.union(one, other) == other

    def columns(self, one: int) -> tuple[int, ...]:
        """The columns that decide whether a code is in a set, ascending."""
        found: set[int] = set()
        seen, waiting = {NONE, ALL}, [one]
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                column, children = self._nodes[number]
                found.add(column)
                waiting += children
        return tuple(sorted(found))

    def mask(self, one: int, columns: Sequence[int], cardinalities: Sequence[int]) -> Mask:
        """A set as a mask with one axis for each column. columns: include all that decide the set. cardinalities: theirs."""
        order = sorted(range(len(columns)), key=lambda axis: self._ranks.get(columns[axis], -1))
        shape = tuple(cardinalities[axis] for axis in order)

        def spread(number: int, axis: int) -> Mask:
            if number in (NONE, ALL):
                return np.full(shape[axis:], number == ALL)
            column, children = self._nodes[number]
            if column == columns[order[axis]]:
                return np.stack([spread(child, axis + 1) for child in children])
            return np.broadcast_to(spread(number, axis + 1), shape[axis:])

        return spread(one, 0).transpose(np.argsort(order))

    def _decided(self, column: int, children: Sequence[int], meanings: Mapping[int, int]) -> int:
        """The set that equals one of the children, selected by the value of a column."""
        if column in meanings:
            where = meanings[column]
            return self.union(
                self.intersection(where, children[1]), self.intersection(self.complement(where), children[0])
            )
        found = NONE
        for value, child in enumerate(children):
            here = self._node(column, tuple(ALL if value == each else NONE for each in range(len(children))))
            found = self.union(found, self.intersection(here, child))
        return found

    def _under(self, one: int, column: int, beside: Sequence[int]) -> tuple[int, ...]:
        """The subsets of a set by the value of a column. beside: sets of which at least one branches on that column first."""
        if self._nodes[one][0] == column:
            return self._nodes[one][1]
        return (one,) * max(len(self._nodes[each][1]) for each in beside if self._nodes[each][0] == column)

    def _node(self, column: int, children: tuple[int, ...]) -> int:
        if len(set(children)) == 1:
            return children[0]
        key = column, children
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._nodes)
            self._nodes.append(key)
        return number
