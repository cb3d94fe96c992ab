"""Caution of decisions, learned from the number of late requests per load."""

import math

from adaptive_runtime.policy import ChoiceLimits
from adaptive_runtime.policy.inputs import deviations, quantile_of

STEP = 0.5
"""Increment of the log-factor for each late request."""
AIMED_AT = 0.5
"""Target share of the late requests that the limits allow; the rest is reserved for loads that nobody foresees."""
LEAST, MOST = 0.25, 3.0
UNUSED_KEEPS = 0.5**0.01
"""Share of the log-factors that remains after a request elsewhere."""
FIRST_REST, MOST_REST = 50, 400
"""Lengths of the first and of the longest rest [requests]."""
LOADS = 5
"""Number of load indexes from 0 to 1 for which a factor is kept."""


class Caution:
    """A factor, by load index, on the deviations above the mean that decisions add.

    Runs that follow a slow run make up for it, and a faster variant takes over if that is not enough. Decisions for a request
    are therefore kept more often than their quantile says. Each late request raises the factor, each other request lowers it a
    little, so that the share of late requests approaches `AIMED_AT` of the allowed share. A request that would have been late
    with the fastest variant as well does not count as late: extra care would only keep the better variants away once the load
    is gone. For the same reason each load index has its own factor, interpolated between the neighbouring ones. Source:
    adaptive conformal inference (Gibbs and Candès, NeurIPS 2021).
    """

    def __init__(self) -> None:
        self._logs = [0.0] * LOADS

    def factor(self, load: float | None) -> float:
        """The factor under a load index; None: unknown load."""
        return math.exp(sum(share * self._logs[place] for place, share in _shares(load)))

    def observe(self, late: bool, quantile: float, load: float | None) -> None:
        """Learn from one request under a load.

        late: the request was late, and a faster variant would not have been. quantile: the target share of requests in time.
        """
        shares, by = _shares(load), STEP * (late - AIMED_AT * (1 - quantile))
        whole = sum(share * share for _, share in shares)
        for place, share in shares:
            raised = self._logs[place] + by * share / whole
            self._logs[place] = min(math.log(MOST), max(math.log(LEAST), raised))

    def unused(self) -> None:
        """Decay after one request elsewhere; half is forgotten in a hundred requests.

        Otherwise nothing here would be tried again.
        """
        self._logs = [UNUSED_KEEPS * one for one in self._logs]

    def limits(self, limits: ChoiceLimits, load: float | None) -> ChoiceLimits:
        """The limits for decisions under a load."""
        above = self.factor(load) * deviations(limits.quantile)
        return limits.model_copy(update={"quantile": quantile_of(above)})


class Rest:
    """Requests that must run on the coordinator, after a request over devices was late while no variant kept the limits.

    In this situation requests show which variant is surest, while estimates hardly do. Each rest is twice as long as the
    previous one, until variants over devices keep the limits again. left: remaining requests of this rest.
    """

    reason = "was late where no variant keeps the limits"

    def __init__(self) -> None:
        self.left, self._next = 0, FIRST_REST

    def begin(self) -> None:
        """Begin a rest after a late request over devices."""
        self.left, self._next = self._next, min(MOST_REST, 2 * self._next)

    def elsewhere(self) -> None:
        """Count a request on the coordinator."""
        self.left = max(0, self.left - 1)

    def over(self) -> None:
        """Reset the length after a request over devices was in time as expected."""
        self._next = FIRST_REST


def _shares(load: float | None) -> tuple[tuple[int, float], ...]:
    """The indexes of the two neighbouring kept loads, and their weights."""
    at = min(1.0, max(0.0, load or 0.0)) * (LOADS - 1)
    place = min(LOADS - 2, int(at))
    return (place, place + 1 - at), (place + 1, at - place)
