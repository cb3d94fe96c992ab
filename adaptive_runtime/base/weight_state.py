"""Reports of weights that adapt on a device: the state of each SubNet's weights, and events."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

GuardEventKind = Literal["drift", "aligned", "unaligned", "kept", "undone", "over"]
WeightEventKind = GuardEventKind | Literal["failed", "off"]


class WeightEvent(NamedTuple):
    """An event in the adaptation of a SubNet, after so many of its images. at_s: on the monotonic clock.

    drift, over: begin and end of drift; aligned, unaligned: images are now aligned to the usual, or no longer; kept: adapted
    weights serve; undone: the source's weights serve; failed: the SubNet no longer adapts; off: adaptation is not allowed now,
    and the source's weights serve.
    """

    at_s: float
    subnet: str
    kind: WeightEventKind
    image: int
    reason: str


@dataclass(frozen=True, slots=True)
class SubnetWeights:
    """State of a SubNet's weights at one moment.

    adapted: whether adapted weights serve. aligned: whether images are aligned before serving. drifting: whether images are
    unlike the source's. images: number observed so far. steps: of the statistics that are being adapted. look_ms: time to
    observe the latest images, per image. renewed_ms: time of the latest change of the serving weights, from statistics to a
    checked session in place. None: no such event yet.
    """

    adapted: bool
    aligned: bool
    drifting: bool
    images: int
    steps: int
    look_ms: float | None
    renewed_ms: float | None


@dataclass(frozen=True, slots=True)
class WeightsState:
    """subnets: state by digest, of SubNets that have served. left_out: images skipped because too many others waited."""

    subnets: Mapping[str, SubnetWeights]
    left_out: int
    events: tuple[WeightEvent, ...]
