"""Rows of a table that can be the answer of some query: those that no other row replaces under every limit.

Rows stand in the order of preference, so an earlier row replaces a later one if it is at most as large in every column.

Legend: N rows, D columns, S rows that are tried first.
"""

import numpy as np

from adaptive_runtime.choice.within import FirstWithin, Ranks, Values

STRONG_ROWS = 64
FEW_ROWS = 256


def replacements(columns_ND: Values) -> Ranks:
    """For each row the kept row that replaces it (N,); a row that is kept replaces itself. Up to three columns, without NaN."""
    rows, columns = columns_ND.shape
    padded_N3 = np.zeros((rows, 3))
    padded_N3[:, :columns] = columns_ND
    by_N = _by_strong_rows(padded_N3)
    left = np.flatnonzero(by_N == np.arange(rows))
    index = FirstWithin(padded_N3[left])
    # the first row within a row's own values is kept: what replaced it would come before it
    by_N[left] = left[np.array([index.first(*values) for values in padded_N3[left].tolist()], np.int64)]
    return by_N[by_N]


def _by_strong_rows(columns_N3: Values) -> Ranks:
    """Replacements (N,) by a few rows that are small in all columns, which leave few rows of most tables."""
    by_N = np.arange(len(columns_N3))
    left = by_N.copy()
    size_N = np.argsort(np.argsort(columns_N3, 0, kind="stable"), 0).sum(1)
    for _ in range(STRONG_ROWS):
        if len(left) <= FEW_ROWS:
            break
        strong = left[size_N[left].argmin()]
        size_N[strong] = np.iinfo(np.int64).max
        gone = (columns_N3[left] >= columns_N3[strong]).all(1) & (left > strong)
        by_N[left[gone]] = strong
        left = left[~gone]
    return by_N
