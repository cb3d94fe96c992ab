"""Learning from served requests: the current slow-down of the variants, also by the forecast load, and the margin.

Legend: V variants.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Values
from adaptive_runtime.policy import ChoiceLimits, DeviceContext, LoadFactors, VariantTable
from adaptive_runtime.policy.lookup import deviations, quantile_of
from adaptive_runtime.pool import Variant
from adaptive_runtime.state.slowdown import SlowDown

if TYPE_CHECKING:
    from adaptive_runtime.state.sensing import SensedState

STEP = 0.5
"""Increment of the log-factor for each late request."""
AIMED_AT = 0.5
"""Target share of the late requests that the limits allow; the rest is reserved for loads that nobody foresees."""
LEAST, MOST = 0.25, 3.0
UNUSED_KEEPS = 0.5**0.01
"""Share of the log-factors that remains after a request elsewhere."""
FIRST_BACKOFF, MOST_BACKOFF = 50, 400
"""Lengths of the first and of the longest back-off [requests]."""
LOADS = 5
"""Number of load indexes from 0 to 1 for which a factor is kept."""


class ConformalMargin:
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


class Backoff:
    """Requests that must run on the coordinator, after a request over devices was late while no variant kept the limits.

    In this situation requests show which variant is surest, while estimates hardly do. Each back-off is twice as long as the
    previous one, until variants over devices keep the limits again. left: remaining requests of this back-off.
    """

    reason = "was late where no variant keeps the limits"

    def __init__(self) -> None:
        self.left, self._next = 0, FIRST_BACKOFF

    def begin(self) -> None:
        """Begin a back-off after a late request over devices."""
        self.left, self._next = self._next, min(MOST_BACKOFF, 2 * self._next)

    def elsewhere(self) -> None:
        """Count a request on the coordinator."""
        self.left = max(0, self.left - 1)

    def over(self) -> None:
        """Reset the length after a request over devices was in time as expected."""
        self._next = FIRST_BACKOFF


class ServedRun(NamedTuple):
    """A run of a variant and its duration without waiting. exits: the exit of each sample.

    away: it was a run over devices, and the fallback on the coordinator answered because the devices had not.
    """

    variant: Variant
    exits: Sequence[str]
    run_ms: float
    away: bool = False

    @property
    def counts_for(self) -> Variant | None:
        """The variant whose latency the run measures.

        For thresholds: the exit at which all samples left; None if they left at several.
        """
        if not self.variant.early:
            return self.variant
        return self.variant.whole._replace(exit=self.exits[0]) if len(set(self.exits)) == 1 else None


class FallbackRow(NamedTuple):
    """A row that answers as fallback when other devices have not, and its expected upper duration [ms]."""

    row: int
    takes_ms: float


class WaitedFor(NamedTuple):
    """A served request. late: after its budget. within: its decision kept the limits, as far as was known.

    avoidable: it counts as late, since another variant would not have been. in_time_on_coordinator: the fastest variant on the
    coordinator would usually be in time.
    """

    late: bool
    over_devices: bool
    within: bool
    avoidable: bool
    in_time_on_coordinator: bool


class Margins:
    """Margins for variants on the coordinator and for variants over devices: neither carries information about the other."""

    def __init__(self) -> None:
        self.on_coordinator, self.over_devices, self.backoff = ConformalMargin(), ConformalMargin(), Backoff()

    def learn(self, request: WaitedFor, quantile: float, load: float | None) -> None:
        """Adjust the margin after a request under a load. quantile: the target share of requests in time."""
        margin, other = self.on_coordinator, self.over_devices
        if request.over_devices:
            margin, other = other, margin
        else:
            self.backoff.elsewhere()
        other.unused()
        if request.late and not request.within:
            if request.over_devices and request.in_time_on_coordinator:
                self.backoff.begin()
        elif request.late:
            if request.avoidable:
                margin.observe(True, quantile, load)
        # if no variant keeps the limits, a smaller margin than usual would not help
        elif request.within or margin.factor(load) > 1.0:
            margin.observe(False, quantile, load)
            if request.over_devices and request.within:
                self.backoff.over()


def _shares(load: float | None) -> tuple[tuple[int, float], ...]:
    """The indexes of the two neighbouring kept loads, and their weights."""
    at = min(1.0, max(0.0, load or 0.0)) * (LOADS - 1)
    place = min(LOADS - 2, int(at))
    return (place, place + 1 - at), (place + 1, at - place)


RATIOS = 4
"""Number of served requests of the running variant whose mean ratio of measured to predicted latency a policy sees."""
NOTICEABLE = 0.01
"""Relative change of a factor or its deviation below which the factors stay as they are."""
ASKED_AGAIN_S = 1.0
"""Time [s] without any request after which factors become less certain."""
LEAST_DEVIATIONS = 0.5


class LoadEstimate:
    """`SlowDown` of a table's variants as `LoadFactors`, renewed after noticeable changes.

    Variants that have served have their own factors. ratio: mean of measured over predicted latency of the last requests of the
    variant that served last; None if none has served.
    """

    def __init__(self, table: VariantTable) -> None:
        self._predicted_ms_V, self._load_class_V = table.latency_ms_V, table.load_class_V
        self._seen: list[int] = []
        self._like_C = self._unseen()
        self._slow = SlowDown(table.latency_ms_V)
        self.ratio: float | None = None
        self._ratios: deque[float] = deque(maxlen=RATIOS)
        self._served: int | None = None
        self._asked: tuple[float | None, float] | None = None
        self._asked_s = 0.0
        self._mean_V, self._deviation_V = np.zeros(len(table)), np.zeros(len(table))
        self._factors = LoadFactors()

    def observe(self, variants: Sequence[int], measured_ms: float, at_s: float, load: float | None = None) -> None:
        """Learn from a served request.

        variants: the variants of its runs. measured_ms: their total duration [ms]. load: load index of the device meanwhile.
        """
        self._slow.observe_runs(variants, measured_ms, at_s, load)
        variant = variants[0]
        if variant != self._served:
            self._ratios.clear()
        if variant not in self._seen:
            self._seen.append(variant)
            self._like_C = self._unseen()
        self._served = variant
        self._ratios.append(measured_ms / sum(float(self._predicted_ms_V[row]) for row in variants))
        self.ratio = sum(self._ratios) / len(self._ratios)
        self._asked = None

    def factors(self, at_s: float, load: float | None, quantile: float) -> LoadFactors:
        """Factors for the next request.

        load: the forecast load. The returned mean and deviation have the same quantile as the requests.
        """
        asked = load, quantile
        if asked == self._asked and at_s < self._asked_s + ASKED_AGAIN_S:
            return self._factors
        self._asked, self._asked_s = asked, at_s
        expected = self._slow.expect(load, at_s)
        whole_V = expected.predicted_ms_V / self._predicted_ms_V
        mean_V, variance_V = expected.factors_V()
        above = deviations(quantile)
        if above < LEAST_DEVIATIONS:
            deviation_V = np.sqrt(variance_V)
        else:
            deviation_V = np.maximum(0.0, (expected.quantile_factors_V(quantile) - mean_V) / above)
        mean_V, deviation_V = whole_V * mean_V, whole_V * deviation_V
        if self._is_noticeable(mean_V, deviation_V):
            self._mean_V, self._deviation_V = mean_V, deviation_V
            own = {row: (float(mean_V[row]), float(deviation_V[row])) for row in self._seen}
            mean, deviation = (tuple(values_V[self._like_C].tolist()) for values_V in (mean_V, deviation_V))
            self._factors = LoadFactors(mean=mean, deviation=deviation, own=own)
        return self._factors

    def _unseen(self) -> NDArray[np.int64]:
        """Row per load class (C,): the fastest variant that never served, which represents all of them.

        If all have served: the fastest of all.
        """
        classes = range(int(self._load_class_V.max()) + 1)
        found = np.zeros(len(classes), np.int64)
        for load_class in classes:
            rows = np.flatnonzero(self._load_class_V == load_class)
            unseen = rows[~np.isin(rows, self._seen)]
            left = unseen if len(unseen) else rows
            found[load_class] = left[self._predicted_ms_V[left].argmin()] if len(left) else 0
        return found

    def _is_noticeable(self, mean_V: Values, deviation_V: Values) -> bool:
        bound_V = NOTICEABLE * self._mean_V
        changed_V = (np.abs(mean_V - self._mean_V) > bound_V) | (np.abs(deviation_V - self._deviation_V) > bound_V)
        return bool(changed_V.any())


def rules_context(device: "SensedState") -> DeviceContext:
    """The part of a sample that rules can read."""
    return DeviceContext(
        battery=device.battery,
        charging=device.plugged,
        memory_available_mib=device.memory_available_mib,
        memory_total_mib=device.memory_total_mib,
        temperature_c=device.temperature_c,
    )
