"""Indexes of variants that share one slow-down factor: a limit on latency under load then is a limit on latency without load.

Legend: V variants of the table, N of a cell, K of these that no other one replaces.
"""

import copy
from collections.abc import Set
from math import inf

import numpy as np

from adaptive_runtime.policy.dominance import replacements
from adaptive_runtime.policy.table import VariantTable
from adaptive_runtime.policy.within import LARGEST_EXACT, FirstWithin, Ranks

MOST_ERRORS = 4
MOST_LEVELS = 64
"""Limit of distinct errors among which the kept ones are found; of more, quantiles are taken."""


class VariantCell:
    """Variants (N,) of one load class and one error, the best first.

    kept: variants (K,) that can be the answer. No other variant is at least as accurate, fast, frugal and small.
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
        """The best variant within limits; None if there is none."""
        place = self._best.first(latency_ms, energy_mj, memory_mib)
        return self.kept[place] if place < self._best.rows else None

    def fastest(self, energy_mj: float, memory_mib: float) -> int | None:
        """The fastest variant within limits; None if there is none."""
        place = self._fastest.first(energy_mj, memory_mib, inf)
        return self._fast[place] if place < self._fastest.rows else None

    def without(self, apart: Set[int]) -> "VariantCell":
        """The cell without some variants; variants that only these replaced are then kept."""
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
        if len(kept_K) <= LARGEST_EXACT:  # in a larger cell, all are indexed: finding the replaced ones takes longer
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
    """Errors, rounded up by as little as possible so that at most `MOST_ERRORS` differ."""
    levels, at_V = np.unique(error_V, return_inverse=True)
    if len(levels) <= MOST_ERRORS:
        return error_V
    if len(levels) > MOST_LEVELS:
        levels = np.unique(np.quantile(error_V, np.arange(1, MOST_LEVELS + 1) / MOST_LEVELS, method="higher"))
        at_V = np.searchsorted(levels, error_V)
    return _least_raised(levels, np.bincount(at_V, minlength=len(levels)))[at_V]


def _least_raised(levels_L: np.ndarray, count_L: np.ndarray) -> np.ndarray:
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
