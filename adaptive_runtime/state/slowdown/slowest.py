"""The slowest of the last requests: a bound on how slow requests become. Legend: V variants.

A load that comes and goes makes requests either fast or slow. By mean and deviation alone, some requests would be expected to
be much slower than any is.
"""

import math
from collections import deque
from itertools import islice

import numpy as np
from numpy.typing import NDArray

REMEMBERED = 4096
TIMES = 3
"""A share is known after this many times the requests among which one exceeds it on average."""
ABOVE = 1.05
"""Margin over the slowest, for effects that the last requests have not shown."""
Values = NDArray[np.float64]


class SlowestRequests:
    """Measured over expected latency of the last requests, and the added time [ms]."""

    def __init__(self) -> None:
        self._requests: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)

    def observe(self, measured_ms: float, quiet_ms: float) -> None:
        """Observe one request. quiet_ms: expected without load."""
        self._requests.append((measured_ms / quiet_ms, measured_ms - quiet_ms))

    def factors_V(self, quiet_ms_V: Values, q: float) -> Values:
        """The factor that no recent request would exceed, by variant (V,); infinite before enough are known.

        A disturbance of one request slows a longer one by the same factor at most, and a shorter one by the same time.
        """
        wanted = math.ceil(TIMES / (1 - q))
        if len(self._requests) < wanted:
            return np.full(len(quiet_ms_V), math.inf)
        last = islice(reversed(self._requests), wanted)
        factor, added_ms = map(max, zip(*last, strict=True))
        return ABOVE * np.maximum(factor, 1 + added_ms / quiet_ms_V)
