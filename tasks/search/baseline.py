"""The baseline that needs no search: every variable takes the same relative choice."""

import numpy as np
from numpy.typing import NDArray

from tasks.search.problem import Codes, SearchSpace, unique_rows

MAX_LEVELS = 5


def uniform_codes(space: SearchSpace, scaled: NDArray[np.bool_]) -> Codes:
    """Distinct codes (n, V), largest first, in which the `scaled` (V,) variables share one relative level.

    Level 1 is every variable's largest choice, level 0 its smallest; the others stay at their largest. There
    are as many levels as the scaled variable with most choices has, at most 5.
    """
    cardinalities = np.asarray(space.cardinalities, np.int64)
    levels = np.linspace(1, 0, min(MAX_LEVELS, int(np.max(cardinalities[scaled], initial=1))))
    codes = np.rint(levels[:, None] * (cardinalities - 1)).astype(np.int64)
    return unique_rows(space.canonical_codes(np.where(scaled, codes, cardinalities - 1)))
