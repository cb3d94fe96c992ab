"""Canonical choices, the largest among all codes of the same SubNet, and the exact number of a space's SubNets.

A variable acts on a SubNet through the sizes of channel groups and the producers of values. If nothing that it acts on
is present, or if two choices act alike, its choices give the same SubNet. A `CanonicalChoices` stores this as a table
over the few variables that decide it.

Different SubNets have different canonical codes. A code is canonical if no rule changes it, so the count is a sum of
products of tables over few variables. Source: variable elimination (R. Dechter, *Bucket elimination*, Artificial
Intelligence 113, 1999). The number can exceed the machine's integers: it is computed modulo several primes, and
reconstructed from the remainders.
"""

from collections.abc import Sequence
from functools import cache
from itertools import islice
from math import isqrt, prod
from typing import NamedTuple, Self

import numpy as np

from solvers.diagrams import NONE, Diagrams
from solvers.tables import Derived, spread, with_derived
from tailor_ir.spaces.presence import DerivedColumns, Presence, Selection, Sizing, Variables, presence

CHUNK = 512  # codes at a time, so that their columns fit in a cache


class Effect(NamedTuple):
    """The effect of variables on one thing: `values`, one axis for each of `variables`. presence: SubNets that have it."""

    variables: Variables
    values: np.ndarray
    presence: Presence


class CanonicalChoices(NamedTuple):
    """The canonical choices of one variable: `table`, one axis for each variable of `scope`, the last for its own choice."""

    variable: int
    scope: Variables
    table: np.ndarray


def effects_of(sizings: Sequence[Sizing], selections: Sequence[Selection]) -> list[Effect]:
    """All effects of variables except the resolution."""
    sizes = [Effect(each.variables, each.sizes, each.presence) for each in sizings]
    return sizes + [Effect(each.variables, each.chosen, each.live) for each in selections]


def relevance(
    variable: int, sizings: Sequence[Sizing], selections: Sequence[Selection], columns: DerivedColumns
) -> tuple[Presence, ...]:
    """Presences of everything that a variable acts on: sizes that are present, and producers that are read and differ."""
    found = [each.presence for each in sizings if variable in each.variables]
    for each in selections:
        if variable in each.variables:
            axis = each.variables.index(variable)
            varies = each.chosen.max(axis=axis) != each.chosen.min(axis=axis)
            others = tuple(column for column in each.variables if column != variable)
            found.append(each.live & presence(others, varies))
    widest: list[Presence] = []
    for where in dict.fromkeys(found):
        if not any(columns.implies(where, other) for other in widest):
            widest = [other for other in widest if not columns.implies(other, where)] + [where]
    return tuple(widest)


def find_rules(
    cardinalities: Sequence[int], effects: Sequence[Effect], columns: DerivedColumns
) -> tuple[CanonicalChoices, ...]:
    """The rule of each variable that has choices with equal SubNets, in the order of the variables.

    cardinalities: of all columns; the derived ones are the last.
    """
    acting: dict[int, list[Effect]] = {}
    for effect in effects:
        for variable in effect.variables:
            acting.setdefault(variable, []).append(effect)
    rules = []
    for variable in sorted(acting):
        deciding = _deciding(variable, acting[variable], columns)
        if deciding:
            rule = _Comparison(variable, deciding, cardinalities, columns).rule()
            if (rule.table != np.arange(cardinalities[variable])).any():
                rules.append(rule)
    return tuple(rules)


def _deciding(variable: int, effects: Sequence[Effect], columns: DerivedColumns) -> list[Effect]:
    """The effects that must be compared; none if each choice gives another SubNet in any case.

    If some things depend on the variable alone and differ between all its choices, nothing else matters wherever they are
    present.
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
    others = [e for e in effects if not any(columns.implies(e.presence, where) for where in telling)]
    return [e for own in telling.values() for e in own] + others


class _Comparison:
    """Pairwise comparison of the choices of one variable: the SubNets in which they differ, as a diagram over other columns.

    Derived columns that follow from the variable are expanded; all others are treated like columns of variables.
    """

    def __init__(
        self, variable: int, effects: Sequence[Effect], cardinalities: Sequence[int], columns: DerivedColumns
    ) -> None:
        self._variable, self._effects, self._cardinalities = variable, effects, cardinalities
        self._diagrams = Diagrams()
        self._derived = dict(enumerate(columns.derived, start=columns.variables))
        self._following = {variable}
        for column, each in self._derived.items():
            if not self._following.isdisjoint(each.columns):
                self._following.add(column)
        self._meanings: list[dict[int, int]] = [{} for _ in range(cardinalities[variable])]
        self._there = [
            [self._under(choice, each.presence.variables, each.presence.mask) for each in effects]
            for choice in range(cardinalities[variable])
        ]

    def rule(self) -> CanonicalChoices:
        """The largest choice that gives the same SubNet, over the columns that decide it."""
        count = self._cardinalities[self._variable]
        pairs = {(one, other): self._differ(one, other) for other in range(count) for one in range(other)}
        scope = tuple(sorted(set().union(*(self._diagrams.columns(each) for each in pairs.values()))))
        shape = [self._cardinalities[column] for column in scope]
        largest = np.broadcast_to(np.arange(count), (*shape, count)).copy()
        for (one, other), different in pairs.items():  # pairs ascend, so the largest equal choice is written last
            largest[..., one][~self._diagrams.mask(different, scope, shape)] = other
        return CanonicalChoices(self._variable, scope, largest)

    def _differ(self, one: int, other: int) -> int:
        """The SubNets in which a thing is present under one of the choices alone, or differs between both."""
        diagrams, found = self._diagrams, NONE
        for effect, here, there in zip(self._effects, self._there[one], self._there[other], strict=True):
            axis = effect.variables.index(self._variable)
            others = (*effect.variables[:axis], *effect.variables[axis + 1 :])
            changed = effect.values.take(one, axis) != effect.values.take(other, axis)
            both = diagrams.intersection(here, there)
            found = diagrams.union(found, diagrams.intersection(both, diagrams.of(others, changed, {})))
            if here != there:
                found = diagrams.union(
                    found, diagrams.intersection(diagrams.union(here, there), diagrams.complement(both))
                )
        return found

    def _under(self, choice: int, columns: Variables, mask: np.ndarray) -> int:
        """The diagram of a mask under one choice of the variable."""
        meanings = self._meanings[choice]
        for column in columns:
            if column in self._following and column != self._variable and column not in meanings:
                derived = self._derived[column]
                meanings[column] = self._under(choice, derived.columns, derived.values)
        if self._variable in columns:
            mask = mask.take(choice, columns.index(self._variable))
            columns = tuple(column for column in columns if column != self._variable)
        return self._diagrams.of(columns, mask, meanings)


class _RuleArrays(NamedTuple):
    """m rules as one array: `choices` at index `starts` (m, 1) + own choice + an offset for each variable of their scopes.

    hubs: for the k-th variable of every scope, its columns (m,) and its stride (m, 1), 0 if a scope has fewer variables.
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
        columns[self.variables] = self.choices.take(at, mode="clip")  # never out of range; "clip" is fastest


class Canonical:
    """All rules of a space, applied to many codes at once."""

    def __init__(self, rules: Sequence[CanonicalChoices], derived: Sequence[Derived] = ()) -> None:
        """derived: columns after the variables. They are equal for equal SubNets, so no rule changes them."""
        self._derived = tuple(derived)
        self._steps = [_RuleArrays.of(group) for group in _in_groups(rules)]

    def __call__(self, codes: np.ndarray) -> np.ndarray:
        """Canonical codes (n, V), in which equal SubNets have equal rows, as a new array."""
        return self.extended(with_derived(codes, self._derived))[:, : codes.shape[1]]

    def extended(self, codes: np.ndarray) -> np.ndarray:
        """Canonical extended codes (n, V + D)."""
        found = np.empty(codes.shape, np.int64)
        for first in range(0, len(codes), CHUNK):
            columns = np.ascontiguousarray(codes[first : first + CHUNK].T, np.int32)
            for step in self._steps:
                step.apply(columns)
            found[first : first + CHUNK] = columns.T
        return found


def _in_groups(rules: Sequence[CanonicalChoices]) -> list[list[CanonicalChoices]]:
    """Consecutive groups of rules; within a group, no rule reads or writes a variable that an earlier one writes."""
    groups: list[list[CanonicalChoices]] = []
    written: set[int] = set()
    for rule in rules:
        if not groups or written & {rule.variable, *rule.scope}:
            groups.append([])
            written = set()
        groups[-1].append(rule)
        written.add(rule.variable)
    return groups


Factor = tuple[Variables, np.ndarray]
"""Ascending columns; remainders, one axis for the primes and one for each column."""
LARGEST_PRIME = 2**31 - 1  # products of two remainders are below 2^63


def count(cardinalities: Sequence[int], rules: Sequence[CanonicalChoices], derived: Sequence[Derived] = ()) -> int:
    """The number of canonical codes. cardinalities: of the variables. derived: the columns after them."""
    primes = _primes(prod(cardinalities).bit_length() // 30 + 1)  # their product exceeds the number of codes
    follows = [_follows(len(cardinalities) + number, one) for number, one in enumerate(derived)]
    factors: list[Factor] = [(columns, values[None]) for columns, values in (*map(_canonical, rules), *follows)]
    cardinalities = (*cardinalities, *[2] * len(derived))
    involved = {column for columns, _ in factors for column in columns}
    alone = prod(n for column, n in enumerate(cardinalities) if column not in involved)
    moduli = np.asarray(primes, np.int64)
    while involved:
        variable = min(involved, key=lambda column: (*_scope_size(column, factors, cardinalities), column))
        involved.remove(variable)
        together = [factor for factor in factors if variable in factor[0]]
        factors = [factor for factor in factors if variable not in factor[0]]
        factors.append(_summed(variable, together, cardinalities, moduli))
    remainders = np.full(len(primes), 1, np.int64)
    for _, values in factors:
        remainders = remainders * values % moduli
    return alone * _from_remainders(remainders.tolist(), primes)


@cache
def _primes(count: int) -> tuple[int, ...]:
    """The largest primes below 2^31, in descending order; each of the first ones is above 2^30."""
    divisors = np.arange(3, isqrt(LARGEST_PRIME) + 1, 2)
    return tuple(islice((one for one in range(LARGEST_PRIME, 2, -2) if (one % divisors).all()), count))


def _from_remainders(remainders: Sequence[int], primes: Sequence[int]) -> int:
    """The number below the product of the primes with these remainders. Source: the Chinese remainder theorem."""
    number, modulus = 0, 1
    for remainder, prime in zip(remainders, primes, strict=True):
        number += modulus * ((remainder - number) * pow(modulus, -1, prime) % prime)
        modulus *= prime
    return number


def _canonical(rule: CanonicalChoices) -> tuple[Variables, np.ndarray]:
    """1 if a rule does not change the variable's choice, else 0."""
    columns = tuple(sorted((*rule.scope, rule.variable)))
    kept = rule.table == np.arange(rule.table.shape[-1])
    return columns, np.moveaxis(kept, -1, columns.index(rule.variable)).astype(np.int64)


def _follows(column: int, derived: Derived) -> tuple[Variables, np.ndarray]:
    """1 if a derived column has the value that follows from its columns, else 0."""
    values = np.asarray(derived.values, bool)
    return (*derived.columns, column), np.stack([~values, values], axis=-1).astype(np.int64)


def _scope_size(variable: int, factors: Sequence[Factor], cardinalities: Sequence[int]) -> tuple[int, int]:
    """Columns and entries of the table for eliminating a variable; eliminating the fewest columns first keeps tables small."""
    scope = {column for columns, _ in factors if variable in columns for column in columns}
    return len(scope), prod(cardinalities[column] for column in scope)


def _summed(variable: int, factors: Sequence[Factor], cardinalities: Sequence[int], moduli: np.ndarray) -> Factor:
    """The product of the factors that contain a variable, summed over its choices."""
    scope = tuple(sorted({column for columns, _ in factors for column in columns}))
    over = moduli.reshape(-1, *(1,) * len(scope))
    product = np.ones([len(moduli), *(cardinalities[column] for column in scope)], np.int64)
    for columns, values in factors:
        product *= np.stack([spread(columns, each, scope) for each in values])
        product %= over
    axis = scope.index(variable)
    left = (*scope[:axis], *scope[axis + 1 :])
    return left, product.sum(axis=axis + 1) % moduli.reshape(-1, *(1,) * len(left))
