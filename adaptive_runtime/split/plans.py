"""Plans: which device runs each segment, and which plan is followed while devices come and go."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, NamedTuple, Protocol

from pydantic import Field

from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.links import MeasuredLink
from profiling_agents.messages import ActivationCoding, Message

HOME = "home"
DeviceName = Annotated[str, Field(min_length=1, max_length=64)]


def way_name(giver: str, taker: str) -> str:
    """Of the way from one other device to another."""
    return f"{giver}→{taker}"


class Leg(NamedTuple):
    """Segments first … last, which one device runs behind each other."""

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
        """Neighbouring segments of one device are run in one go."""
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
        """The other devices that it needs."""
        return frozenset(self.devices) - {HOME}

    @property
    def line(self) -> str:
        """For people: `home 0–1, server 2–5`."""
        return ", ".join(f"{leg.device} {leg.segments}" for leg in self.legs)


def all_at_home(segments: int) -> PlacedSegments:
    """The plan that sends nothing."""
    return PlacedSegments(devices=(HOME,) * segments)


class PlacementChoice(Protocol):
    """Chooses the plan of a request. A look-up: it is called before each of them."""

    def choose(self, links: Mapping[str, MeasuredLink]) -> PlacedSegments:
        """The plan for now. links: of the devices that are in; a plan with another device is run at home.

        Besides, by `way_name`, of the ways over which values may go straight between two devices.
        """
        ...

    def ran_at_home(self, first: int, took_ms: Sequence[float], handed_ms: float = 0.0) -> None:
        """Home has run segments from the first on, which took so long each. Called after each run at home.

        handed_ms: what the run took beyond its segments, as the request came, and to be handed to home's thread and back.
        """
        ...

    def ran_elsewhere(self, handed_ms: float, coding: ActivationCoding) -> None:
        """Another device has run segments. handed_ms: what they took beyond the way there and back, mostly to code values."""
        ...

    @property
    def coding(self) -> ActivationCoding | None:
        """In which the plan that was chosen last sends; None: as `SplitOptions` says."""
        ...

    @property
    def reason(self) -> str:
        """Why the plan that was chosen last is followed. One line."""
        ...


class PreferredPlacements:
    """The first plan of a list all of whose devices are in; the last resort is home."""

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
        """The order of the list is independent of times."""

    def ran_elsewhere(self, handed_ms: float, coding: ActivationCoding) -> None:
        """As for runs at home."""

    @property
    def coding(self) -> ActivationCoding | None:
        """All plans send as the options say."""
        return None

    @property
    def reason(self) -> str:
        """The same for all plans."""
        return "the first plan whose devices are in"
