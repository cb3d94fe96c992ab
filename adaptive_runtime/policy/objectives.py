"""Objectives of a choice: the most accurate variant within limits, or the one with the least weighted cost."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.inputs import ChoiceLimits, LoadFactors
from adaptive_runtime.policy.lookup import NONE, FoundVariant, VariantLookUp


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
