"""The presence of every step of a network, found by one walk from its outputs, and the derived columns that keep masks small.

If an alternative may replace several blocks at a time, the presence of a block depends on all choices behind it. A *derived
column* states whether a value is needed; it follows from few columns, and replaces a variable in masks. Each is built from as
few columns as possible: first the need of one block behind, then the additional need of the next one. Thus every mask involves
few columns, whatever the number of choices of a block.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Self

import numpy as np

from solvers.diagrams import ALL, NONE, Diagrams
from solvers.tables import Derived
from tailor_ir.spaces.presence import ALWAYS, NEVER, Presence, Selection, Variables, presence

LARGEST_MASK, MOST_VARIABLES = 64, 2
"""Largest number of entries and variables of a mask; a larger mask is replaced by a derived column."""

Step = tuple[Sequence[str], Sequence[str]]
"""Names of the values that a step reads and writes."""


class DerivedColumns:
    """The derived columns so far, after `variables` columns. Equal sets of SubNets have equal presences."""

    def __init__(self, variables: int) -> None:
        self.variables = variables
        self.derived: list[Derived] = []
        self._diagrams = Diagrams()
        self._of_columns: dict[int, int] = {}  # derived column -> its set of SubNets
        self._sets: dict[Presence, int] = {NEVER: NONE, ALWAYS: ALL}
        self._known: dict[int, Presence] = {NONE: NEVER, ALL: ALWAYS}
        self._columns: dict[int, Presence] = {NONE: NEVER, ALL: ALWAYS}

    @classmethod
    def of(cls, variables: int, derived: Sequence[Derived]) -> Self:
        """Existing derived columns, to which more can be added."""
        columns = cls(variables)
        for each in derived:
            columns._add(each)
        return columns

    def small(self, where: Presence) -> Presence:
        """The presence, with a derived column in place of a large mask."""
        subnets = self._set(where)
        if subnets not in self._known:
            fits = where.mask.size <= LARGEST_MASK and len(where.variables) <= MOST_VARIABLES
            self._known[subnets] = where if fits else self._column(where)
        return self._known[subnets]

    def any_of(self, presences: Iterable[Presence]) -> Presence:
        """The SubNets that have at least one of several things."""
        subnets = NONE
        parts: dict[Variables, Presence] = {}
        for each in dict.fromkeys(presences):
            if not self._diagrams.within(self._set(each), subnets):
                subnets = self._diagrams.union(subnets, self._set(each))
                parts[each.variables] = parts.get(each.variables, NEVER) | each
        if subnets in self._known:
            return self._known[subnets]
        sizes = {v: n for each in parts.values() for v, n in zip(each.variables, each.mask.shape, strict=True)}
        if len(sizes) > MOST_VARIABLES or prod(sizes.values()) > LARGEST_MASK:
            return self._union([self._column(each) if len(each.variables) > 1 else each for each in parts.values()])
        found = NEVER
        for each in parts.values():
            found |= each
        return self.small(found)

    def implies(self, one: Presence, other: Presence) -> bool:
        """Whether every SubNet that has one has the other, too."""
        return self._diagrams.within(self._set(one), self._set(other))

    def _union(self, parts: Sequence[Presence]) -> Presence:
        """The SubNets that have at least one of several things, joined one after the other in the order of the network."""
        found, *others = parts
        for each in others:
            found = self._column(found | each)
        self._known[self._set(found)] = found
        return found

    def _set(self, where: Presence) -> int:
        if where not in self._sets:
            self._sets[where] = self._diagrams.of(where.variables, where.mask, self._of_columns)
        return self._sets[where]

    def _column(self, where: Presence) -> Presence:
        """The presence as a mask over one derived column."""
        subnets = self._set(where)
        if subnets not in self._columns:
            self._add(Derived(where.variables, where.mask))
        return self._columns[subnets]

    def _add(self, derived: Derived) -> None:
        subnets = self._set(presence(derived.columns, derived.values))
        column = self.variables + len(self.derived)
        self.derived.append(derived)
        self._of_columns[column] = subnets
        self._columns.setdefault(subnets, presence((column,), np.asarray([False, True])))
        self._known.setdefault(subnets, self._columns[subnets])


@dataclass(frozen=True, slots=True)
class Needs:
    """The presence of steps. `steps`: of each step. `reads`: value with a selection -> the SubNets in which it is read.

    columns: the derived columns that masks refer to.
    """

    steps: tuple[Presence, ...]
    reads: Mapping[str, Presence]
    columns: DerivedColumns


def find_needs(
    steps: Sequence[Step], outputs: Sequence[str], selections: Sequence[Selection], columns: DerivedColumns
) -> Needs:
    """The presence of steps in topological order: a step is present if an output or a present step needs it.

    columns: the existing columns; derived columns are added to them.
    """
    position = {name: at for at, (_, writes) in enumerate(steps) for name in writes}
    due: dict[int, list[Selection]] = {}  # by the last of the producers: all readers of the value come after it
    for selection in sorted(selections, key=lambda each: -position.get(each.value, -1)):
        names = (selection.value, *selection.producers)
        due.setdefault(max(position.get(name, -1) for name in names), []).append(selection)
    readers: dict[str, list[Presence]] = {name: [ALWAYS] for name in outputs}
    wanted: dict[str, Presence] = {}  # of values with a selection
    computed: dict[str, Presence] = {}  # of values with a selection: SubNets whose producer is the value's own step

    def settle(selection: Selection) -> None:
        own = wanted[selection.value] = columns.any_of(readers.get(selection.value, ()))
        computed[selection.value] = NEVER
        for number, producer in enumerate(selection.producers):
            where = own & selection.when(number)
            if producer == selection.value:
                computed[producer] = where
            else:
                readers.setdefault(producer, []).append(where)

    found = [NEVER] * len(steps)
    for at in range(len(steps) - 1, -1, -1):
        for selection in due.get(at, ()):
            settle(selection)
        own_reads, writes = steps[at]
        lists = ([computed[name]] if name in computed else readers.get(name, ()) for name in writes)
        here = columns.any_of(chain.from_iterable(lists))
        found[at] = here
        if not here.never:
            for name in own_reads:
                readers.setdefault(name, []).append(here)
    return Needs(tuple(found), wanted, columns)
