"""Choice of the plan of each request: a look-up among precomputed plans for the current links and the coordinator's load.

Hysteresis keeps the plan from oscillating. From a plan that became slower than the coordinator alone, or lost a device, the
change is immediate. The change to a faster plan happens after some plan has been faster by a margin for a dwell time without
interruption, and only a limited number of times per minute.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from math import inf
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from adaptive_runtime.base.arrays import Values
from adaptive_runtime.base.devices import COORDINATOR
from adaptive_runtime.offload.links import MeasuredLink
from adaptive_runtime.offload.links.measures import WeightedMean
from adaptive_runtime.offload.split.plans import (
    PlacedSegments,
    PlacementPlans,
    PlannedPlacement,
    StraightWay,
    coded_share,
    way_name,
)
from profiling_agents.messages import ActivationCoding, Message

MINUTE_S = 60.0
LATEST_S, LEAST_RUNS = 1.0, 8
MOST_CHANGES = 1000
EXACT: ActivationCoding = "fp32"
SLOW_DOWN = 1
"""Index of the coordinator's slow-down among the factors of a plane."""
UNKNOWN_MS = 1e9
"""Time of a round trip or a byte over an unknown link: a plan that needs the link is slower than any other."""


class ReplanRules(Message):
    """margin: relative advantage that another plan needs. dwell_s: duration of the advantage, without interruption.

    most_per_minute: changes to a plan that offloads. After each, one change to the coordinator alone may follow at any time.
    """

    margin: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    dwell_s: Annotated[float, Field(ge=0.0)] = 1.0
    most_per_minute: Annotated[int, Field(ge=1)] = 30


class _Run(NamedTuple):
    """A run on the coordinator, in ms except for `time_s`."""

    time_s: float
    took: float
    planned: float
    handed: float


class LatestRuns:
    """Runs on the coordinator of the last second, at least the last eight.

    Single runs scatter if the coordinator has a share of a core. Durations of runs are added up, so that short runs have little
    weight.
    """

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()
        self._took_ms, self._planned_ms, self._handed_ms = 0.0, 0.0, 0.0

    def add(self, time_s: float, took_ms: float, planned_ms: float, handed_ms: float) -> None:
        """Add a run. planned_ms: without load. handed_ms: time of the run beyond its segments. Times must not decrease."""
        self._runs.append(_Run(time_s, took_ms, planned_ms, handed_ms))
        self._count(self._runs[-1], 1)
        while len(self._runs) > LEAST_RUNS and self._runs[0].time_s < time_s - LATEST_S:
            self._count(self._runs.popleft(), -1)

    def _count(self, run: _Run, times: int) -> None:
        self._took_ms += times * run.took
        self._planned_ms += times * run.planned
        self._handed_ms += times * run.handed

    @property
    def slow_down(self) -> float | None:
        """Ratio of measured to planned times; None before the coordinator has run."""
        return self._took_ms / self._planned_ms if self._planned_ms else None

    @property
    def handed_ms(self) -> float:
        """Mean time of a run beyond its segments; 0 before the coordinator has run."""
        return self._handed_ms / max(1, len(self._runs))


class CoordinatorCosts(LatestRuns):
    """Costs that plans do not include: the coordinator's slow-down, and the time beyond segments and links.

    coordinator_ms: planned time of each segment on the coordinator. clock: monotonic, in seconds.
    """

    def __init__(self, coordinator_ms: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._coordinator_ms, self._clock = coordinator_ms, clock
        self._elsewhere = defaultdict[ActivationCoding, WeightedMean](WeightedMean)

    def ran_on_coordinator(self, first: int, took_ms: Sequence[float], handed_ms: float = 0.0) -> None:
        """Learn from a run on the coordinator of segments from `first` on. Segments without planned time are ignored."""
        planned_ms = sum(self._coordinator_ms[first : first + len(took_ms)])
        if planned_ms > 0:
            self.add(self._clock(), sum(took_ms), planned_ms, handed_ms)

    def ran_elsewhere(self, handed_ms: float, coding: ActivationCoding) -> None:
        """Learn from a run on another device, with values in a coding, which takes time itself."""
        self._elsewhere[coding].add(handed_ms)

    def elsewhere_ms(self, coding: ActivationCoding) -> float:
        """Time on the coordinator of a run elsewhere, besides the link; 0 before the first run with this coding."""
        known = self._elsewhere.get(coding)
        return 0.0 if known is None else known.mean


class PlanChange(NamedTuple):
    """A change of plan, or of its coding. left_ms: prediction for the previous plan; None: a device of it is out.

    coding: of the new plan. time_s: of the clock.
    """

    time_s: float
    left: PlacedSegments
    taken: PlacedSegments
    left_ms: float | None
    taken_ms: float
    slow_down: float
    reason: str
    coding: ActivationCoding


class SendingPlan(NamedTuple):
    """A plan with other devices, its coding, and its currently predicted latency.

    number: index for later predictions.
    """

    plan: PlannedPlacement
    coding: ActivationCoding
    latency_ms: float
    number: int = 0


class _CodedPlan(NamedTuple):
    """A plan by its position in the file, and its coding."""

    position: int
    coding: ActivationCoding


class _Candidates(NamedTuple):
    """Coded plans for a set of devices: their numbers, ascending; the row of each; and their planes (P, factors)."""

    numbers: tuple[int, ...]
    rows: dict[int, int]
    planes: Values


class EnvelopePlacements(CoordinatorCosts):
    """A `PlacementChoice` that starts with the coordinator alone. clock: monotonic, in seconds.

    It belongs to one thread; others may ask for predictions (`latencies_ms`, `sending`). coding: allowed for tensors on links,
    as in `SplitOptions`; plans count bytes of fp32. A plan sends in this coding, or in fp32 if that is faster, for example over
    a fast link: each coding takes time on the coordinator, which is known once requests were sent in it. sends: the coordinator
    alone is not chosen while another plan can be followed.
    """

    def __init__(
        self,
        plans: PlacementPlans,
        rules: ReplanRules | None = None,
        clock: Callable[[], float] = time.monotonic,
        coding: ActivationCoding = "fp32",
        *,
        sends: bool = False,
    ) -> None:
        super().__init__(plans.coordinator_ms, clock)
        self.plans, self.rules, self._sends = plans, rules or ReplanRules(), sends
        self.known_slow_down: float | None = None
        """Slow-down of the coordinator from another source; None: measured on segments on the coordinator."""
        self.changes: deque[PlanChange] = deque(maxlen=MOST_CHANGES)
        """The latest last."""
        self.changed = 0
        """Number of changes so far."""
        self._codings = tuple(dict.fromkeys((EXACT, coding)))
        self._coded = _coded(plans, self._codings)
        self._ways = _ways(plans)
        self._planes = np.array([self._plane(one) for one in self._coded])
        self._candidates: dict[frozenset[str], _Candidates] = {}
        self._now = 0
        self._better_since_s: float | None = None
        self._sent_at_s: deque[float] = deque()

    @property
    def slow_down(self) -> float:
        """Ratio of the coordinator's measured to predicted times, within the range of the plans.

        Before the first run it is the lower end of the range.
        """
        low, high = self.plans.slow_down
        found = super().slow_down if self.known_slow_down is None else self.known_slow_down
        return low if found is None else min(max(found, low), high)

    @property
    def number(self) -> int:
        """The position of the plan in use, which is that of the latest request."""
        return self._coded[self._now].position

    @property
    def coding(self) -> ActivationCoding:
        """Coding of the plan in use."""
        return self._coded[self._now].coding

    @property
    def reason(self) -> str:
        """The reason of the last change."""
        return self.changes[-1].reason if self.changes else "nothing has changed"

    def latencies_ms(self, links: Mapping[str, MeasuredLink]) -> dict[int, float]:
        """Current prediction for each plan whose devices are all in, in its faster coding, by its position in the file."""
        found, least = self._among(links), dict[int, float]()
        for number, latency_ms in zip(found.numbers, (found.planes @ self._factors(links)).tolist(), strict=True):
            position = self._coded[number].position
            least[position] = min(latency_ms, least.get(position, latency_ms))
        return least

    def sending(self, links: Mapping[str, MeasuredLink], slow_down: float) -> SendingPlan | None:
        """The currently fastest offloading plan for this slow-down of the coordinator. None: no other device can take part."""
        found = self._among(links)
        factors = self._factors(links)
        factors[SLOW_DOWN] = slow_down
        latencies_ms = found.planes.dot(factors)[1:]
        if not len(latencies_ms) or (latency_ms := float(latencies_ms.min())) >= UNKNOWN_MS:
            return None
        number = found.numbers[1 + int(latencies_ms.argmin())]
        coded = self._coded[number]
        return SendingPlan(self.plans.plans[coded.position], coded.coding, latency_ms, number)

    def later_ms(self, sent: SendingPlan, links: Mapping[str, MeasuredLink]) -> float:
        """New prediction for an offloading plan from current measures; unchanged if one of its devices is out."""
        if not sent.plan.peers <= links.keys():
            return sent.latency_ms
        return float(self._planes[sent.number].dot(self._factors(links)))

    def choose(self, links: Mapping[str, MeasuredLink]) -> PlacedSegments:
        """The current plan."""
        found = self._among(links)
        latencies_ms = found.planes.dot(self._factors(links))
        coordinator_ms = float(latencies_ms[0])
        if self._sends and len(found.numbers) > 1:
            latencies_ms[0] = inf
        at = int(latencies_ms.argmin())  # the first of equal plans: nothing is sent without an advantage
        best, best_ms = found.numbers[at], float(latencies_ms[at])
        if self._now != best:
            row = found.rows.get(self._now)
            if row is None:
                missing = ", ".join(sorted(self.plans.plans[self.number].peers - links.keys()))
                self._away(best, best_ms, coordinator_ms, None, f"{missing} is out")
            elif self._sends and not self._now:
                self._away(best, best_ms, coordinator_ms, coordinator_ms, "another device can take part")
            else:
                now_ms = float(latencies_ms[row])
                if now_ms > coordinator_ms and not self._sends:
                    self._away(
                        best,
                        best_ms,
                        coordinator_ms,
                        now_ms,
                        f"{now_ms:.4g} ms, and the coordinator alone {coordinator_ms:.4g} ms",
                    )
                else:
                    self._towards(best, best_ms, now_ms)
        else:
            self._better_since_s = None
        return self.plans.plans[self.number]

    def _plane(self, one: _CodedPlan) -> Values:
        """The plane of a plan, followed by its number of runs on the coordinator, and elsewhere for each coding."""
        plan = self.plans.plans[one.position]
        share = coded_share(one.coding)
        on_coordinator = sum(segment.device == COORDINATOR for segment in plan.segments)
        elsewhere = [(len(plan.segments) - on_coordinator) * (coding == one.coding) for coding in self._codings]
        return np.array([*plane_of(plan, self.plans.peers, self._ways, share), on_coordinator, *elsewhere])

    def _away(self, best: int, best_ms: float, coordinator_ms: float, now_ms: float | None, why: str) -> None:
        """Change at once; to the coordinator alone if there were too many changes."""
        time_s = self._clock()
        if best and not self._may_send(time_s):
            best, best_ms, why = 0, coordinator_ms, f"{why}; {len(self._sent_at_s)} changes were in the last minute"
        self._change(best, now_ms, best_ms, time_s, why)

    def _towards(self, best: int, best_ms: float, now_ms: float) -> None:
        """Change to a faster plan, if some plan has been faster by the margin for long enough."""
        if best_ms >= (1 - self.rules.margin) * now_ms:
            self._better_since_s = None
            return
        time_s = self._clock()
        if self._better_since_s is None:
            self._better_since_s = time_s
        waited_s = time_s - self._better_since_s
        if waited_s >= self.rules.dwell_s and (best == 0 or self._may_send(time_s)):
            why = f"{best_ms:.4g} ms instead of {now_ms:.4g} ms, and a faster plan was there for {waited_s:.3g} s"
            self._change(best, now_ms, best_ms, time_s, why)

    def _may_send(self, time_s: float) -> bool:
        while self._sent_at_s and self._sent_at_s[0] <= time_s - MINUTE_S:
            self._sent_at_s.popleft()
        return len(self._sent_at_s) < self.rules.most_per_minute

    def _change(self, to: int, now_ms: float | None, to_ms: float, time_s: float, why: str) -> None:
        plans, taken = self.plans.plans, self._coded[to]
        if to and len(self._codings) > 1:
            why = f"{why}; it sends {taken.coding}"
        left, new = plans[self.number], plans[taken.position]
        self.changes.append(PlanChange(time_s, left, new, now_ms, to_ms, self.slow_down, why, taken.coding))
        self.changed += 1
        self._now, self._better_since_s = to, None
        if to:
            self._sent_at_s.append(time_s)

    def _among(self, links: Mapping[str, MeasuredLink]) -> _Candidates:
        """The plans for the devices that are in, cached for each set of devices."""
        names = frozenset(links)
        found = self._candidates.get(names)
        if found is None:
            plans = self.plans.plans
            numbers = tuple(at for at, one in enumerate(self._coded) if plans[one.position].peers <= names)
            rows = {at: row for row, at in enumerate(numbers)}
            found = self._candidates[names] = _Candidates(numbers, rows, self._planes[list(numbers)])
        return found

    def _factors(self, links: Mapping[str, MeasuredLink]) -> Values:
        """Current values (3 + 3 · devices + 2 · ways + codings,) by which the vectors of `_plane` are multiplied."""
        values = [1.0, self.slow_down]
        for name in self.plans.peers:
            link = links.get(name)
            if link is None:
                values += (0.0, 0.0, 0.0)  # no plan of the set uses it
            else:
                round_trip_ms = UNKNOWN_MS if link.round_trip_ms is None else link.round_trip_ms
                values += (round_trip_ms, ms_per_byte(link.up_mbps), ms_per_byte(link.down_mbps))
        for name, (giver, taker) in self._ways.items():
            values += self._saved(links.get(name), self.plans.ways.get(name), links.get(giver), links.get(taker))
        return np.array([*values, self.handed_ms, *map(self.elsewhere_ms, self._codings)])

    def _saved(
        self,
        way: MeasuredLink | None,
        planned: StraightWay | None,
        giver: MeasuredLink | None,
        taker: MeasuredLink | None,
    ) -> tuple[float, float]:
        """Time of a message and a byte on a direct link minus that through the coordinator [ms]; 0 for unknown links."""
        if way is None or giver is None or taker is None:
            return 0.0, 0.0
        message_ms, byte_ms = way.round_trip_ms, None if way.up_mbps is None else ms_per_byte(way.up_mbps)
        if planned is not None:
            message_ms = 2 * planned.latency_ms if message_ms is None else message_ms
            byte_ms = ms_per_byte(planned.bandwidth_mbps) if byte_ms is None else byte_ms
        known = (giver.round_trip_ms, taker.round_trip_ms, giver.down_mbps, taker.up_mbps)
        if message_ms is None or byte_ms is None or None in known:
            return 0.0, 0.0
        through_ms = (giver.round_trip_ms or 0.0) + (taker.round_trip_ms or 0.0)
        through_byte_ms = ms_per_byte(giver.down_mbps) + ms_per_byte(taker.up_mbps)
        return (message_ms - through_ms) / 2, byte_ms - through_byte_ms


def ms_per_byte(mbps: float | None) -> float:
    """Time of a byte at a bandwidth [ms]; None: unknown bandwidth."""
    return 8e-3 / mbps if mbps else UNKNOWN_MS


def _coded(plans: PlacementPlans, codings: Sequence[ActivationCoding]) -> tuple[_CodedPlan, ...]:
    """Each offloading plan in each coding, in the order of the file."""
    found = ((at, codings if plan.peers else (EXACT,)) for at, plan in enumerate(plans.plans))
    return tuple(_CodedPlan(at, one) for at, own in found for one in own)


def _ways(plans: PlacementPlans) -> dict[str, tuple[str, str]]:
    """Links between other devices in plans, by name: from which device to which."""
    pairs = {way_name(*pair): pair for pair in permutations(plans.peers, 2)}
    return {name: pairs[name] for name in sorted({name for plan in plans.plans for name in plan.straight})}


def plane_of(plan: PlannedPlacement, peers: Sequence[str], ways: Iterable[str], share: float) -> Values:
    """A plan as the vector of its factors (2 + 3 · devices + 2 · ways,).

    Factors of 1, the coordinator's slow-down, each link's round trip and bytes up and down, and the extra times of direct
    messages and bytes. share: of the plan's bytes that cross links.
    """
    found = [plan.others_ms, plan.coordinator_ms]
    for name in peers:
        use = plan.links.get(name)
        found += (0.0, 0.0, 0.0) if use is None else (use.messages, share * use.up_bytes, share * use.down_bytes)
    for name in ways:
        straight = plan.straight.get(name)
        found += (0.0, 0.0) if straight is None else (straight.messages, share * straight.bytes)
    return np.array(found)
