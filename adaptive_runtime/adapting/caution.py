"""How careful decisions are: by how many requests were late."""

import math

from adaptive_runtime.choice import ChoiceLimits
from adaptive_runtime.choice.inputs import deviations, quantile_of

STEP = 0.5
"""By which the logarithm of the factor rises with each late request."""
AIMED_AT = 0.7
"""Share of the late requests that the limits allow."""
LEAST, MOST = 0.25, 3.0


class Caution:
    """A factor of the deviations above the mean that decisions count with.

    Runs behind a slow one make up for it, and a faster variant takes over where that is not enough: so decisions for a request
    are kept more often than their quantile says. Each late request raises the factor, each other one lowers it a little, so
    that the share of late requests goes to `AIMED_AT` of those allowed. A request that would have been late with the fastest
    variant as well does not count as late: care because of it would only keep the better variants away once the load is gone.
    Source: adaptive conformal inference (Gibbs and Candès, NeurIPS 2021).
    """

    def __init__(self) -> None:
        self.factor = 1.0

    def observe(self, late: bool, quantile: float) -> None:
        """One request. late: and a faster variant would not have been. quantile: the share that should not be late."""
        factor = self.factor * math.exp(STEP * (late - AIMED_AT * (1 - quantile)))
        self.factor = min(MOST, max(LEAST, factor))

    def limits(self, limits: ChoiceLimits) -> ChoiceLimits:
        """The limits for decisions."""
        return limits.model_copy(update={"quantile": quantile_of(self.factor * deviations(limits.quantile))})
