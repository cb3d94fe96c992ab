"""Errors of prediction, rounded up to a few values: variants of one load class and one error share their limit on latency.

Legend: V variants, L levels.
"""

from math import inf

import numpy as np
from numpy.typing import NDArray

MOST_ERRORS = 4
MOST_LEVELS = 64
"""Limit of distinct errors among which the kept ones are found; of more, quantiles are taken."""
Values = NDArray[np.float64]


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
