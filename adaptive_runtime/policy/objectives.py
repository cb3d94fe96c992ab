"""Objectives of a choice: the most accurate variant within limits, or the one with the least weighted cost.

Legend: K variants of a cell that can be the answer.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import numpy as np

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.inputs import ChoiceLimits, LoadFactors, deviations, effective_factor
from adaptive_runtime.policy.lookup import NONE, FoundVariant, VariantLookUp

KEPT_ANSWERS = 8
"""Answers kept per objective: with and without margin, for warm and for all variants, before and after a change of limits."""


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
        for least_accuracy in (self.least_accuracy, 0.0):
            given = limits, factors, least_accuracy, without
            costs = [*self._of_cells(*given), *self._apart(*given)]
            if costs:
                _, _, variant = min(costs)
                return FoundVariant(variant, self.look_up.effective_ms(variant, limits, factors), True)
        return self.look_up.under(limits, factors, without)

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

    def _of_cells(
        self, limits: ChoiceLimits, factors: LoadFactors, least_accuracy: float, without: Set[int]
    ) -> Iterator[tuple[float, int, int]]:
        energy_mj, memory_mib = self.look_up.extra_limits(limits)
        above = deviations(limits.quantile)
        for cell in self.look_up.cells_without(factors, without):
            mean, deviation = factors.mean[cell.load_class], factors.deviation[cell.load_class]
            limit_ms = limits.budget_ms / effective_factor(mean, deviation, cell.error, above)
            allowed_K = (cell.latency_K <= limit_ms) & (cell.energy_K <= energy_mj)
            allowed_K &= (cell.memory_K <= memory_mib) & (cell.accuracy_K >= least_accuracy)
            cost_K = self.alpha_per_ms * (cell.latency_K * mean) + self.beta_per_mj * cell.energy_K
            cost_K = np.where(allowed_K, cost_K, inf)
            row = int(cost_K.argmin())
            if allowed_K[row]:
                variant = cell.kept[row]
                yield float(cost_K[row]), int(self.look_up.place_V[variant]), variant

    def _apart(
        self, limits: ChoiceLimits, factors: LoadFactors, least_accuracy: float, without: Set[int]
    ) -> Iterator[tuple[float, int, int]]:
        for variant in factors.own.keys() - without:
            accurate = self.look_up.table.accuracy[variant] >= least_accuracy
            if accurate and self.look_up.keeps(variant, limits, factors):
                yield self.cost(variant, factors), int(self.look_up.place_V[variant]), variant


@dataclass(slots=True)
class FoundOnce:
    """An objective that remembers its last answers: the same question under the same factors is looked up only once.

    Answers that were found when a request or a sample came in are ready when the next request waits for its decision and the
    caches are cold. Factors are compared by identity: they never change.
    """

    objective: Objective
    _factors: LoadFactors | None = field(default=None, init=False, repr=False, compare=False)
    _found: dict[tuple[object, ...], FoundVariant] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def look_up(self) -> VariantLookUp:
        return self.objective.look_up

    def find(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int] = NONE) -> FoundVariant:
        if factors is not self._factors:
            self._factors, self._found = factors, {}
        asked = limits.budget_ms, limits.quantile, limits.energy_mj, limits.memory_mib, frozenset(without)
        found = self._found.get(asked)
        if found is None:
            found = self.objective.find(limits, factors, without)
            while len(self._found) >= KEPT_ANSWERS:
                del self._found[next(iter(self._found))]
            self._found[asked] = found
        return found

    def prefers(self, one: int, other: int, factors: LoadFactors) -> bool:
        return self.objective.prefers(one, other, factors)
