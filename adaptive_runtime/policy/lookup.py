"""Exact look-up of the best variant within limits, with and without load, by accuracy or by the least weighted cost.

The first row that keeps all limits wins, in order of preference. The more accurate variant is preferred; among equally
accurate variants the faster, the more frugal, the smaller, the first. Tables have some tens of rows, so a plain loop is
the fastest look-up. Errors of prediction are rounded up to a few values: variants of one load class and one error share
their limit on latency.

Legend: V variants, L levels.
"""

import copy
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from math import ceil, copysign, floor, inf, log10, sqrt
from statistics import NormalDist
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Values
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.inputs import ChoiceLimits, LoadFactors, VariantTable

MOST_QUANTILE = 1 - 1e-9
MOST_ROOM = 3.0
"""Cap on deviations: load is not normally distributed enough for more to mean anything."""
ROOM_STEPS = 10
"""Steps within one deviation."""


def quantile_of(above: float) -> float:
    """The inverse of `deviations`, below 1."""
    return min(MOST_QUANTILE, NormalDist().cdf(above))


@lru_cache(maxsize=1024)
def deviations(quantile: float) -> float:
    """The number of deviations by which a normal variable's quantile lies above its mean."""
    return NormalDist().inv_cdf(quantile)


def quantile_text(quantile: float) -> str:
    """A quantile as text: in three digits, or in as many as are needed to distinguish it from 1."""
    return f"{quantile:.{max(3, ceil(-log10(1 - quantile)))}g}"


def effective_factor(mean: float, deviation: float, error: float, above: float) -> float:
    """A quantile of slow-down × (1 + error of the prediction), `above` deviations over the mean.

    Both are independent; the product has mean `mean` and variance deviation² + error² · (mean² + deviation²).
    """
    return mean + above * sqrt(deviation * deviation + error * error * (mean * mean + deviation * deviation))


def room_of(limit: float, mean: float, deviation: float, error: float) -> int:
    """Tenths of a deviation that a limit leaves above the mean of that product, up to `MOST_ROOM` deviations; 0: none."""
    spread, left = sqrt(deviation * deviation + error * error * (mean * mean + deviation * deviation)), limit - mean
    room = left / spread if spread else copysign(MOST_ROOM, left)
    return floor(min(MOST_ROOM, max(0.0, room)) * ROOM_STEPS)


MOST_ERRORS = 4
MOST_LEVELS = 64
"""Limit of distinct errors among which the kept ones are found; of more, quantiles are taken."""


def rounded_errors(error_V: Values) -> Values:
    """Errors, rounded up by as little as possible so that at most `MOST_ERRORS` differ."""
    levels, at_V = np.unique(error_V, return_inverse=True)
    if len(levels) <= MOST_ERRORS:
        return error_V
    if len(levels) > MOST_LEVELS:
        levels = np.unique(np.quantile(error_V, np.arange(1, MOST_LEVELS + 1) / MOST_LEVELS, method="higher"))
        at_V = np.searchsorted(levels, error_V)
    return _least_raised(levels, np.bincount(at_V, minlength=len(levels)))[at_V]


def _least_raised(levels_L: Values, count_L: NDArray[np.intp]) -> Values:
    """Levels (L,) rounded up to `MOST_ERRORS` of them, so that the total increase over all values is smallest."""
    count, whole = np.append(0, np.cumsum(count_L)), np.append(0.0, np.cumsum(count_L * levels_L))
    # raised_LL[first, last]: total increase of the values of levels first … last
    raised_LL = levels_L * (count[1:] - count[:-1, None]) - (whole[1:] - whole[:-1, None])
    raised_LL[np.tril_indices(len(levels_L), -1)] = inf
    least_L, firsts = raised_LL[0], []
    for _ in range(MOST_ERRORS - 1):
        choices_LL = np.append(0.0, least_L[:-1])[:, None] + raised_LL
        firsts.append(choices_LL.argmin(0))
        least_L = choices_LL.min(0)
    rounded_L, last = np.empty_like(levels_L), len(levels_L) - 1
    for first_L in (*reversed(firsts), np.zeros(len(levels_L), np.int64)):
        rounded_L[first_L[last] : last + 1] = levels_L[last]
        last = first_L[last] - 1
        if last < 0:
            break
    return rounded_L


NONE: Set[int] = frozenset()


class FoundVariant(NamedTuple):
    """A variant. effective_ms: its latency under load at the limits' quantile. within: it keeps all limits."""

    variant: int
    effective_ms: float
    within: bool


class VariantLookUp:
    """A table prepared for look-ups. Errors of prediction are rounded up to at most four values, `error_V`.

    place_V: each variant's place in the order of preference, from 0.
    """

    def __init__(self, table: VariantTable) -> None:
        self.table, self._count = table, len(table)
        self.load_classes = table.load_classes
        self.error_V = rounded_errors(table.latency_error_V)
        kinds = list(zip(table.load_class_V.tolist(), self.error_V.tolist(), strict=True))
        self._kinds = sorted(set(kinds))
        self._kind = [self._kinds.index(kind) for kind in kinds]
        extras = table.energy_mj_V.tolist(), table.memory_mib_V.tolist()
        self._rows = list(zip(table.latency_ms, *extras, strict=True))
        self._order(sorted(range(len(table)), key=lambda each: (-table.accuracy[each], *self._rows[each], each)))

    def ranked(self, score_V: Values) -> Self:
        """The same variants in another order of preference: the higher score (V,) first, equal ones in the present order."""
        scores = score_V.tolist()
        other = copy.copy(self)
        other.__dict__.pop("kept_rows", None)
        other._order(sorted(self._best_first, key=scores.__getitem__, reverse=True))
        return other

    @property
    def kept(self) -> int:
        """Number of variants that can be the answer of a look-up."""
        return len(self.kept_rows)

    @cached_property
    def kept_rows(self) -> list[int]:
        """Variants that can be the answer of a look-up.

        No preferred one of the same load class and error is as fast, frugal and small.
        """
        rows_V3, kept = np.array(self._rows), list[int]()
        for variants in self._of_kinds:
            able = list[int]()
            for variant in variants:
                if not (rows_V3[able] <= rows_V3[variant]).all(1).any():
                    able.append(variant)
            kept += able
        return kept

    @property
    def kept_table(self) -> VariantTable:
        """The table without variants that are never preferred, whatever the limits, the slow-downs of classes and the weights.

        For each of these, another variant of its class is at least as accurate, fast, sure, frugal and small. But that variant
        may be worse if it has a factor of its own or no longer works, so tables of bundles keep all.
        """
        errors = self.error_V.tolist() if self.table.latency_error is not None else None
        rows = sorted(self.kept_rows)
        return self.table.model_copy(update={"latency_error": errors}).of_rows(rows)

    def best(self, latency_ms: float, energy_mj: float = inf, memory_mib: float = inf) -> int | None:
        """The best variant within three limits, without load; None if there is none."""
        for variant, _, latency, energy, memory in self._ordered:
            if latency <= latency_ms and energy <= energy_mj and memory <= memory_mib:
                return variant
        return None

    def within(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int] = NONE) -> Iterator[int]:
        """Variants that keep the budget with the limits' probability, energy and memory, the best first; none of `without`.

        AdaptiveError if the table lacks a limited column or a named variant, or the factors lack a load class.
        """
        energy_mj, memory_mib = self._checked(limits, factors, without)
        budget_ms, above, own = limits.budget_ms, deviations(limits.quantile), factors.own
        mean, deviation = factors.mean, factors.deviation
        shared_ms = [budget_ms / effective_factor(mean[at], deviation[at], error, above) for at, error in self._kinds]
        for variant, kind, latency, energy, memory in self._ordered:
            if energy <= energy_mj and memory <= memory_mib and variant not in without:
                apart = variant in own
                if latency <= (budget_ms / self._own_factor(variant, factors, above) if apart else shared_ms[kind]):
                    yield variant

    def under(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int] = NONE) -> FoundVariant:
        """The best variant that keeps the budget with the limits' probability, energy and memory; none of `without`.

        If no variant keeps all limits, return the surest one within energy and memory, else the surest of all: the variant that
        most probably keeps the budget. Among equally sure ones, and if none keeps the budget on average, it is the fastest at
        the limits' quantile. AdaptiveError as of `within`, and if `without` has all variants.
        """
        if len(without) >= self._count and without >= set(range(self._count)):
            raise AdaptiveError("choice", "no variant is left")
        for variant in self.within(limits, factors, without):
            return FoundVariant(variant, self.effective_ms(variant, limits, factors), True)
        return self._surest(limits, factors, without)

    def effective_ms(self, variant: int, limits: ChoiceLimits, factors: LoadFactors) -> float:
        """Latency of a variant under load, at the limits' quantile."""
        return self.table.latency_ms[variant] * self._own_factor(variant, factors, deviations(limits.quantile))

    def room(self, variant: int, limits: ChoiceLimits, factors: LoadFactors) -> int:
        """Tenths of a deviation that the budget leaves above the expected latency of a variant, at most 30; 0: none."""
        limit = limits.budget_ms / self.table.latency_ms[variant]
        return room_of(limit, *self._slow_down(variant, factors))

    def keeps(self, variant: int, limits: ChoiceLimits, factors: LoadFactors) -> bool:
        """Whether a variant keeps all limits."""
        if not self.keeps_extras(variant, limits):
            return False
        factor = self._own_factor(variant, factors, deviations(limits.quantile))
        return self.table.latency_ms[variant] <= limits.budget_ms / factor

    def keeps_extras(self, variant: int, limits: ChoiceLimits) -> bool:
        """Whether a variant keeps the limits of energy and memory."""
        return self._keeps_extras(variant, *self.extra_limits(limits))

    def prefers(self, one: int, other: int) -> bool:
        """Whether one variant is preferred to another if both keep the limits."""
        return self._place[one] < self._place[other]

    def extra_limits(self, limits: ChoiceLimits) -> tuple[float, float]:
        """Limits of energy and memory. AdaptiveError if the table lacks a limited column."""
        energy_mj, memory_mib = limits.energy_mj, limits.memory_mib
        if energy_mj is not None and self.table.energy_mj is None:
            raise AdaptiveError("limit of energy", "the table knows no energy", next_step="measure it, or leave it out")
        if memory_mib is not None and self.table.memory_mib is None:
            raise AdaptiveError("limit of memory", "the table knows no memory", next_step="measure it, or leave it out")
        return inf if energy_mj is None else energy_mj, inf if memory_mib is None else memory_mib

    def _order(self, best_first: Sequence[int]) -> None:
        self._best_first = best_first
        self._ordered = [(each, self._kind[each], *self._rows[each]) for each in best_first]
        self.place_V = np.argsort(best_first)
        self._place = self.place_V.tolist()
        self._of_kinds = [[each for each in best_first if self._kind[each] == kind] for kind in range(len(self._kinds))]
        # of variants that slow down alike, the fastest is the surest
        self._fastest_first = [sorted(each, key=self.table.latency_ms.__getitem__) for each in self._of_kinds]

    def _checked(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int]) -> tuple[float, float]:
        """The limits of energy and memory; AdaptiveError if the table does not fit to them or to the factors."""
        size, extras = self._count, self.extra_limits(limits)
        if len(factors.mean) < self.load_classes:
            got = f"factors of {len(factors.mean)} load classes"
            raise AdaptiveError("slow-down", got, allowed=f"{self.load_classes}, as in the table")
        for named in (factors.own, without):
            if named and not (min(named) >= 0 and max(named) < size):
                unknown = next(each for each in named if not 0 <= each < size)
                raise AdaptiveError("slow-down", f"variant {unknown}", allowed=f"0 to {size - 1}")
        return extras

    def _slow_down(self, variant: int, factors: LoadFactors) -> tuple[float, float, float]:
        """Mean, deviation and error of a variant's factor."""
        load_class, error = self._kinds[self._kind[variant]]
        own = factors.own.get(variant)
        return (factors.mean[load_class], factors.deviation[load_class], error) if own is None else (*own, error)

    def _own_factor(self, variant: int, factors: LoadFactors, above: float) -> float:
        return effective_factor(*self._slow_down(variant, factors), above)

    def _keeps_extras(self, variant: int, energy_mj: float, memory_mib: float) -> bool:
        _, energy, memory = self._rows[variant]
        return energy <= energy_mj and memory <= memory_mib

    def _surest(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int]) -> FoundVariant:
        apart, found = {*factors.own, *without}, list[int]()
        for extras in (self.extra_limits(limits), (inf, inf)):
            found = [each for each in factors.own if each not in without and self._keeps_extras(each, *extras)]
            for variants in self._fastest_first:
                able = (each for each in variants if each not in apart and self._keeps_extras(each, *extras))
                found += islice(able, 1)
            if found:
                break
        _, effective_ms, _, variant = min(
            (-self.room(one, limits, factors), self.effective_ms(one, limits, factors), self._place[one], one)
            for one in found
        )
        return FoundVariant(variant, effective_ms, False)


class Objective(Protocol):
    """`find`: the best variant now, none of `without`.

    `prefers`: whether one variant is better than another if both keep the limits.
    """

    @property
    def look_up(self) -> VariantLookUp: ...

    def find(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int] = NONE) -> FoundVariant: ...

    def prefers(self, one: int, other: int, factors: LoadFactors) -> bool: ...


@dataclass(frozen=True, slots=True)
class MostAccurate:
    """The most accurate variant within the limits."""

    look_up: VariantLookUp

    def find(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int] = NONE) -> FoundVariant:
        return self.look_up.under(limits, factors, without)

    def prefers(self, one: int, other: int, factors: LoadFactors) -> bool:
        return self.look_up.prefers(one, other)


@dataclass(frozen=True, slots=True)
class LeastCost:
    """The variant with the least J = alpha · latency + beta · energy within the limits and with a least accuracy.

    Latency: mean under load. If no variant keeps all conditions, the accuracy is given up first. Source: AdaScale, eq. 6 and 7,
    and the accuracy of its eq. 1.
    """

    look_up: VariantLookUp
    alpha_per_ms: float
    beta_per_mj: float
    least_accuracy: float = 0.0

    def __post_init__(self) -> None:
        if self.alpha_per_ms < 0 or self.beta_per_mj < 0:
            got = f"weights {self.alpha_per_ms:g} and {self.beta_per_mj:g}"
            raise AdaptiveError("objective", got, allowed="0 and more")
        if self.beta_per_mj and self.look_up.table.energy_mj is None:
            raise AdaptiveError("objective", "a weight of energy for a table without energy", allowed="0")

    def find(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int] = NONE) -> FoundVariant:
        within, accuracy = list(self.look_up.within(limits, factors, without)), self.look_up.table.accuracy
        if not within:
            return self.look_up.under(limits, factors, without)
        able = [each for each in within if accuracy[each] >= self.least_accuracy] or within
        variant = min(able, key=lambda each: self.cost(each, factors))  # of equal costs, the preferred one
        return FoundVariant(variant, self.look_up.effective_ms(variant, limits, factors), True)

    def prefers(self, one: int, other: int, factors: LoadFactors) -> bool:
        place_V = self.look_up.place_V
        return (self.cost(one, factors), place_V[one]) < (self.cost(other, factors), place_V[other])

    def cost(self, variant: int, factors: LoadFactors) -> float:
        """J of a variant under load."""
        table = self.look_up.table
        load_class = 0 if table.load_class is None else table.load_class[variant]
        mean, _ = factors.own.get(variant, (factors.mean[load_class], 0.0))
        energy_mj = 0.0 if table.energy_mj is None else table.energy_mj[variant]
        return self.alpha_per_ms * (table.latency_ms[variant] * mean) + self.beta_per_mj * energy_mj
