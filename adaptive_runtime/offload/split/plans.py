"""Plans: the device of each segment, and the choice of the plan while devices come and go."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, NamedTuple, Protocol

from pydantic import Field

from adaptive_runtime.base.devices import HOME, DeviceName
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.offload.links import MeasuredLink
from profiling_agents.messages import ActivationCoding, Message


def way_name(giver: str, taker: str) -> str:
    """Name of the link from one other device to another."""
    return f"{giver}→{taker}"


class Leg(NamedTuple):
    """Segments first … last, which one device runs consecutively."""

    device: str
    first: int
    last: int

    @property
    def segments(self) -> str:
        """For people: `2–5`."""
        return f"{self.first}" if self.first == self.last else f"{self.first}–{self.last}"


class PlacedSegments(Message):
    """A plan: the name of the device of each segment, in order. `HOME` is the device that has the request."""

    devices: Annotated[tuple[DeviceName, ...], Field(min_length=1)]

    @property
    def legs(self) -> tuple[Leg, ...]:
        """Runs of neighbouring segments on one device."""
        found, start = [], 0
        for device, group in groupby(self.devices):
            count = len(tuple(group))
            found.append(Leg(device, start, start + count - 1))
            start += count
        return tuple(found)

    def __str__(self) -> str:
        """`home 0-1, server 2-7`."""
        return ", ".join(
            f"{leg.device} {leg.first}" if leg.first == leg.last else f"{leg.device} {leg.first}-{leg.last}"
            for leg in self.legs
        )

    @property
    def peers(self) -> frozenset[str]:
        """The other devices that the plan needs."""
        return frozenset(self.devices) - {HOME}

    @property
    def line(self) -> str:
        """For people: `home 0–1, server 2–5`."""
        return ", ".join(f"{leg.device} {leg.segments}" for leg in self.legs)


def all_at_home(segments: int) -> PlacedSegments:
    """The plan that offloads nothing."""
    return PlacedSegments(devices=(HOME,) * segments)


class PlacementChoice(Protocol):
    """Chooses the plan of a request. It must be a fast look-up: it is called before each request."""

    def choose(self, links: Mapping[str, MeasuredLink]) -> PlacedSegments:
        """The current plan. links: of the devices that are in; a plan with another device is run on the coordinator.

        Also contains, by `way_name`, the direct links between devices.
        """
        ...

    def ran_at_home(self, first: int, took_ms: Sequence[float], handed_ms: float = 0.0) -> None:
        """Report the durations of segments from `first` on on the coordinator, after each run there.

        handed_ms: time of the run beyond its segments: arrival of the request, and hand-over to the coordinator's thread and
        back.
        """
        ...

    def ran_elsewhere(self, handed_ms: float, coding: ActivationCoding) -> None:
        """Report a run on another device. handed_ms: time beyond the way there and back, mostly for coding values."""
        ...

    @property
    def coding(self) -> ActivationCoding | None:
        """Coding of the last chosen plan; None: that of `SplitOptions`."""
        ...

    @property
    def reason(self) -> str:
        """The reason for the last chosen plan. One line."""
        ...


class PreferredPlacements:
    """The first plan of a list all of whose devices are in; the coordinator alone as the last resort."""

    def __init__(self, plans: Sequence[PlacedSegments]) -> None:
        if not plans:
            raise AdaptiveError("plans", "none", allowed="one or more")
        if len({len(plan.devices) for plan in plans}) > 1:
            raise AdaptiveError("plans", "are for different numbers of segments", allowed="plans of one SubNet")
        self._plans = (*plans, all_at_home(len(plans[0].devices)))

    def choose(self, links: Mapping[str, MeasuredLink]) -> PlacedSegments:
        """The first plan that can be followed."""
        return next(plan for plan in self._plans if plan.peers <= links.keys())

    def ran_at_home(self, first: int, took_ms: Sequence[float], handed_ms: float = 0.0) -> None:
        """Do nothing: the order of the list does not depend on times."""

    def ran_elsewhere(self, handed_ms: float, coding: ActivationCoding) -> None:
        """Do nothing, as for runs on the coordinator."""

    @property
    def coding(self) -> ActivationCoding | None:
        """None: all plans use the options' coding."""
        return None

    @property
    def reason(self) -> str:
        """The same reason for all plans."""
        return "the first plan whose devices are in"
