"""How careful decisions are: by how many requests were late, under which load."""

import math

from adaptive_runtime.choice import ChoiceLimits
from adaptive_runtime.choice.inputs import deviations, quantile_of

STEP = 0.5
"""By which the logarithm of the factor rises with each late request."""
AIMED_AT = 0.5
"""Share of the late requests that the limits allow: others are late by loads that nobody foresees."""
LEAST, MOST = 0.25, 3.0
UNUSED_KEEPS = 0.5**0.01
"""What is left of the logarithms after a request elsewhere."""
FIRST_REST, MOST_REST = 50, 400
"""Requests."""
LOADS = 5
"""Load indexes from 0 to 1 at which a factor is kept."""


class Caution:
    """A factor of the deviations above the mean that decisions count with, by the load index.

    Runs behind a slow one make up for it, and a faster variant takes over where that is not enough: so decisions for a request
    are kept more often than their quantile says. Each late request raises the factor, each other one lowers it a little, so
    that the share of late requests goes to `AIMED_AT` of those allowed. A request that would have been late with the fastest
    variant as well does not count as late: care because of it would only keep the better variants away once the load is gone.
    For the same reason each load has its own factor, between those of the loads beside it.
    Source: adaptive conformal inference (Gibbs and Candès, NeurIPS 2021).
    """

    def __init__(self) -> None:
        self._logs = [0.0] * LOADS

    def factor(self, load: float | None) -> float:
        """Under a load index; None: not known."""
        return math.exp(sum(share * self._logs[place] for place, share in _shares(load)))

    def observe(self, late: bool, quantile: float, load: float | None) -> None:
        """One request under a load. late: and a faster variant would not have been. quantile: the share in time."""
        shares, by = _shares(load), STEP * (late - AIMED_AT * (1 - quantile))
        whole = sum(share * share for _, share in shares)
        for place, share in shares:
            raised = self._logs[place] + by * share / whole
            self._logs[place] = min(math.log(MOST), max(math.log(LEAST), raised))

    def unused(self) -> None:
        """One request elsewhere. Half is forgotten in a hundred of them: else nothing here would be tried again."""
        self._logs = [UNUSED_KEEPS * one for one in self._logs]

    def limits(self, limits: ChoiceLimits, load: float | None) -> ChoiceLimits:
        """The limits for decisions under a load."""
        above = self.factor(load) * deviations(limits.quantile)
        return limits.model_copy(update={"quantile": quantile_of(above)})


class Rest:
    """Requests at home for which nothing runs over devices: since a request there was late where no variant kept the limits.

    Which variant is surest then, estimates hardly tell, and requests do. Each rest is twice as long as the one before, until
    variants over devices keep the limits again. left: requests of it that are left.
    """

    reason = "was late where no variant keeps the limits"

    def __init__(self) -> None:
        self.left, self._next = 0, FIRST_REST

    def begin(self) -> None:
        """A request over devices was late."""
        self.left, self._next = self._next, min(MOST_REST, 2 * self._next)

    def elsewhere(self) -> None:
        """A request at home."""
        self.left = max(0, self.left - 1)

    def over(self) -> None:
        """A request over devices was in time, as it was expected to be."""
        self._next = FIRST_REST


def _shares(load: float | None) -> tuple[tuple[int, float], ...]:
    """The places of the two loads beside this one, and how much each counts."""
    at = min(1.0, max(0.0, load or 0.0)) * (LOADS - 1)
    place = min(LOADS - 2, int(at))
    return (place, place + 1 - at), (place + 1, at - place)
