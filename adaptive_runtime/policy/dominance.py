"""Rows of a table that can be the answer to some query: no other row replaces them under every limit.

Rows are in order of preference, so an earlier row replaces a later one if it is at most as large in every column.

Legend: N rows, D columns, S strong rows, which are preferred and small in all columns together, K other rows.
"""

import numpy as np

from adaptive_runtime.policy.within import FirstWithin, Ranks, Values

STRONG_ROWS = 1024


def replacements(columns_ND: Values) -> Ranks:
    """For each row the kept row that replaces it (N,); a kept row replaces itself. Up to three columns, without NaN."""
    rows, columns = columns_ND.shape
    padded_N3 = np.zeros((rows, 3))
    padded_N3[:, :columns] = columns_ND
    by_N = np.arange(rows)
    if rows > STRONG_ROWS:  # a few strong rows replace most rows of most tables
        size_N = np.argsort(np.argsort(padded_N3, 0, kind="stable"), 0).sum(1) + 3 * np.arange(rows)
        strong_S = np.sort(np.argsort(size_N)[:STRONG_ROWS])
        first_N = np.append(strong_S, rows)[_first(padded_N3[strong_S], padded_N3)]
        by_N = np.minimum(by_N, first_N)
    left_K = np.flatnonzero(by_N == np.arange(rows))
    by_N[left_K] = left_K[_first(padded_N3[left_K], padded_N3[left_K])]
    return by_N


def _first(columns_S3: Values, limits_K3: Values) -> Ranks:
    """For each of K limits, the first row within it (K,). That row is kept: its replacement would come before it."""
    index = FirstWithin(columns_S3)
    return np.array([index.first(*limits) for limits in limits_K3.tolist()], np.int64)
