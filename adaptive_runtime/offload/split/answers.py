"""The result of a request over several devices, and events of the devices."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.offload.links import PeerTimes

Array = NDArray[np.float32]


class LegTimes(NamedTuple):
    """Segments that a device ran for a request, and their duration [ms]. peer: None: they ran on the coordinator."""

    device: str
    first: int
    last: int
    took_ms: float
    peer: PeerTimes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAnswer:
    """answer: the network's own output.

    at_home: why the coordinator finished a request instead of another device; None: as planned. late: after its deadline. exit:
    position of the exit on the coordinator that was confident enough; None: the full answer.
    """

    answer: Array
    latency_ms: float
    devices: tuple[str, ...]
    legs: tuple[LegTimes, ...]
    at_home: str | None
    late: bool
    exit: int | None = None


class SplitEvent(NamedTuple):
    """An event with its reason. time_s: of the monotonic clock.

    For a device: it came `in`, went `out`, or was `excluded`. For the link between two others, `a→b`: values go directly (`in`)
    or through the coordinator (`out`). For `home`: requests follow another `plan`; the first one is the coordinator alone.
    """

    time_s: float
    device: str
    state: str
    reason: str


@dataclass(slots=True)
class SplitCounts:
    """Counts over all requests so far.

    at_home: finished on the coordinator against the plan. wrong: answers that failed spot checks. unchecked: checks for which
    the coordinator had no time. exited: answered by exits on the coordinator. left: nobody waited for the answer, and the
    coordinator would have had to finish it.
    """

    answered: int = 0
    late: int = 0
    failed: int = 0
    at_home: int = 0
    checked: int = 0
    wrong: int = 0
    unchecked: int = 0
    exited: int = 0
    left: int = 0
    by_device: dict[str, int] = field(default_factory=dict)
