"""Variants that one factor makes slower, indexed: a limit of their latency under load is a limit of their latency without.

Legend: V variants of the table, N of a cell, K of these that no other one replaces.
"""

import copy
from collections.abc import Set
from math import inf

import numpy as np

from adaptive_runtime.choice.dominance import replacements
from adaptive_runtime.choice.table import VariantTable
from adaptive_runtime.choice.within import LARGEST_EXACT, FirstWithin, Ranks

MOST_ERRORS = 4


class VariantCell:
    """Variants (N,), the best first, of one load class and one error.

    kept: variants (K,) that can be the answer. They are replaced by none that is at least as accurate, fast, frugal and small.
    """

    def __init__(self, table: VariantTable, variants_N: Ranks, load_class: int, error: float) -> None:
        self.load_class, self.error = load_class, error
        self._table, self._all_N = table, variants_N
        self._columns_V3 = np.stack([table.latency_ms_V, table.energy_mj_V, table.memory_mib_V], 1)
        self._by_N = variants_N[replacements(self._columns_V3[variants_N])]
        self._index(variants_N[self._by_N == variants_N])

    def _index(self, kept_K: Ranks) -> None:
        latency_K, energy_K, memory_K = self._columns_V3[kept_K].T
        self.kept_K, self.latency_K, self.energy_K, self.memory_K = kept_K, latency_K, energy_K, memory_K
        self.accuracy_K = self._table.accuracy_V[kept_K]
        self.kept = kept_K.tolist()
        self._best = FirstWithin(self._columns_V3[kept_K])
        by_latency = np.argsort(latency_K, kind="stable")
        columns = np.stack([energy_K, memory_K], 1)[by_latency]
        fast = by_latency[replacements(columns) == np.arange(len(columns))]
        self._fast = kept_K[fast].tolist()
        self._fastest = FirstWithin(np.stack([energy_K, memory_K, latency_K], 1)[fast])

    def best(self, latency_ms: float, energy_mj: float, memory_mib: float) -> int | None:
        """The best variant within limits; None: there is none."""
        place = self._best.first(latency_ms, energy_mj, memory_mib)
        return self.kept[place] if place < self._best.rows else None

    def fastest(self, energy_mj: float, memory_mib: float) -> int | None:
        """The fastest variant within limits; None: there is none."""
        place = self._fastest.first(energy_mj, memory_mib, inf)
        return self._fast[place] if place < self._fastest.rows else None

    def without(self, apart: Set[int]) -> "VariantCell":
        """The cell without some variants: those that only they replaced are kept then."""
        apart_N = np.fromiter(apart, np.int64, len(apart))
        if not np.isin(self.kept_K, apart_N).any():
            return self
        left = np.isin(self._by_N, apart_N) & ~np.isin(self._all_N, apart_N)
        if left.any():
            left |= (self._by_N == self._all_N) & ~np.isin(self._all_N, apart_N)
            left_N = self._all_N[left]
            kept_K = left_N[replacements(self._columns_V3[left_N]) == np.arange(len(left_N))]
        else:
            kept_K = self.kept_K[~np.isin(self.kept_K, apart_N)]
        cell = copy.copy(self)
        cell._index(kept_K)
        return cell

    def ranked(self, place_V: Ranks) -> "VariantCell":
        """The cell in another order of preference, in which no variant comes before the one that replaces it here."""
        order_N = np.argsort(place_V[self._all_N])
        all_N, by_N = self._all_N[order_N], self._by_N[order_N]
        kept_K = all_N[by_N == all_N]
        by_K = kept_K
        if (
            len(kept_K) <= LARGEST_EXACT
        ):  # of a larger cell all are indexed: finding those that are replaced takes longer
            by_K = kept_K[replacements(self._columns_V3[kept_K])]
        by_V = np.empty(len(place_V), np.int64)
        by_V[kept_K] = by_K
        cell = copy.copy(self)
        cell._all_N, cell._by_N = all_N, by_V[by_N]
        cell._index(kept_K[by_K == kept_K])
        return cell


def cells(table: VariantTable, order_V: Ranks, error_V: np.ndarray) -> list[VariantCell]:
    """The table's variants by load class and error; order_V: all variants, the best first."""
    found = []
    for load_class in np.unique(table.load_class_V):
        for error in np.unique(error_V):
            chosen = (table.load_class_V[order_V] == load_class) & (error_V[order_V] == error)
            if chosen.any():
                found.append(VariantCell(table, order_V[chosen], int(load_class), float(error)))
    return found


def rounded_errors(error_V: np.ndarray) -> np.ndarray:
    """Errors, of which there are at most `MOST_ERRORS` different ones: rounded up to quantiles where there are more."""
    levels = np.unique(error_V)
    if len(levels) > MOST_ERRORS:
        levels = np.quantile(error_V, np.arange(1, MOST_ERRORS + 1) / MOST_ERRORS, method="higher")
    return levels[np.searchsorted(levels, error_V)]
