"""The implementation that counts for an operator: the fastest measured one, unless its gain is within the noise.

A runtime has several implementations of one operator, such as the kernels of a convolution. The choice between them is made in
the table, so that predictors and searches see one latency for each operator.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

ProfilingMethod = Literal["alone", "in situ"]

LEAST_GAIN = 0.02
"""Share of the latency under the runtime's own choice that another implementation saves at least."""
STANDARD_ERRORS = 2.0
"""The gain is at least so many standard errors, too."""
FEW_SAMPLES, FEW_ERROR = 3, 0.03
"""Relative standard error of a latency from fewer samples than tell their own."""
NORMAL_P10_TO_P90 = 2.563
"""Distance of these quantiles of the normal distribution, in standard deviations."""


class TimedImplementation(NamedTuple):
    """One implementation ("": the runtime's own choice) with its latency [ms], None where it failed, and its samples."""

    implementation: str
    ms: float | None
    spread: float
    n: int

    @property
    def relative_error(self) -> float:
        """Standard error of the latency, relative to it."""
        own = self.spread / NORMAL_P10_TO_P90 / math.sqrt(max(self.n, 1))
        return own if self.n >= FEW_SAMPLES else max(own, FEW_ERROR)


def position_of_chosen(timed: Sequence[TimedImplementation]) -> int:
    """The position of the implementation that counts among all of one operator (at least one).

    Without the runtime's own choice, or where that failed, the fastest counts; where all failed, the runtime's own choice.
    """
    own = next((at for at, one in enumerate(timed) if not one.implementation), None)
    known = [at for at, one in enumerate(timed) if one.ms is not None]
    if own is None or timed[own].ms is None:
        return min(known, key=lambda at: timed[at].ms or 0.0, default=0 if own is None else own)
    faster = [at for at in known if _gains(timed[own], timed[at])]
    return min(faster, key=lambda at: timed[at].ms or 0.0, default=own)


def _gains(own: TimedImplementation, other: TimedImplementation) -> bool:
    if not own.ms or other.ms is None:
        return False
    noise = STANDARD_ERRORS * math.hypot(own.relative_error, other.relative_error)
    return 1 - other.ms / own.ms > max(LEAST_GAIN, noise)
