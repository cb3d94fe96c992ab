"""What a service needs of a model, whichever kind it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.deployed import ModelAnswer, ModelState
from adaptive_runtime.links import MeasuredLink
from adaptive_runtime.service.inference import InferenceFormat
from adaptive_runtime.service.load import LoadSource
from adaptive_runtime.service.recent import ToldDecision
from adaptive_runtime.service.remembered import ChoiceMemory
from profiling_agents.messages import Message

Row = TypeVar("Row")


class DeviceTold(Message):
    """Another device and its link, as measured. state: in, out, connecting, excluded; reason: why. None: not known.

    answered: requests of which it has run segments.
    """

    name: str
    state: str
    reason: str
    up_mbps: float | None
    down_mbps: float | None
    round_trip_ms: float | None
    answered: int


def device_told(name: str, state: tuple[str, str], link: MeasuredLink, answered: int) -> DeviceTold:
    """A device by its state with the reason, and its link."""
    known = {key: getattr(link, key) for key in ("up_mbps", "down_mbps", "round_trip_ms")}
    return DeviceTold(name=name, state=state[0], reason=state[1], answered=answered, **known)


def rows_after(rows: tuple[Row, ...], last: Row | None) -> tuple[Row, ...]:
    """The rows after one of them; all where it is not there any more."""
    at = next((at for at in range(len(rows) - 1, -1, -1) if rows[at] is last), -1)
    return rows[at + 1 :]


class DevicesTold(Message):
    """A SubNet over several devices at one moment. plan: the device of each segment, of the latest request.

    Where a bundle serves at home, the plan is `home` alone. plan_ms, home_ms: predicted now for this plan and for home alone;
    None: a device of the plan is out, or none is needed. slow_down: of home. changes: of plan, so far. at_home: requests that
    home has finished against their plan; wrong: answers that checks found so.
    """

    plan: tuple[str, ...]
    plan_ms: float | None
    home_ms: float
    slow_down: float
    changes: int
    at_home: int
    wrong: int
    devices: tuple[DeviceTold, ...]


class DevicesSource(Protocol):
    """now: what is known at this moment. news: what has happened to plan and devices since the last call."""

    @property
    def now(self) -> DevicesTold: ...

    def news(self) -> tuple[ToldDecision, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that is open.

    infer: the answer to images (N, C, H, W), by a time of the monotonic clock where the model can; of one of the `subnets`,
    digests by which clients may name them now, where one is named.
    works: false once nothing is left that could answer. version: by which clients ask for it. memory: where the choice is kept.
    devices: None: one device runs all of it.
    """

    infer: Callable[[NDArray[np.float32], float, str | None], ModelAnswer]
    subnets: Callable[[], tuple[str, ...]]
    state: Callable[[], ModelState]
    works: Callable[[], bool]
    load: LoadSource
    format: InferenceFormat
    version: str
    memory: ChoiceMemory | None = None
    devices: DevicesSource | None = None
