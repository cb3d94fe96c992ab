"""Requests over several devices: options, requests in flight, routes, results and events.

Values go directly from one other device to the next if possible, else through the coordinator.
"""

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, permutations
from typing import Annotated, NamedTuple, TypeVar

from pydantic import Field

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.devices import COORDINATOR
from adaptive_runtime.exits import SampleDecision
from adaptive_runtime.offload.links import (
    LinkMeasures,
    MeasuredLink,
    Peer,
    PeerAnswer,
    PeerLostError,
    PeerTimes,
    RunWay,
)
from adaptive_runtime.offload.split.plans import DeviceSegments, way_name
from profiling_agents.messages import ActivationCoding, GivenTimes, Message, SentActivation, ServedSubNet


class SegmentTimes(NamedTuple):
    """Segments that a device ran for a request, and their duration [ms]. peer: None: they ran on the coordinator."""

    device: str
    first: int
    last: int
    took_ms: float
    peer: PeerTimes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAnswer:
    """answer: the network's own output.

    on_coordinator: why the coordinator finished a request instead of another device; None: as planned. late: after its
    deadline. exit: position of the exit on the coordinator that was confident enough; None: the full answer.
    """

    answer: Array
    latency_ms: float
    devices: tuple[str, ...]
    segments: tuple[SegmentTimes, ...]
    on_coordinator: str | None
    late: bool
    exit: int | None = None


class SplitEvent(NamedTuple):
    """An event with its reason. time_s: of the monotonic clock.

    For a device: it came `in`, went `out`, or was `excluded`. For the link between two others, `a→b`: values go directly (`in`)
    or through the coordinator (`out`). For `coordinator`: requests follow another `plan`; the first one is the coordinator
    alone.
    """

    time_s: float
    device: str
    state: str
    reason: str


@dataclass(slots=True)
class SplitCounts:
    """Counts over all requests so far.

    on_coordinator: finished on the coordinator against the plan. wrong: answers that failed spot checks. unchecked: checks
    for which the coordinator had no time. exited: answered by exits on the coordinator. left: nobody waited for the answer,
    and the coordinator would have had to finish it.
    """

    answered: int = 0
    late: int = 0
    failed: int = 0
    on_coordinator: int = 0
    checked: int = 0
    wrong: int = 0
    unchecked: int = 0
    exited: int = 0
    left: int = 0
    by_device: dict[str, int] = field(default_factory=dict)


class SplitOptions(Message):
    """coding: of tensors on links; `EnvelopePlacements` sends in fp32 if that is faster.

    check_share: share of answers of other devices that the coordinator recomputes. tolerance: allowed difference of such an
    answer, relative to the largest value of its tensor, beyond the effect of the coding.

    spare_ms: the coordinator starts this much earlier than its predicted time and its own recent lateness demand. deviations:
    number of standard deviations added to the mean of the coordinator's measured times. most_in_flight: limit of requests in
    flight per device. direct: values go directly from one other device to the next if possible.
    """

    coding: ActivationCoding = "fp32"
    check_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.02
    tolerance: Annotated[float, Field(gt=0.0)] = 1e-3
    spare_ms: Annotated[float, Field(ge=0.0)] = 5.0
    deviations: Annotated[float, Field(ge=0.0)] = 3.0
    most_in_flight: Annotated[int, Field(ge=1, le=16)] = 8
    direct: bool = True
    seed: int = 0


FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Time for which values go through the coordinator after a failed transfer; doubled each time."""
Route = tuple[DeviceSegments, ...]
"""Consecutive segments of a request, each of which gives its values to the next."""
T = TypeVar("T")


@dataclass(slots=True)
class _DirectLink:
    """A link from one other device to another. state: empty: no values were sent yet."""

    measures: LinkMeasures = field(default_factory=LinkMeasures)
    state: str = ""
    until_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S


class Routes:
    """Decides which segments run without the coordinator between them. For one event loop.

    report: called when a link between two devices comes or goes, with its name, state and the reason in one line.
    """

    def __init__(
        self,
        subnet: ServedSubNet,
        peers: Mapping[str, Peer],
        *,
        direct: bool,
        report: Callable[[str, str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subnet, self._peers, self._direct, self._report, self._clock = subnet, peers, direct, report, clock
        self._links: dict[tuple[str, str], _DirectLink] = {}

    @property
    def links(self) -> dict[tuple[str, str], MeasuredLink]:
        """Links between other devices that have carried values; only the direction from the first to the second is known."""
        return {pair: one.measures.link for pair, one in self._links.items() if one.state == "in"}

    def ways(self) -> dict[str, MeasuredLink]:
        """Direct links by `way_name`, between devices that are in; without values if none have been sent yet."""
        names = [name for name, peer in self._peers.items() if peer.state == "in"]
        found = {}
        for giver, taker in permutations(names, 2):
            if self._may_give(giver, taker):
                link = self._links.get((giver, taker))
                found[way_name(giver, taker)] = MeasuredLink() if link is None else link.measures.link
        return found

    def route(self, segments: Sequence[DeviceSegments]) -> Route:
        """The first segment, and the following ones that can be reached directly."""
        count = 1
        while count < len(segments) and self._is_straight(segments[count - 1], segments[count]):
            count += 1
        return tuple(segments[:count])

    def lose(self, route: Route, reason: str, *, for_good: bool = False) -> None:
        """Let values of these segments go through the coordinator for a while, or from now on."""
        for giver, taker in pairwise(route):
            link = self._links.setdefault((giver.device, taker.device), _DirectLink())
            link.until_s = math.inf if for_good else max(self._clock() + link.pause_s, link.until_s)
            link.pause_s = min(2 * link.pause_s, LONGEST_PAUSE_S)
            self._change(giver.device, taker.device, "out", reason)

    async def run(
        self, route: Route, tensors: Sequence[tuple[SentActivation, bytes]], coding: ActivationCoding, within_ms: float
    ) -> list[PeerAnswer | None]:
        """Run the segments consecutively. Returns the answer of each, or None if it has not come before the last one.

        If a device cannot give its values to the next one, the coordinator carries them. PeerLostError: a device failed, and
        why.
        """
        tickets = [None, *(secrets.token_hex(16) for _ in route[1:])]
        asks = [
            asyncio.create_task(self._ask(route, at, tickets, tensors if at == 0 else (), coding, within_ms))
            for at in range(len(route))
        ]
        for at, ask in enumerate(asks):
            ask.add_done_callback(partial(self._answered, route[at : at + 2]))
        for at, ask in enumerate(asks[:-1]):
            await asyncio.wait({ask, asks[-1]}, return_when=asyncio.FIRST_COMPLETED)
            if asks[-1].done():
                break
            if (answer := ask.result()).given is None:
                await self._carry(route[at : at + 2], answer, tickets[at + 1])
        await asks[-1]
        return [ask.result() if ask.done() and ask.exception() is None else None for ask in asks]

    async def _ask(
        self,
        route: Route,
        at: int,
        tickets: Sequence[str | None],
        tensors: Sequence[tuple[SentActivation, bytes]],
        coding: ActivationCoding,
        within_ms: float,
    ) -> PeerAnswer:
        segment = route[at]
        if len(route) == 1:
            return await self._of(segment, lambda peer: peer.run(segment.first, segment.last, tensors, coding))
        following = tickets[at + 1] if at + 1 < len(route) else None
        receiver = None if following is None else self._peers[route[at + 1].device].receiver(following)
        way = RunWay(tickets[at], receiver, within_ms)
        return await self._of(segment, lambda peer: peer.run(segment.first, segment.last, tensors, coding, way))

    def _answered(self, pair: Route, ask: "asyncio.Task[PeerAnswer]") -> None:
        """Measure the link after a finished segment, maybe after the last answer.

        Errors are ignored: nobody may wait for the segment.
        """
        if ask.cancelled() or ask.exception() is not None or len(pair) < 2 or (given := ask.result().given) is None:
            return
        self._gave(pair[0].device, pair[1].device, given)

    async def _carry(self, pair: Route, answer: PeerAnswer, ticket: str | None) -> None:
        """Carry values through the coordinator that one device could not give to the next."""
        taker = pair[1]
        self.lose(pair, answer.not_given or "has not given its values")
        assert ticket is not None, "all segments but the first have one"
        await self._of(taker, lambda peer: peer.give(ticket, answer.activations, answer.content))

    async def _of(self, segment: DeviceSegments, work: Callable[[Peer], Awaitable[T]]) -> T:
        try:
            return await work(self._peers[segment.device])
        except PeerLostError as error:
            raise PeerLostError(f"{segment.device}: {error}") from error

    def _gave(self, giver: str, taker: str, times: GivenTimes) -> None:
        link = self._links.setdefault((giver, taker), _DirectLink())
        link.measures.up(times.bytes, times.received_ms)
        link.measures.round_trip(times.total_ms - times.received_ms)
        if self._clock() >= link.until_s:  # late values do not restore a link
            link.pause_s = FIRST_PAUSE_S
            self._change(giver, taker, "in", "values go straight")

    def _change(self, giver: str, taker: str, state: str, reason: str) -> None:
        link = self._links[giver, taker]
        if link.state != state:
            link.state = state
            self._report(way_name(giver, taker), state, reason)

    def _may_give(self, giver: str, taker: str) -> bool:
        link = self._links.get((giver, taker))
        return self._direct and self._peers[giver].gives and (link is None or self._clock() >= link.until_s)

    def _is_straight(self, giver: DeviceSegments, taker: DeviceSegments) -> bool:
        """Whether the second one reads exactly the first one's outputs, no later segment does, and a direct link is allowed."""
        if COORDINATOR in (giver.device, taker.device) or not self._may_give(giver.device, taker.device):
            return False
        values, last = self._subnet.leaving(giver.first, giver.last), len(self._subnet.segments) - 1
        later = self._subnet.entering(taker.last + 1, last) if taker.last < last else ()
        return values == self._subnet.entering(taker.first, taker.last) and not set(values) & set(later)


@dataclass(slots=True, eq=False)
class Flight:
    """A request in flight. values: tensors known on the coordinator, by name. Times in seconds of `time.perf_counter`.

    begun_s: start in the thread that runs requests. segments: remaining, by device. ready: the coordinator should run the next
    ones. remote: other devices run those of `route`, since `sent_s`. guaranteed: the coordinator can finish it in time, with
    all others that count as guaranteed, if no other device answers any more. left_alone: nobody waits for the answer, and the
    coordinator does nothing more for it. coding: of sent tensors. decision: whether it leaves at exits, as long as all of these
    are on the coordinator. left: the answer of the exit at which it left.
    """

    values: dict[str, Array]
    start_s: float
    deadline_s: float
    future: "Future[SplitAnswer]"
    begun_s: float = 0.0
    segments: list[DeviceSegments] = field(default_factory=list)
    coding: ActivationCoding = "fp32"
    ready: bool = False
    running: bool = False
    guaranteed: bool = False
    left_alone: bool = False
    sent_s: float = 0.0
    route: Route = ()
    remote: "asyncio.Task[None] | None" = None
    on_coordinator: str | None = None
    decision: SampleDecision | None = None
    left: Array | None = None
    done: list[SegmentTimes] = field(default_factory=list)

    @property
    def came_s(self) -> float:
        """Time to reach the thread that runs requests; 0 after the first segment, in which it was counted."""
        return 0.0 if self.done else self.begun_s - self.start_s

    def come_back(self, reason: str) -> None:
        """Let the coordinator run the rest of the request."""
        rest = DeviceSegments(COORDINATOR, self.segments[0].first, self.segments[-1].last)
        self.segments, self.remote, self.ready = [rest], None, True
        self.on_coordinator = self.on_coordinator or reason

    def passed(self, times: SegmentTimes, values: dict[str, Array]) -> None:
        """Record a finished segment."""
        self.values.update(values)
        self.done.append(times)
        self.segments.pop(0)
        self.remote, self.ready, self.running = None, False, False

    def leave(self, times: SegmentTimes, answer: Array) -> None:
        """Record the answer of an exit on the coordinator: no segments remain."""
        self.passed(times, {})
        self.segments, self.left = [], answer

    def answered(self, answer: Array, end_s: float) -> SplitAnswer:
        """The answer, once no segment is left."""
        exit = None if self.decision is None or self.left is None else self.decision.exit
        return SplitAnswer(
            answer=answer,
            latency_ms=(end_s - self.start_s) * 1e3,
            devices=tuple(segment.device for segment in self.done),
            segments=tuple(self.done),
            on_coordinator=self.on_coordinator,
            late=end_s > self.deadline_s,
            exit=exit,
        )
