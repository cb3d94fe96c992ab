"""Measuring in rounds: what a device measured while it was slower than at its best is measured again, a few times."""

import math
from collections.abc import Iterable

import numpy as np

MOST_ROUNDS = 3  # while the device is not calm
SLOW = 1.03  # of what the device shows at its best
BEST_QUANTILE = 0.2


def at_best(slowness: Iterable[float]) -> float:
    """What a device shows while nothing disturbs it, of any measure that grows as it slows down; NaN of none."""
    found = list(slowness)
    return float(np.quantile(found, BEST_QUANTILE)) if found else math.nan
