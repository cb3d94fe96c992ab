"""The best variant within limits, exactly, out of many in microseconds: with and without load.

The more accurate variant is preferred; among equally accurate ones the faster, the more frugal, the smaller, the first one.

Legend: V variants.
"""

import copy
from collections.abc import Set
from math import inf
from typing import NamedTuple, Self

import numpy as np

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.cells import VariantCell, cells, rounded_errors
from adaptive_runtime.policy.inputs import (
    MOST_ROOM,
    ROOM_STEPS,
    ChoiceLimits,
    LoadFactors,
    deviations,
    effective_factor,
    room_of,
)
from adaptive_runtime.policy.table import VariantTable
from adaptive_runtime.policy.within import Ranks, Values

MOST_APART = 64
"""Limit of variants with factors of their own; if there are more, all variants are searched without an index."""
NONE: Set[int] = frozenset()
KEPT_INDEXES = 4
"""Limit of kept indexes that leave out some variants: decisions alternate between warm variants and all."""


class FoundVariant(NamedTuple):
    """A variant. effective_ms: its latency under load at the limits' quantile. within: it keeps all limits."""

    variant: int
    effective_ms: float
    within: bool


class VariantLookUp:
    """A table prepared for look-ups. Errors of prediction are rounded up to at most four values, `error_V`."""

    def __init__(self, table: VariantTable) -> None:
        self.table = table
        self.load_classes = table.load_classes
        self.error_V = rounded_errors(table.latency_error_V)
        keys = (table.memory_mib_V, table.energy_mj_V, table.latency_ms_V, -table.accuracy_V)
        order_V = np.lexsort((np.arange(len(table)), *keys))
        self._order(np.argsort(order_V), cells(table, order_V, self.error_V))
        self._rows = list(zip(table.latency_ms, self.error_V.tolist(), table.load_class_V.tolist(), strict=True))
        self._extras = list(zip(table.energy_mj_V.tolist(), table.memory_mib_V.tolist(), strict=True))

    def ranked(self, score_V: Values) -> Self:
        """The same variants in another order of preference: the higher score (V,) first, equal ones in the present order.

        A variant that another one replaces in this order must have no higher score: replaced variants stay left out.
        """
        place_V = np.argsort(np.lexsort((self.place_V, -score_V)))
        other = copy.copy(self)
        other._order(place_V, [cell.ranked(place_V) for cell in self._whole])
        return other

    @property
    def kept(self) -> int:
        """Number of variants that can be the answer of a look-up."""
        return len(self.kept_rows)

    @property
    def kept_rows(self) -> list[int]:
        """Variants that can be the answer of a look-up."""
        return [variant for cell in self._whole for variant in cell.kept]

    @property
    def kept_table(self) -> VariantTable:
        """The table without variants that are never preferred, whatever the limits, the slow-downs of classes and the weights.

        For each of these, another variant of its class is at least as accurate, fast, sure, frugal and small. But that variant
        may
        be worse if it has a factor of its own or no longer works, so tables of bundles keep all.
        """
        errors = self.error_V.tolist() if self.table.latency_error is not None else None
        rows = sorted(self.kept_rows)
        return self.table.model_copy(update={"latency_error": errors}).of_rows(rows)

    def best(self, latency_ms: float, energy_mj: float = inf, memory_mib: float = inf) -> int | None:
        """The best variant within three limits, without load; None if there is none."""
        found = [cell.best(latency_ms, energy_mj, memory_mib) for cell in self._whole]
        return found[0] if len(found) == 1 else self._first(found)

    def under(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int] = NONE) -> FoundVariant:
        """The best variant that keeps the budget with the limits' probability, energy and memory; none of `without`.

        If no variant keeps all limits, return the surest one within energy and memory, else the surest of all: the variant that
        most probably keeps the budget. Among equally sure ones, and if none keeps the budget on average, it is the fastest at
        the
        limits' quantile. AdaptiveError if `without` has all variants.
        """
        if len(without) >= len(self.table) and without >= set(range(len(self.table))):
            raise AdaptiveError("choice", "no variant is left")
        energy_mj, memory_mib = self.extra_limits(limits)
        above = deviations(limits.quantile)
        if len(factors.own) > MOST_APART:
            return self._looked_through(limits, factors, without)
        found: list[int | None] = []
        for cell in self.cells_without(factors, without):
            factor = _factor(factors, cell, above)
            found.append(cell.best(limits.budget_ms / factor, energy_mj, memory_mib))
        for variant in factors.own:
            if variant not in without and self._keeps(variant, limits.budget_ms, energy_mj, memory_mib, factors, above):
                found.append(variant)
        best = self._first(found)
        if best is not None:
            return FoundVariant(best, self.effective_ms(best, limits, factors), True)
        return self._surest(limits, factors, without)

    def effective_ms(self, variant: int, limits: ChoiceLimits, factors: LoadFactors) -> float:
        """Latency of a variant under load, at the limits' quantile."""
        latency_ms, _, _ = self._rows[variant]
        return latency_ms * self._own_factor(variant, factors, deviations(limits.quantile))

    def room(self, variant: int, limits: ChoiceLimits, factors: LoadFactors) -> int:
        """Tenths of a deviation that the budget leaves above the expected latency of a variant, at most 30; 0: none."""
        latency_ms, error, _ = self._rows[variant]
        return room_of(limits.budget_ms / latency_ms, *self._mean_and_deviation(variant, factors), error)

    def keeps(self, variant: int, limits: ChoiceLimits, factors: LoadFactors) -> bool:
        """Whether a variant keeps all limits."""
        extras = self.extra_limits(limits)
        return self._keeps(variant, limits.budget_ms, *extras, factors, deviations(limits.quantile))

    def keeps_extras(self, variant: int, limits: ChoiceLimits) -> bool:
        """Whether a variant keeps the limits of energy and memory."""
        energy_mj, memory_mib = self.extra_limits(limits)
        energy, memory = self._extras[variant]
        return energy <= energy_mj and memory <= memory_mib

    def prefers(self, one: int, other: int) -> bool:
        """Whether one variant is preferred to another if both keep the limits."""
        return self._place[one] < self._place[other]

    def cells_without(self, factors: LoadFactors, without: Set[int] = NONE) -> list[VariantCell]:
        """Cells of all variants but those in `without` and those with a factor of their own.

        AdaptiveError if the table has more load classes than factors.
        """
        if len(factors.mean) < self.load_classes:
            got = f"factors of {len(factors.mean)} load classes"
            raise AdaptiveError("slow-down", got, allowed=f"{self.load_classes}, as in the table")
        apart = frozenset(factors.own) | without
        cells = self._without.get(apart)
        if cells is None:
            unknown = [variant for variant in apart if not 0 <= variant < len(self.table)]
            if unknown:
                raise AdaptiveError("slow-down", f"variant {unknown[0]}", allowed=f"0 to {len(self.table) - 1}")
            cells = [cell for each in self._whole if (cell := each.without(apart)).kept]
            while len(self._without) >= KEPT_INDEXES:
                del self._without[next(iter(self._without))]
            self._without[apart] = cells
        return cells

    def extra_limits(self, limits: ChoiceLimits) -> tuple[float, float]:
        """Limits of energy and memory. AdaptiveError if the table lacks a limited column."""
        energy_mj, memory_mib = limits.energy_mj, limits.memory_mib
        if energy_mj is not None and self.table.energy_mj is None:
            raise AdaptiveError("limit of energy", "the table knows no energy", next_step="measure it, or leave it out")
        if memory_mib is not None and self.table.memory_mib is None:
            raise AdaptiveError("limit of memory", "the table knows no memory", next_step="measure it, or leave it out")
        return inf if energy_mj is None else energy_mj, inf if memory_mib is None else memory_mib

    def _order(self, place_V: Ranks, whole: list[VariantCell]) -> None:
        self.place_V, self._place, self._whole = place_V, place_V.tolist(), whole
        self._without: dict[frozenset[int], list[VariantCell]] = {frozenset(): whole}

    def _first(self, found: list[int | None]) -> int | None:
        place = self._place
        return min((variant for variant in found if variant is not None), key=place.__getitem__, default=None)

    def _own_factor(self, variant: int, factors: LoadFactors, above: float) -> float:
        return effective_factor(*self._mean_and_deviation(variant, factors), self._rows[variant][1], above)

    def _mean_and_deviation(self, variant: int, factors: LoadFactors) -> tuple[float, float]:
        own, load_class = factors.own.get(variant), self._rows[variant][2]
        return (factors.mean[load_class], factors.deviation[load_class]) if own is None else own

    def _keeps(
        self, variant: int, budget_ms: float, energy_mj: float, memory_mib: float, factors: LoadFactors, above: float
    ) -> bool:
        energy, memory = self._extras[variant]
        limit_ms = budget_ms / self._own_factor(variant, factors, above)
        return self._rows[variant][0] <= limit_ms and energy <= energy_mj and memory <= memory_mib

    def _surest(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int]) -> FoundVariant:
        for energy_mj, memory_mib in (self.extra_limits(limits), (inf, inf)):
            found = [
                variant
                for variant in factors.own
                if self._extras[variant][0] <= energy_mj and self._extras[variant][1] <= memory_mib
                if variant not in without
            ]
            for cell in self.cells_without(factors, without):
                fastest = cell.fastest(energy_mj, memory_mib)
                found += [] if fastest is None else [fastest]
            if found:
                break
        _, effective_ms, _, variant = min(
            (-self.room(one, limits, factors), self.effective_ms(one, limits, factors), self._place[one], one)
            for one in found
        )
        return FoundVariant(variant, effective_ms, False)

    def _looked_through(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int]) -> FoundVariant:
        """The same answer, found without an index."""
        table, classes_V = self.table, self.table.load_class_V
        mean_V, deviation_V = np.array(factors.mean)[classes_V], np.array(factors.deviation)[classes_V]
        own = list(factors.own)
        mean_V[own], deviation_V[own] = np.array(list(factors.own.values())).T
        error_V = self.error_V
        variance_V = deviation_V * deviation_V + error_V * error_V * (mean_V * mean_V + deviation_V * deviation_V)
        spread_V = np.sqrt(variance_V)
        factor_V = mean_V + deviations(limits.quantile) * spread_V
        energy_mj, memory_mib = self.extra_limits(limits)
        left_V = ~np.isin(np.arange(len(table)), list(without))
        extra_V = left_V & (table.energy_mj_V <= energy_mj) & (table.memory_mib_V <= memory_mib)
        within_V = extra_V & (table.latency_ms_V <= limits.budget_ms / factor_V)
        if within_V.any():
            variant = int(np.where(within_V, self.place_V, len(table)).argmin())
        else:
            allowed_V = extra_V if extra_V.any() else left_V
            times_V = np.where(allowed_V, table.latency_ms_V * factor_V, inf)
            left_V = limits.budget_ms / table.latency_ms_V - mean_V
            sure_V = np.copysign(MOST_ROOM, left_V)
            room_V = np.divide(left_V, spread_V, out=sure_V, where=spread_V > 0)
            room_V = np.floor(np.clip(room_V, 0.0, MOST_ROOM) * ROOM_STEPS)
            variant = int(np.lexsort((self.place_V, times_V, np.where(allowed_V, -room_V, inf)))[0])
        return FoundVariant(variant, float(table.latency_ms_V[variant] * factor_V[variant]), bool(within_V.any()))


def _factor(factors: LoadFactors, cell: VariantCell, above: float) -> float:
    return effective_factor(factors.mean[cell.load_class], factors.deviation[cell.load_class], cell.error, above)
