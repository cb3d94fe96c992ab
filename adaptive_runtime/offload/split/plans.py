"""Plans of a split SubNet: the device of each segment, and the choice of the plan while devices come and go.

`plans.json` has the plans that are fastest somewhere in a range of bandwidths and loads, and their costs. The latency
of a plan is linear in the quantities that change: the coordinator's slow-down, and for each link its round trip and the
time of a byte, up and down. A plan is therefore a plane over these quantities, and the plans together form the lower
envelope of latencies.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, Protocol, Self

from pydantic import AliasChoices, Field, field_validator, model_validator

from adaptive_runtime.base.devices import COORDINATOR, EARLIER_COORDINATOR, DeviceName
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import FileMessage
from adaptive_runtime.bundle.chains.manifest import AGAIN
from adaptive_runtime.offload.links import MeasuredLink
from adaptive_runtime.offload.split.segments import SplitSubNet
from profiling_agents.messages import CODED_BYTES, ActivationCoding, Digest, Message


def way_name(giver: str, taker: str) -> str:
    """Name of the link from one other device to another."""
    return f"{giver}→{taker}"


class DeviceSegments(NamedTuple):
    """Segments first … last, which one device runs consecutively."""

    device: str
    first: int
    last: int

    @property
    def text(self) -> str:
        """For people: `2–5`."""
        return f"{self.first}" if self.first == self.last else f"{self.first}–{self.last}"


EARLIER_MS = AliasChoices("coordinator_ms", "home_ms")
"""Files of 0.17 and earlier versions have the second key."""


class PlacedSegments(Message):
    """A plan: the name of the device of each segment, in order. `COORDINATOR` is the device that has the request."""

    devices: Annotated[tuple[DeviceName, ...], Field(min_length=1)]

    @field_validator("devices")
    @classmethod
    def _with_names_of_this_version(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(COORDINATOR if one == EARLIER_COORDINATOR else one for one in devices)

    @property
    def segments(self) -> tuple[DeviceSegments, ...]:
        """Neighbouring segments on one device together."""
        found, start = [], 0
        for device, group in groupby(self.devices):
            count = len(tuple(group))
            found.append(DeviceSegments(device, start, start + count - 1))
            start += count
        return tuple(found)

    def __str__(self) -> str:
        """`coordinator 0-1, server 2-7`."""
        return self.line.replace("–", "-")

    @property
    def peers(self) -> frozenset[str]:
        """The other devices that the plan needs."""
        return frozenset(self.devices) - {COORDINATOR}

    @property
    def line(self) -> str:
        """For people: `coordinator 0–1, server 2–5`."""
        return ", ".join(f"{segment.device} {segment.text}" for segment in self.segments)


def all_on_coordinator(segments: int) -> PlacedSegments:
    """The plan that offloads nothing."""
    return PlacedSegments(devices=(COORDINATOR,) * segments)


class PlacementChoice(Protocol):
    """Chooses the plan of a request. It must be a fast look-up: it is called before each request.

    A choice that does not depend on times may ignore the reports, as the methods here do.
    """

    def choose(self, links: Mapping[str, MeasuredLink]) -> PlacedSegments:
        """The current plan. links: of the devices that are in; a plan with another device is run on the coordinator.

        Also contains, by `way_name`, the direct links between devices.
        """
        ...

    def ran_on_coordinator(self, first: int, took_ms: Sequence[float], handed_ms: float = 0.0) -> None:
        """Report the durations of segments from `first` on on the coordinator, after each run there.

        handed_ms: time of the run beyond its segments: arrival of the request, and hand-over to the coordinator's thread and
        back.
        """
        return

    def ran_elsewhere(self, handed_ms: float, coding: ActivationCoding) -> None:
        """Report a run on another device. handed_ms: time beyond the way there and back, mostly for coding values."""
        return

    @property
    def coding(self) -> ActivationCoding | None:
        """Coding of the last chosen plan; None: that of `SplitOptions`."""
        return None

    @property
    def reason(self) -> str:
        """The reason for the last chosen plan. One line."""
        ...


class PreferredPlacements(PlacementChoice):
    """The first plan of a list all of whose devices are in; the coordinator alone as the last resort."""

    def __init__(self, plans: Sequence[PlacedSegments]) -> None:
        if not plans:
            raise AdaptiveError("plans", "none", allowed="one or more")
        if len({len(plan.devices) for plan in plans}) > 1:
            raise AdaptiveError("plans", "are for different numbers of segments", allowed="plans of one SubNet")
        self._plans = (*plans, all_on_coordinator(len(plans[0].devices)))

    def choose(self, links: Mapping[str, MeasuredLink]) -> PlacedSegments:
        """The first plan that can be followed."""
        return next(plan for plan in self._plans if plan.peers <= links.keys())

    @property
    def reason(self) -> str:
        """The same reason for all plans."""
        return "the first plan whose devices are in"


PLANS_FILE = "plans.json"
VERSION = 1

NotNegativeMs = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]


def coded_share(coding: ActivationCoding) -> float:
    """Bytes in a coding as a share of the bytes in fp32, in which plans count."""
    return CODED_BYTES[coding] / CODED_BYTES["fp32"]


class LinkUse(Message):
    """Messages between the coordinator and one device for a request. messages: segments on the device, of one round trip each.

    up_bytes, down_bytes: of tensors in fp32.
    """

    messages: Annotated[int, Field(ge=1)]
    up_bytes: Annotated[int, Field(ge=0)]
    down_bytes: Annotated[int, Field(ge=0)]


class StraightUse(Message):
    """Messages of a request directly between two other devices. bytes: of tensors in fp32."""

    messages: Annotated[int, Field(ge=1)]
    bytes: Annotated[int, Field(ge=0)]


class StraightWay(Message):
    """Assumed link between two other devices until values have been sent over it. latency_ms: of a message, one way."""

    bandwidth_mbps: Positive
    latency_ms: NotNegativeMs


class PlannedPlacement(PlacedSegments):
    """A plan with its plane.

    coordinator_ms: of the coordinator's segments, without slow-down. others_ms: of all other segments. links: by device,
    one for each device of the plan except the coordinator; they count all values as sent through the coordinator. straight:
    by `way_name`, the traffic that may go directly instead.
    """

    coordinator_ms: NotNegativeMs = Field(validation_alias=EARLIER_MS)
    others_ms: NotNegativeMs
    links: dict[DeviceName, LinkUse] = Field(default_factory=dict)
    straight: dict[str, StraightUse] = Field(default_factory=dict)

    def latency_ms(
        self, links: Mapping[str, MeasuredLink], slow_down: float = 1.0, coding: ActivationCoding = "fp32"
    ) -> float:
        """Latency of a request over known links of all its devices, for a slow-down of the coordinator.

        All values go through the coordinator. coding: of values on links; the time for coding is not included.
        """
        found_ms, share = self.others_ms + slow_down * self.coordinator_ms, coded_share(coding)
        for name, use in self.links.items():
            link = links[name]
            sent_ms = link.transfer_ms(share * use.up_bytes, share * use.down_bytes)
            found_ms += sent_ms + (use.messages - 1) * (link.round_trip_ms or 0.0)
        return found_ms

    @model_validator(mode="after")
    def _sends_over_links(self) -> Self:
        if self.peers != self.links.keys():
            raise ValueError(f"a plan for {', '.join(self.devices)} has links to {', '.join(self.links) or 'none'}")
        ways = {
            way_name(a.device, b.device) for a, b in pairwise(self.segments) if COORDINATOR not in (a.device, b.device)
        }
        if foreign := sorted(self.straight.keys() - ways):
            raise ValueError(f"a plan for {', '.join(self.devices)} sends straight over {foreign[0]}")
        return self


class PlacementPlans(FileMessage):
    """All plans of one SubNet. digest: of its segments, `ServedSubNet.digest`. peers: the devices besides the coordinator.

    coordinator_ms: predicted time of each segment on the coordinator without load. bandwidth_mbps, slow_down: the ranges
    (low, high) for which the plans were made. plans: the first one sends nothing. For a set of devices, the plans that need
    no other device are valid. ways: by `way_name`, known links between other devices.
    """

    WHERE: ClassVar[str] = PLANS_FILE
    NEXT_STEP: ClassVar[str] = AGAIN
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "segments"

    version: int = VERSION
    digest: Digest
    peers: Annotated[tuple[DeviceName, ...], Field(min_length=1)]
    coordinator_ms: Annotated[tuple[NotNegativeMs, ...], Field(min_length=1, validation_alias=EARLIER_MS)]
    bandwidth_mbps: tuple[Positive, Positive]
    slow_down: tuple[Positive, Positive]
    plans: Annotated[tuple[PlannedPlacement, ...], Field(min_length=1)]
    ways: dict[str, StraightWay] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.plans[0].peers:
            raise ValueError("the first plan sends something")
        if not sum(self.coordinator_ms):
            raise ValueError("the coordinator's segments take no time")
        for field in ("bandwidth_mbps", "slow_down"):
            low, high = getattr(self, field)
            if low > high:
                raise ValueError(f"{field} from {low:g} to {high:g}")
        known = {COORDINATOR, *self.peers}
        for number, plan in enumerate(self.plans):
            if len(plan.devices) != len(self.coordinator_ms):
                raise ValueError(f"plan {number} is for {len(plan.devices)} segments, not {len(self.coordinator_ms)}")
            if not known.issuperset(plan.devices):
                raise ValueError(f"plan {number} names devices besides {', '.join(sorted(known))}")
        return self

    @classmethod
    def read(cls, file: str | Path, split: SplitSubNet) -> Self:
        """The plans of a SubNet. AdaptiveError in one line: the file cannot be read, or has the plans of another SubNet."""
        found = cls.from_file(Path(file))
        if found.digest != split.subnet.digest:
            got = f"has plans for segments {found.digest[:12]}"
            allowed = f"plans for {split.subnet.digest[:12]}, which is open"
            raise AdaptiveError(str(file), got, allowed=allowed, next_step="use the plans of the segments' own folder")
        return found
