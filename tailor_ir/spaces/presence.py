"""Presence: the SubNets that have a value or step, as a mask over the choices of few variables; and sizes of groups.

One graph contains all candidates of an architecture. A value may have several producers; its `Selection` chooses the
producer that the value's readers read. A step is present if something needs one of its results. A skipped block is the
case "the producer is the block's own entry"; a block that replaces others is a producer that reads from further back.
Counting, canonical configs, lowering, operators, memory and the exact search all use this presence. One walk from the
outputs finds it.

Masks may refer to *derived columns*, which represent masks over more variables and keep masks small. Codes with derived
columns after their own are *extended* (`Space.extended`). If an alternative may replace several blocks at a time, the
presence of a block depends on all choices behind it. A derived column states whether a value is needed; it follows from
few columns, and replaces a variable in masks. Each is built from as few columns as possible: first the need of one
block behind, then the additional need of the next one. Thus every mask involves few columns, whatever the number of
choices of a block.

The size of a channel group or a kernel is a table over the choices of few variables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Final, Self

import numpy as np

from solvers.diagrams import ALL, NONE, Diagrams
from solvers.tables import Derived, spread

Variables = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Presence:
    """The SubNets that have something: `mask` over the choices of `variables`, one axis for each variable.

    `variables` are columns of extended codes, ascending. The mask depends on every one of them (ensured by `presence`).
    """

    variables: Variables
    mask: np.ndarray

    @property
    def always(self) -> bool:
        """Whether every SubNet has it."""
        return not self.variables and bool(self.mask)

    @property
    def never(self) -> bool:
        """Whether no SubNet has it."""
        return not self.variables and not self.mask

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Presence):
            return NotImplemented
        return self.variables == other.variables and np.array_equal(self.mask, other.mask)

    def __hash__(self) -> int:
        return hash((self.variables, self.mask.tobytes()))

    def __invert__(self) -> "Presence":
        return Presence(self.variables, ~self.mask)

    def __and__(self, other: "Presence") -> "Presence":
        if self is other or self.never or other.always:
            return self
        if other.never or self.always:
            return other
        variables, first, second = _aligned(self, other)
        return presence(variables, first & second)

    def __or__(self, other: "Presence") -> "Presence":
        if self is other or self.always or other.never:
            return self
        if other.always or self.never:
            return other
        variables, first, second = _aligned(self, other)
        return presence(variables, first | second)

    def implies(self, other: "Presence") -> bool:
        """Whether every SubNet that has this has the other, too."""
        return other.always or (self & ~other).never

    def at(self, codes: np.ndarray) -> bool:
        """Whether the SubNet of one row of extended codes (V + D,) has it."""
        return bool(self.mask[tuple([codes[column] for column in self.variables])])

    def among(self, codes: np.ndarray) -> np.ndarray:
        """Whether each SubNet of extended codes (n, V + D) has it: (n,), or () if all or none have it."""
        return np.asarray(self.mask[tuple(codes[:, column] for column in self.variables)])


ALWAYS: Final = Presence((), np.asarray(True))
NEVER: Final = Presence((), np.asarray(False))


def presence(variables: Sequence[int], mask: np.ndarray) -> Presence:
    """The presence of a mask over any variables, without variables that make no difference."""
    order = sorted(range(len(variables)), key=variables.__getitem__)
    mask = np.asarray(mask, bool).transpose(order)
    kept: list[int] = []
    for axis in reversed(range(len(order))):
        first = mask[(slice(None),) * axis + (slice(1),)]
        if (mask == first).all():
            mask = first.squeeze(axis)
        else:
            kept.insert(0, variables[order[axis]])
    if kept:
        return Presence(tuple(kept), mask)
    return ALWAYS if mask else NEVER


def _aligned(one: Presence, other: Presence) -> tuple[Variables, np.ndarray, np.ndarray]:
    """Two masks, extended to the variables of both."""
    variables = tuple(sorted({*one.variables, *other.variables}))
    first, second = (spread(each.variables, each.mask, variables) for each in (one, other))
    return variables, first, second


class Roster:
    """The presences of many things, most of them equal: each distinct mask is looked up once for a SubNet."""

    def __init__(self, presences: Sequence[Presence]) -> None:
        number: dict[Presence, int] = {}
        self._numbers = [number.setdefault(each, len(number)) for each in presences]
        self._different = tuple(number)

    def at(self, codes: np.ndarray) -> list[bool]:
        """For each thing, in order, whether the SubNet of one row of extended codes (V + D,) has it."""
        there = [each.at(codes) for each in self._different]
        return [there[number] for number in self._numbers]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """A value with several producers: the choices of some variables decide which one its readers read.

    producers: names of values; `value` itself means the node that computes that name in the graph. All producers come before
    the value's first reader. variables: columns of choice indices, ascending. chosen: positions in `producers`, one axis for
    each variable. live: the SubNets in which the value is read.
    """

    value: str
    producers: tuple[str, ...]
    variables: Variables
    chosen: np.ndarray
    live: Presence = ALWAYS

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Selection):
            return NotImplemented
        own, others = ((s.value, s.producers, s.variables, s.live) for s in (self, other))
        return own == others and np.array_equal(self.chosen, other.chosen)

    __hash__ = None  # type: ignore[assignment]

    def when(self, position: int) -> Presence:
        """The SubNets that choose the producer at a position."""
        return presence(self.variables, self.chosen == position)

    def producer(self, codes: np.ndarray) -> str:
        """The producer under one row of choice indices (V,)."""
        return self.producers[int(self.chosen[tuple(codes[list(self.variables)])])]


def merged(first: Selection, second: Selection) -> Selection:
    """Two selections of one value as one. The second decides if the first chooses the value itself."""
    assert first.value == second.value
    producers = tuple(dict.fromkeys((*first.producers, *second.producers)))
    variables = tuple(sorted({*first.variables, *second.variables}))
    at_first, at_second = (
        spread(each.variables, np.asarray([producers.index(name) for name in each.producers])[each.chosen], variables)
        for each in (first, second)
    )
    itself = producers.index(first.value)
    chosen = np.where(at_first == itself, at_second, at_first)
    return Selection(value=first.value, producers=producers, variables=variables, chosen=chosen)


class Producers:
    """The producers of values, including chosen producers that have several producers themselves."""

    def __init__(self, selections: Sequence[Selection]) -> None:
        self._selections = {selection.value: selection for selection in selections}
        self._all: dict[str, tuple[tuple[str, Presence], ...]] = {}
        self.elsewhere = frozenset(one for each in selections for one in each.producers if one != each.value)
        """Values that are read in place of others in some SubNets."""

    def of(self, name: str, codes: np.ndarray) -> str:
        """The chosen producer of a value in one SubNet; the value itself if its own node is chosen."""
        while (selection := self._selections.get(name)) is not None:
            producer = selection.producer(codes)
            if producer == name:
                break
            name = producer
        return name

    def under(self, codes: np.ndarray) -> dict[str, str]:
        """For one SubNet: each value with several producers -> the chosen producer.

        Values whose own node is chosen are left out.
        """
        found = {name: self.of(name, codes) for name in self._selections}
        return {name: source for name, source in found.items() if source != name}

    def all_of(self, name: str) -> tuple[tuple[str, Presence], ...]:
        """All producers of a value, each with the SubNets in which it is chosen."""
        if name not in self._selections:
            return ((name, ALWAYS),)
        if name not in self._all:
            self._all[name] = self._followed(self._selections[name])
        return self._all[name]

    def _followed(self, selection: Selection) -> tuple[tuple[str, Presence], ...]:
        found: dict[str, Presence] = {}
        for number, producer in enumerate(selection.producers):
            where = selection.when(number)
            inner = ((producer, ALWAYS),) if producer == selection.value else self.all_of(producer)
            for source, under in inner:
                found[source] = found.get(source, NEVER) | (where & under)
        return tuple((source, where) for source, where in found.items() if not where.never)


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizing:
    """The sizes of one group: `sizes` has one axis for each of `variables` (columns of choice indices, ascending).

    presence: the SubNets in which a node has the group.
    """

    group: int
    variables: Variables
    sizes: np.ndarray
    presence: Presence = ALWAYS

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sizing):
            return NotImplemented
        same = (self.group, self.variables, self.presence) == (other.group, other.variables, other.presence)
        return same and np.array_equal(self.sizes, other.sizes)

    __hash__ = None  # type: ignore[assignment]
