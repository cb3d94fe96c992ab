"""Canonical choices: of all codes that are the same SubNet, the one with the largest choices.

A variable acts on a SubNet by the sizes of channel groups and by the producers of values. Where nothing that it acts on is
present, or where two choices act alike, its choices are the same SubNet. A `CanonicalChoices` says so as a table over the few
variables that decide it.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from solvers.tables import Derived, spread, with_derived
from tailor_ir.spaces.presence import Presence, Selection, Variables, any_of, expanded, presence
from tailor_ir.spaces.sizing import Sizing

CHUNK = 512  # codes at a time, whose columns fit in a cache


class Effect(NamedTuple):
    """The effect of variables on one thing: `values`, one axis for each of `variables`, where the thing is present."""

    variables: Variables
    values: np.ndarray
    presence: Presence


class CanonicalChoices(NamedTuple):
    """The canonical choices of one variable: `table`, one axis for each variable of `scope`, the last for its own choice."""

    variable: int
    scope: Variables
    table: np.ndarray


def effects_of(sizings: Sequence[Sizing], selections: Sequence[Selection]) -> list[Effect]:
    """Everything that variables act on but the resolution."""
    sizes = [Effect(each.variables, each.sizes, each.presence) for each in sizings]
    return sizes + [Effect(each.variables, each.chosen, each.live) for each in selections]


def relevance(variable: int, sizings: Sequence[Sizing], selections: Sequence[Selection]) -> Presence:
    """The SubNets in which a variable acts: on a size that is present, or on a producer that is read and differs."""
    found = [each.presence for each in sizings if variable in each.variables]
    for each in selections:
        if variable in each.variables:
            axis = each.variables.index(variable)
            varies = each.chosen.max(axis=axis) != each.chosen.min(axis=axis)
            others = tuple(column for column in each.variables if column != variable)
            found.append(each.live & presence(others, varies))
    return any_of(found)


def find_rules(
    cardinalities: Sequence[int], effects: Sequence[Effect], derived: Sequence[Derived] = ()
) -> tuple[CanonicalChoices, ...]:
    """The rule of each variable whose choices can be the same SubNet, in the order of the variables.

    cardinalities: of all columns; those of `derived` are the last.
    """
    first = len(cardinalities) - len(derived)
    acting: dict[int, list[Effect]] = {}
    for effect in effects:
        for variable in effect.variables:
            acting.setdefault(variable, []).append(effect)
    rules = []
    for variable in sorted(acting):
        own = [each._replace(presence=expanded(each.presence, variable, first, derived)) for each in acting[variable]]
        deciding = _deciding(variable, own)
        if deciding:
            rule = _rule(variable, deciding, cardinalities)
            if (rule.table != np.arange(cardinalities[variable])).any():
                rules.append(rule)
    return tuple(rules)


def _deciding(variable: int, effects: Sequence[Effect]) -> list[Effect]:
    """The effects that are to be looked at; none where each choice is another SubNet in any case.

    Where things that depend on the variable alone tell all its choices apart, nothing else matters.
    """
    alone: dict[Presence, list[Effect]] = {}
    for effect in effects:
        if effect.variables == (variable,):
            alone.setdefault(effect.presence, []).append(effect)
    telling = {
        where: own
        for where, own in alone.items()
        if len(np.unique(np.stack([e.values for e in own]), axis=1).T) == len(own[0].values)
    }
    if any(where.always for where in telling):
        return []
    others = [e for e in effects if not any(e.presence.implies(where) for where in telling)]
    return [e for own in telling.values() for e in own] + others


def _rule(variable: int, effects: Sequence[Effect], cardinalities: Sequence[int]) -> CanonicalChoices:
    deciding = {column for e in effects for column in (*e.variables, *e.presence.variables)} - {variable}
    scope = tuple(sorted(deciding))
    columns = tuple(sorted((*scope, variable)))
    shape = [cardinalities[column] for column in columns]
    acts = []
    for each in effects:
        there = spread(each.presence.variables, each.presence.mask, columns)
        acted = np.where(there, spread(each.variables, each.values, columns) + 1, 0)
        acts.append(np.moveaxis(np.broadcast_to(acted, shape), columns.index(variable), -1))
    signatures = np.stack(acts, axis=-1)  # one axis for each variable of the scope, the choices, the effects
    equal = (signatures[..., :, None, :] == signatures[..., None, :, :]).all(-1)
    largest = equal.shape[-1] - 1 - equal[..., ::-1].argmax(-1)
    return CanonicalChoices(variable, scope, largest)


class _RuleArrays(NamedTuple):
    """m rules as one array: `choices` at `starts` (m, 1) + own choice + what each variable of their scopes adds.

    hubs: for the k-th variable of every scope its columns (m,) and what each choice adds (m, 1), 0 where a scope has none.
    """

    variables: np.ndarray
    hubs: tuple[tuple[np.ndarray, np.ndarray], ...]
    starts: np.ndarray
    choices: np.ndarray

    @classmethod
    def of(cls, rules: Sequence[CanonicalChoices]) -> Self:
        strides = [np.cumprod([1, *rule.table.shape[:0:-1]])[::-1][:-1] for rule in rules]
        widest = max(len(rule.scope) for rule in rules)
        hubs = []
        for k in range(widest):
            columns = [rule.scope[k] if k < len(rule.scope) else 0 for rule in rules]
            adds = [int(own[k]) if k < len(own) else 0 for own in strides]
            hubs.append((np.array(columns), np.array(adds, np.int32)[:, None]))
        return cls(
            variables=np.array([rule.variable for rule in rules]),
            hubs=tuple(hubs),
            starts=np.cumsum([0, *(rule.table.size for rule in rules)], dtype=np.int32)[:-1, None],
            choices=np.concatenate([rule.table.ravel() for rule in rules]).astype(np.int32),
        )

    def apply(self, columns: np.ndarray) -> None:
        """Make these variables of transposed codes (V, n) canonical, in place."""
        at = columns.take(self.variables, axis=0)
        at += self.starts
        for variables, adds in self.hubs:
            at += columns.take(variables, axis=0) * adds
        columns[self.variables] = self.choices.take(at, mode="clip")  # nothing is beyond the ends; this looks up faster


class Canonical:
    """All rules of a space, applied to many codes at once."""

    def __init__(self, rules: Sequence[CanonicalChoices], derived: Sequence[Derived] = ()) -> None:
        """derived: columns behind the variables. They are equal for equal SubNets, so that no rule changes them."""
        self._derived = tuple(derived)
        self._steps = [_RuleArrays.of(group) for group in _in_groups(rules)]

    def __call__(self, codes: np.ndarray) -> np.ndarray:
        """Codes (n, V) in which equal SubNets are equal, as a new array."""
        return self.extended(with_derived(codes, self._derived))[:, : codes.shape[1]]

    def extended(self, codes: np.ndarray) -> np.ndarray:
        """The same for extended codes (n, V + D)."""
        found = np.empty(codes.shape, np.int64)
        for first in range(0, len(codes), CHUNK):
            columns = np.ascontiguousarray(codes[first : first + CHUNK].T, np.int32)
            for step in self._steps:
                step.apply(columns)
            found[first : first + CHUNK] = columns.T
        return found


def _in_groups(rules: Sequence[CanonicalChoices]) -> list[list[CanonicalChoices]]:
    """Rules in order; none reads or writes what another rule of its group, before it, writes."""
    groups: list[list[CanonicalChoices]] = []
    written: set[int] = set()
    for rule in rules:
        if not groups or written & {rule.variable, *rule.scope}:
            groups.append([])
            written = set()
        groups[-1].append(rule)
        written.add(rule.variable)
    return groups
