"""One server with a queue on a simulated device: from request to request, with the decisions of the run time.

Legend: R requests.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np

from adaptive_runtime.model.estimate import LoadEstimate
from adaptive_runtime.policy import ChoiceLimits, ChoicePolicy, ChoiceState, Decision, DecisionInputs
from benchmarks.simulation.outcomes import RequestEnds, SimulatedOutcome
from benchmarks.simulation.requests import SimulatedRequests

Heard = Callable[[DecisionInputs, Decision], None]


class SimulatedSurroundings(Protocol):
    """What changes around a simulated device besides its load: battery, memory, other devices.

    `seen`: the inputs of a decision with what the device knows of that. `elsewhere`: variants that other devices run, at least
    in part, whose times say nothing of the load. `service_ms`: of a request that such a variant serves; left_ms: until its
    deadline.
    """

    @property
    def elsewhere(self) -> Set[int]: ...

    def seen(self, inputs: DecisionInputs, running: int | None) -> DecisionInputs: ...

    def service_ms(self, variant: int, request: int, left_ms: float) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Requests are served in order, one at a time. The variant is decided when a request's turn comes.

    limits: `budget_ms` is the time from arrival to answer. The budget of a decision is the time that is left for each waiting
    request, divided by its place in the queue; the least of these. queue: requests that wait at most. every_s: time between
    decisions, at least. switch_ms: what a switch takes of the server's time. around: None: nothing changes besides the load.
    """

    requests: SimulatedRequests
    limits: ChoiceLimits
    queue: int = 8
    every_s: float = 0.0
    switch_ms: float = 1.0
    around: SimulatedSurroundings | None = None

    def run(self, policy: ChoicePolicy, heard: Heard | None = None) -> SimulatedOutcome:
        """What becomes of all requests under a policy. heard: is told each decision."""
        server = SimulatedServer(self, policy, heard)
        while server.next():
            pass
        return server.outcome()


class SimulatedServer:
    """A simulation under a policy, from request to request.

    heard: is told each decision. slower: the factor by which its next run is slower, besides the trace's load.
    """

    def __init__(self, simulation: Simulation, policy: ChoicePolicy, heard: Heard | None = None) -> None:
        self.simulation, self.policy, self.heard, self.slower = simulation, policy, heard, 1.0
        self.requests, self.around = simulation.requests, simulation.around
        self.elsewhere: Set[int] = frozenset() if self.around is None else self.around.elsewhere
        table, trace = self.requests.table, self.requests.trace
        self.estimate = LoadEstimate(table)
        self.told: list[tuple[int, float, float, float]] = []
        self.state, self.late = ChoiceState(), False
        self.free_s, self.next_decision_s, self.arrived, self.switches = 0.0, -inf, 0, 0
        self.waiting: deque[int] = deque()
        self.ends, self.rows = (np.full(len(self.requests), -1) for _ in range(2))
        self.accuracy, self.latency_ms = np.zeros(len(self.requests)), np.full(len(self.requests), np.nan)
        self.arrivals_s, self.times_s = trace.arrivals_s, trace.times_s
        self.latencies_ms: list[float] = self.requests.latency_ms_V.tolist()
        self.classes: list[int] = table.load_class_V.tolist()

    @property
    def next_s(self) -> float:
        """When the next request's turn comes; infinite: there is none."""
        if self.waiting:
            return self.free_s
        return max(self.free_s, self.arrivals_s[self.arrived]) if self.arrived < len(self.arrivals_s) else inf

    def next(self) -> bool:
        """Serve or reject the next request; False: there is none."""
        if not self.waiting:
            if self.next_s == inf:
                return False
            self.free_s = self.next_s
        self._arrive(self.free_s)
        request, now_s = self.waiting[0], self.free_s
        left_ms = self.simulation.limits.budget_ms - (now_s - self.arrivals_s[request]) * 1e3
        if left_ms <= 0:
            self.ends[self.waiting.popleft()] = RequestEnds.REJECTED
            return True
        if now_s >= self.next_decision_s:
            self._decide(now_s)
        self._serve(self.waiting.popleft(), now_s, left_ms)
        return True

    def _arrive(self, now_s: float) -> None:
        while self.arrived < len(self.arrivals_s) and self.arrivals_s[self.arrived] <= now_s:
            if len(self.waiting) < max(1, self.simulation.queue):
                self.waiting.append(self.arrived)
            else:
                self.ends[self.arrived] = RequestEnds.REJECTED
            self.arrived += 1

    def _decide(self, now_s: float) -> None:
        limits = self.simulation.limits
        each_ms = (
            (limits.budget_ms - (now_s - self.arrivals_s[request]) * 1e3) / place
            for place, request in enumerate(self.waiting, 1)
        )
        for variant, *served in self.told:
            self.estimate.observe([variant], *served)
        self.told.clear()
        load = self._load(now_s)
        inputs = DecisionInputs(
            now_s=now_s,
            limits=limits.model_copy(update={"budget_ms": min(each_ms)}),
            factors=self.estimate.factors(now_s, load, limits.quantile),
            ratio=self.estimate.ratio,
            load=load,
            late=self.late,
        )
        self.late = False
        before = self.state.running
        if self.around is not None:
            inputs = self.around.seen(inputs, before)
        decision = self.policy(self.state, inputs)
        self.state = decision.after
        if before is not None and decision.variant != before:
            self.switches += 1
            self.free_s += self.simulation.switch_ms * 1e-3
        self.next_decision_s = now_s + self.simulation.every_s
        if self.heard is not None:
            self.heard(inputs, decision)

    def _serve(self, request: int, now_s: float, left_ms: float) -> None:
        variant = self.state.running
        assert variant is not None, "the first request decides"
        requests = self.requests
        switching_ms = (self.free_s - now_s) * 1e3
        if self.around is not None and variant in self.elsewhere:
            service_ms = self.around.service_ms(variant, request, left_ms - switching_ms)
        else:
            factor = self.slower * float(requests.factor_CR[self.classes[variant], request])
            service_ms = self.latencies_ms[variant] * factor
        in_time = switching_ms + service_ms <= left_ms
        self.ends[request] = RequestEnds.IN_TIME if in_time else RequestEnds.LATE
        self.late |= not in_time
        self.rows[request], self.accuracy[request] = variant, requests.table.accuracy[variant]
        self.latency_ms[request] = self.simulation.limits.budget_ms - left_ms + switching_ms + service_ms
        self.free_s += service_ms * 1e-3
        if variant not in self.elsewhere:
            self.told.append((variant, service_ms, self.free_s, self._load(now_s)))

    def _load(self, now_s: float) -> float:
        return float(self.requests.load_T[bisect_right(self.times_s, now_s) - 1])

    def outcome(self) -> SimulatedOutcome:
        """What became of all requests."""
        return SimulatedOutcome(
            ends_R=self.ends,
            accuracy_R=self.accuracy,
            latency_ms_R=self.latency_ms,
            duration_s=self.requests.trace.duration_s,
            switches=self.switches,
            rows_R=self.rows,
        )
