"""The interface of a served model, for all kinds of models."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.model.deployed import ModelAnswer, ModelState
from adaptive_runtime.server.inference import InferenceFormat
from adaptive_runtime.server.load import LoadSource
from adaptive_runtime.server.recent import ToldDecision
from adaptive_runtime.server.remembered import ChoiceMemory
from profiling_agents.messages import Message

Row = TypeVar("Row")


class LinkNow(Protocol):
    """A link to another device, as measured now. None: unknown."""

    @property
    def up_mbps(self) -> float | None: ...

    @property
    def down_mbps(self) -> float | None: ...

    @property
    def round_trip_ms(self) -> float | None: ...


class DeviceTold(Message):
    """Another device and its link, as measured. state: in, out, connecting, excluded; reason: of the state. None: unknown.

    answered: number of requests of which it has run segments.
    """

    name: str
    state: str
    reason: str
    up_mbps: float | None
    down_mbps: float | None
    round_trip_ms: float | None
    answered: int


def device_told(name: str, state: tuple[str, str], link: LinkNow | None, answered: int) -> DeviceTold:
    """A device by its state with the reason, and its link. link: None: nothing is known of it."""
    known = {key: None if link is None else getattr(link, key) for key in ("up_mbps", "down_mbps", "round_trip_ms")}
    return DeviceTold(name=name, state=state[0], reason=state[1], answered=answered, **known)


def rows_after(rows: tuple[Row, ...], last: Row | None) -> tuple[Row, ...]:
    """The rows after one of them; all rows if it has been dropped meanwhile."""
    at = next((at for at in range(len(rows) - 1, -1, -1) if rows[at] is last), -1)
    return rows[at + 1 :]


class DevicesTold(Message):
    """A SubNet over several devices at one moment. plan: the device of each segment, for the latest request.

    If a bundle serves on the coordinator, the plan is `home` alone. plan_ms, home_ms: current prediction for this plan and for
    the coordinator alone; None: a device of the plan is out, or none is needed. slow_down: of the coordinator. changes: number
    of plan changes so far. at_home: requests that the coordinator has finished against their plan; wrong: answers that failed
    spot checks.
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
    """now: the current state. news: changes of plan and devices since the last call."""

    @property
    def now(self) -> DevicesTold: ...

    def news(self) -> tuple[ToldDecision, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """An open model.

    infer: the answer to images (N, C, H, W), by a time of the monotonic clock if the model can; by the named SubNet, if one is
    named. subnets: digests that clients may name now. works: false if no SubNet is left that could answer. version: used by
    clients to address it. memory: stores the choice. devices: None: one device runs everything.
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
