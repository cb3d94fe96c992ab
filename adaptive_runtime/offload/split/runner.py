"""The runner of a split SubNet: requests by their plans, deadlines on the coordinator, and spot checks of devices.

One event loop runs all requests, with one thread for the coordinator's computations. Requests on other devices are
watched: as soon as the coordinator could otherwise no longer finish all of them in time, it begins the first of them
itself, and the device is out for a while. The coordinator runs one request after the other. The order of deadlines
(Jackson's rule, earliest due date first) meets all deadlines if any order does. In a spot check, the coordinator
repeats segments of another device on the same tensors.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from adaptive_runtime.base.devices import COORDINATOR
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.exits import SampleDecision
from adaptive_runtime.offload.links import DeviceAddress, MeasuredLink, Peer, PeerLostError, SharedLink
from adaptive_runtime.offload.links.measures import WeightedMean
from adaptive_runtime.offload.split.plans import DeviceSegments, PlacementChoice, all_on_coordinator
from adaptive_runtime.offload.split.requests import (
    Array,
    Flight,
    Route,
    Routes,
    SegmentTimes,
    SplitAnswer,
    SplitCounts,
    SplitEvent,
    SplitOptions,
)
from adaptive_runtime.offload.split.segments import CoordinatorRun, CoordinatorSegments, SplitSubNet
from profiling_agents.messages import MOST_WITHIN_MS, ActivationCoding
from profiling_agents.streams import STEPS, decoded, decoded_all, encoded


def latest_starts(deadlines: Sequence[float], durations: Sequence[float]) -> list[float]:
    """The latest start of each request for which it and all later ones are in time; deadlines must not decrease."""
    found: list[float] = []
    end = float("inf")
    for deadline, duration in zip(reversed(deadlines), reversed(durations), strict=True):
        end = min(deadline, end) - duration
        found.append(end)
    return found[::-1]


@dataclass(frozen=True, slots=True)
class SpotCheck:
    """Consecutive runs of devices: the tensors that reached the first device, and the last one's output, both decoded."""

    devices: tuple[str, ...]
    first: int
    last: int
    given: dict[str, Array]
    got: dict[str, Array]
    coding: ActivationCoding


def largest_difference(check: SpotCheck, expected: Mapping[str, Array]) -> float:
    """Largest difference over all tensors, relative to each one's largest value, minus the coding's step; infinite for NaN."""
    worst = 0.0
    for name, got in check.got.items():
        reference = expected[name]
        if not np.isfinite(reference).all():
            continue  # the network itself causes this, not the device
        most = float(np.abs(reference).max(initial=0.0))
        apart = float(np.abs(got - reference).max(initial=0.0))
        if not np.isfinite(apart):
            return float("inf")
        worst = max(worst, apart / max(most, float(np.finfo(np.float32).tiny)) - STEPS[check.coding])
    return worst


MOST_EVENTS = 1000
MOST_CHECKS = 16
FADING = 0.98


class SplitRunner:
    """All requests of one SubNet. All methods except `counts` and `events` must be called in the event loop's thread."""

    def __init__(
        self,
        split: SplitSubNet,
        coordinator: CoordinatorSegments,
        devices: Mapping[str, DeviceAddress],
        choice: PlacementChoice,
        options: SplitOptions,
        links: Mapping[str, SharedLink] | None = None,
    ) -> None:
        self._subnet, self._coordinator, self._choice, self._options = split.subnet, coordinator, choice, options
        self.peers = {
            name: Peer(name, one, split.subnets, split.files, self._tell, None if links is None else links[name])
            for name, one in devices.items()
        }
        self.counts = SplitCounts()
        self.events: deque[SplitEvent] = deque(maxlen=MOST_EVENTS)
        self.changed = asyncio.Event()
        """Set and replaced whenever a device comes or goes."""
        self.routes = Routes(split.subnet, self.peers, direct=options.direct, report=self._event)
        self._last = len(split.subnet.segments) - 1
        self._shapes = split.subnet.shapes
        self._entering, self._leaving = cache(split.subnet.entering), cache(split.subnet.leaving)
        self._flights: set[Flight] = set()
        self._checks: deque[SpotCheck] = deque()
        self._rng = np.random.default_rng(options.seed)
        self._thread = ThreadPoolExecutor(1, "coordinator")
        choice.ran_on_coordinator(0, coordinator.times_ms)
        self._busy = False
        self._plan, self._coding = all_on_coordinator(self._last + 1), options.coding
        self._timer: asyncio.TimerHandle | None = None
        self._usual_ms: dict[tuple[Route, ActivationCoding], WeightedMean] = {}
        self._suspects: set[str] = set()
        self._timer_late_s = self._thread_late_s = 0.0
        """Recent lateness of the coordinator's own clock and threads: the largest value, which fades."""

    async def keep_peers(self) -> None:
        """Keep the connections until cancelled; at the end no request is in flight."""
        try:
            async with asyncio.TaskGroup() as group:
                for peer in self.peers.values():
                    group.create_task(peer.keep())
                await asyncio.Event().wait()
        finally:
            for flight in tuple(self._flights):
                self._fail(flight, AdaptiveError("split network", "was closed before it had answered"))
            self._thread.shutdown(cancel_futures=True)

    def links(self) -> dict[str, MeasuredLink]:
        """Links of the usable devices."""
        return {name: peer.link for name, peer in self.peers.items() if peer.usable}

    def begin(self, flight: Flight) -> None:
        """Accept a request."""
        flight.begun_s = time.perf_counter()
        links = self.links()
        plan, why = self._choice.choose(links | self.routes.ways()), self._choice.reason
        if len(plan.devices) != self._last + 1 or not plan.peers <= links.keys():
            plan, why = all_on_coordinator(self._last + 1), f"{plan} cannot be followed"
        coding = self._choice.coding or self._options.coding
        if plan.devices != self._plan.devices or (plan.peers and coding != self._coding):
            self._plan, self._coding = plan, coding
            self._event(COORDINATOR, "plan", f"{plan}: {why}")
        flight.segments, flight.coding, flight.decision = list(plan.segments), coding, self._coordinator.decision()
        self._flights.add(flight)
        flight.guaranteed = True
        now_s = time.perf_counter()
        flight.guaranteed = all(start_s > now_s for one, start_s in self._by_deadline() if not one.ready)
        self._advance(flight)

    def _advance(self, flight: Flight) -> None:
        """Go on with the next segment, or finish the request."""
        if not flight.segments:
            end_s = time.perf_counter()
            self._flights.discard(flight)
            found = flight.values[self._subnet.answer] if flight.left is None else flight.left
            answer = flight.answered(found, end_s)
            counts = self.counts
            counts.answered += 1
            counts.late += answer.late
            counts.on_coordinator += answer.on_coordinator is not None
            counts.exited += answer.exit is not None
            for name in answer.devices:
                counts.by_device[name] = counts.by_device.get(name, 0) + 1
            flight.future.set_result(answer)
        elif flight.segments[0].device == COORDINATOR:
            flight.ready = True
        elif self._own_start_s(flight) <= time.perf_counter():
            flight.come_back("there was no time for another device")
        else:
            flight.sent_s, flight.route = time.perf_counter(), self.routes.route(flight.segments)
            flight.remote = asyncio.create_task(self._send(flight, flight.route))
            flight.remote.add_done_callback(partial(self._sent, flight))
        self._dispatch()

    def leave(self, answer: Future[SplitAnswer]) -> None:
        """Mark a request for whose answer nobody waits any more."""
        for flight in self._flights:
            flight.left_alone |= flight.future is answer
        self._dispatch()

    def _drop_left(self) -> None:
        """Drop requests that the coordinator would have to run although nobody waits for them."""
        for flight in [one for one in self._flights if one.left_alone and one.ready and not one.running]:
            self._flights.discard(flight)
            self.counts.left += 1
            flight.future.set_exception(AdaptiveError("split network", "nobody waits for the answer"))

    def _fail(self, flight: Flight, error: Exception) -> None:
        self._flights.discard(flight)
        self.counts.failed += 1
        if not flight.future.done():
            flight.future.set_exception(error)

    def _sent(self, flight: Flight, task: "asyncio.Task[None]") -> None:
        """Return a request to the coordinator after any unexpected error, so that none is lost."""
        if not task.cancelled() and (error := task.exception()) is not None and flight.remote is task:
            flight.come_back(f"{type(error).__name__}: {error}")
            self._dispatch()

    async def _send(self, flight: Flight, route: Route) -> None:
        """Let other devices run consecutive segments."""
        own, coding, first, last = flight.remote, flight.coding, route[0].first, route[-1].last
        assert own is asyncio.current_task()
        start_s = time.perf_counter()
        sent = {name: encoded(flight.values[name], coding) for name in self._entering(first, last)}
        try:
            self._require_room(route)
            within_ms = min(max((flight.deadline_s - start_s) * 1e3, 0.0), MOST_WITHIN_MS)
            answers = await self.routes.run(route, list(sent.values()), coding, within_ms)
        except PeerLostError as error:
            if flight.remote is own:
                flight.come_back(str(error))
                self._dispatch()
            return
        found = answers[-1]
        if flight.remote is not own or found is None:
            return
        names = self._leaving(route[-1].first, last)
        tensors = decoded_all(found.activations, [self._shapes[name] for name in names], found.content)
        got = dict(zip(names, tensors, strict=True))
        finite, devices = (
            all(np.isfinite(tensor).all() for tensor in tensors),
            tuple(segment.device for segment in route),
        )
        if not finite or self._suspects.intersection(devices) or self._rng.random() < self._options.check_share:
            given = {name: decoded(one, self._shapes[name], content) for name, (one, content) in sent.items()}
            if len(self._checks) < MOST_CHECKS:
                self._checks.append(SpotCheck(devices, first, last, given, got, coding))
            else:
                self.counts.unchecked += 1
        if not finite:
            flight.come_back(f"{'→'.join(devices)}: gave NaN or infinite values")
            self._dispatch()
            return
        took_ms = (time.perf_counter() - start_s) * 1e3
        self._usual_ms.setdefault((route, coding), WeightedMean()).add(took_ms)
        if len(route) == 1:
            self._choice.ran_elsewhere(flight.came_s * 1e3 + took_ms - found.times.total_ms, coding)
        for segment, answer in zip(route, answers, strict=True):
            self.peers[segment.device].was_in_time()
            times = None if answer is None else answer.times
            own_ms = took_ms if times is None or segment is route[-1] else times.total_ms
            flight.passed(
                SegmentTimes(segment.device, segment.first, segment.last, own_ms, times),
                got if segment is route[-1] else {},
            )
        self._advance(flight)

    def _require_room(self, route: Route) -> None:
        """PeerLostError: a device has reached its limit of requests in flight."""
        for segment in route:
            if self.peers[segment.device].in_flight >= self._options.most_in_flight:
                raise PeerLostError(f"{segment.device}: has {self._options.most_in_flight} requests already")

    def _dispatch(self) -> None:
        """Start the coordinator's next work if it is idle; otherwise set a timer for the next work."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._drop_left()
        if self._busy:
            return
        flights = self._by_deadline()
        away = min(((one, at_s) for one, at_s in flights if not one.ready), key=lambda pair: pair[1], default=None)
        ready = next((one for one, _ in flights if one.ready), None)
        now_s = time.perf_counter()
        end_s = now_s
        if ready is not None:
            end_s += self._predicted_s(ready.segments[0].first, ready.segments[0].last)
        if away is not None and end_s >= away[1] and (ready is None or away[0].deadline_s <= ready.deadline_s):
            self._bring_back(away[0], now_s)
            if away[0].left_alone:
                self._dispatch()
                return
            ready = away[0]
        if ready is not None:
            self._run_on_coordinator(ready)
        elif self._checks and self._has_time_for(self._checks[0], away[1] if away else None):
            check = self._checks.popleft()
            self._start(partial(self._checked, check), check.given, check.first, check.last)
        elif away is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(away[1] - now_s, 0.0), self._due, away[1])

    def _due(self, at_s: float) -> None:
        self._timer_late_s = max(time.perf_counter() - at_s, FADING * self._timer_late_s)
        self._dispatch()

    @property
    def _spare_s(self) -> float:
        """Time by which the coordinator starts earlier than the times of segments demand."""
        return self._options.spare_ms * 1e-3 + self._timer_late_s + self._thread_late_s

    def _by_deadline(self) -> list[tuple[Flight, float]]:
        """Requests that the coordinator is not running, by deadline, and the coordinator's latest start for each [s].

        Requests without the guarantee of the coordinator's fallback, because too many need it, are counted by themselves alone.
        """
        flights = sorted((one for one in self._flights if not one.running), key=lambda one: one.deadline_s)
        counted = [one for one in flights if one.guaranteed]
        deadlines = [one.deadline_s - self._spare_s for one in counted]
        starts = latest_starts(deadlines, [self._predicted_s(one.segments[0].first, self._last) for one in counted])
        known = dict(zip(counted, starts, strict=True))
        return [(one, known[one] if one in known else self._own_start_s(one)) for one in flights]

    def _own_start_s(self, flight: Flight) -> float:
        """Latest start of the rest of a request on the coordinator if it were the coordinator's only work [s]."""
        return flight.deadline_s - self._spare_s - self._predicted_s(flight.segments[0].first, self._last)

    def _predicted_s(self, first: int, last: int) -> float:
        return self._coordinator.predicted_ms(first, last, self._options.deviations) * 1e-3

    def _bring_back(self, flight: Flight, now_s: float) -> None:
        """Start a request on the coordinator that other devices have.

        A device that has had it for longer than usual is late: it goes out, and its other requests return to the coordinator
        through the error that they get. Among several consecutive devices the late one is unknown: they communicate through the
        coordinator for a while, which reveals it. If the time was not unusual, the coordinator was late itself.
        """
        if flight.segments[0].device == COORDINATOR:
            return
        route = flight.route
        flight.come_back(f"{'→'.join(segment.device for segment in route)}: was late")
        usual = self._usual_ms.get((route, flight.coding))
        if usual is None or (now_s - flight.sent_s) * 1e3 > usual.mean + self._options.deviations * usual.deviation:
            if len(route) > 1:
                self.routes.lose(route, "was late")
            else:
                self.peers[route[0].device].lose("was late")

    def _run_on_coordinator(self, flight: Flight) -> None:
        own = flight.segments[0]
        flight.running = True
        self._start(partial(self._ran, flight, own), flight.values, own.first, own.last, flight.decision)

    def _start(
        self,
        then: Callable[[float, "asyncio.Future[CoordinatorRun]"], None],
        values: dict[str, Array],
        first: int,
        last: int,
        decision: SampleDecision | None = None,
    ) -> None:
        """Run segments on the coordinator. then: called with the time of this call and the finished run."""
        self._busy = True
        work = asyncio.get_running_loop().run_in_executor(
            self._thread, self._coordinator.run, values, first, last, decision
        )
        work.add_done_callback(partial(then, time.perf_counter()))

    def _ran(
        self, flight: Flight, segment: DeviceSegments, asked_s: float, work: "asyncio.Future[CoordinatorRun]"
    ) -> None:
        self._busy = False
        if work.cancelled() or flight not in self._flights:
            return
        if (error := work.exception()) is not None:
            self._fail(flight, error if isinstance(error, AdaptiveError) else AdaptiveError("coordinator", str(error)))
            self._dispatch()
            return
        run = work.result()
        handed_s = time.perf_counter() - asked_s - sum(run.took_ms) * 1e-3
        self._learn(segment.first, run, (flight.came_s + handed_s) * 1e3)
        self._thread_late_s = max(handed_s, FADING * self._thread_late_s)
        times = SegmentTimes(COORDINATOR, segment.first, segment.first + len(run.took_ms) - 1, sum(run.took_ms))
        if run.left is not None:
            flight.leave(times, run.left)
        else:
            flight.passed(times, {name: run.values[name] for name in self._leaving(segment.first, segment.last)})
        self._advance(flight)

    def _learn(self, first: int, run: CoordinatorRun, handed_ms: float) -> None:
        """Learn from a run. Checks count, too: they show the coordinator's load while other devices run all requests."""
        self._coordinator.learn(first, run.took_ms)
        self._choice.ran_on_coordinator(first, run.took_ms, handed_ms)

    def _has_time_for(self, check: SpotCheck, until_s: float | None) -> bool:
        return until_s is None or time.perf_counter() + self._predicted_s(check.first, check.last) < until_s

    def _checked(self, check: SpotCheck, asked_s: float, work: "asyncio.Future[CoordinatorRun]") -> None:
        self._busy = False
        if work.cancelled():
            return
        if work.exception() is None:
            self.counts.checked += 1
            run = work.result()
            self._learn(check.first, run, (time.perf_counter() - asked_s) * 1e3 - sum(run.took_ms))
            apart = largest_difference(check, run.values)
            if apart > self._options.tolerance:
                self._wrong(check, apart)
            else:
                self._suspects.difference_update(check.devices)
        self._dispatch()

    def _wrong(self, check: SpotCheck, apart: float) -> None:
        """Exclude a device that answered wrongly. Of several devices, each is checked alone from now on until it was right."""
        self.counts.wrong += 1
        what = f"segments {check.first} to {check.last} differ by {apart:.2g} (allowed {self._options.tolerance:g})"
        if len(check.devices) == 1:
            self.peers[check.devices[0]].exclude(f"answered wrongly: {what}")
            return
        self._suspects.update(check.devices)
        route = tuple(DeviceSegments(name, check.first, check.last) for name in check.devices)
        self.routes.lose(route, f"one of them answered wrongly: {what}", for_good=True)

    def _tell(self, peer: Peer, reason: str) -> None:
        self._event(peer.name, peer.state, reason)
        self.changed.set()
        self.changed = asyncio.Event()

    def _event(self, device: str, state: str, reason: str) -> None:
        self.events.append(SplitEvent(time.monotonic(), device, state, reason))
