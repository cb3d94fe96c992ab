"""The chosen implementation of an operator: the fastest measured one, unless its gain is within the noise.

A runtime has several implementations of one operator, such as the kernels of a convolution. The table chooses between them, so
that predictors and searches see one latency per operator.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

ProfilingMethod = Literal["alone", "in situ"]

LEAST_GAIN = 0.02
"""Share of the latency of the runtime's own choice that another implementation must save."""
STANDARD_ERRORS = 2.0
"""Number of standard errors that the gain must also exceed."""
FEW_SAMPLES, FEW_ERROR = 3, 0.03
"""A latency from fewer samples than the first number has at least the second as its relative standard error."""
NORMAL_P10_TO_P90 = 2.563
"""Distance of these quantiles of the normal distribution, in standard deviations."""


class TimedImplementation(NamedTuple):
    """One implementation ("": the runtime's own choice). ms: latency [ms], None if it failed. n: number of samples."""

    implementation: str
    ms: float | None
    spread: float
    n: int

    @property
    def relative_error(self) -> float:
        """Relative standard error of the latency."""
        own = self.spread / NORMAL_P10_TO_P90 / math.sqrt(max(self.n, 1))
        return own if self.n >= FEW_SAMPLES else max(own, FEW_ERROR)


def position_of_chosen(timed: Sequence[TimedImplementation]) -> int:
    """The position of the chosen implementation among all of one operator (at least one).

    If the runtime's own choice is absent or failed, the fastest is chosen; if all failed, the runtime's own choice.
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
