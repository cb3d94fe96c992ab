"""The problem of planning over devices: steps and values, devices, limits, current conditions, and plans.

The model. Steps run one after the other in their order, each on one device. The coordinator has the network's input;
with `returns` it also receives the output. A device that runs a step holds the values that the step writes and reads: a
value is sent once to each device that reads it, from the device that holds it and from which it arrives first. When the
device changes from one step to the next, the former device sends the new device a message, together with the values
that the new device needs before the next change. A plan takes

    Σ steps: compute time · slow-down  +  Σ changes of device: latency  +  Σ values, receivers: bytes / bandwidth

Limits are sums over steps (memory of weights, energy) and bytes sent (energy of a radio) that must stay below a bound.
Conditions, the current speed of devices and links, change from one plan to the next.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

BITS = 8
MEGA = 1e6
MS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionConditions:
    """Devices and the links between them.

    slow_down: (D,) factor by which steps take longer than `PartitionProblem.compute_ms` on each device. latency_ms: (D, D) of a
    message from one device to another. bandwidth_mbps: (D, D) [Mbit/s] from one device to another; 0: no link, inf: no limit.
    """

    slow_down: NDArray[np.float64]
    latency_ms: NDArray[np.float64]
    bandwidth_mbps: NDArray[np.float64]

    @property
    def ms_per_byte(self) -> NDArray[np.float64]:
        """Time (D, D) of one byte from one device to another; inf if there is no link, 0 to the device itself."""
        with np.errstate(divide="ignore"):
            found = BITS / (self.bandwidth_mbps * MEGA * MS)
        np.fill_diagonal(found, 0.0)
        return found

    @property
    def message_ms(self) -> NDArray[np.float64]:
        """Latency (D, D) of a message; inf if there is no link, 0 to the device itself."""
        found = np.where(self.bandwidth_mbps > 0, self.latency_ms, np.inf)
        np.fill_diagonal(found, 0.0)
        return found

    @classmethod
    def of(
        cls, devices: int, bandwidth_mbps: float, latency_ms: float, slow_down: tuple[float, ...] | None = None
    ) -> "PartitionConditions":
        """Conditions in which all links are equal."""
        return cls(
            slow_down=np.ones(devices) if slow_down is None else np.asarray(slow_down, float),
            latency_ms=np.full((devices, devices), float(latency_ms)),
            bandwidth_mbps=np.full((devices, devices), float(bandwidth_mbps)),
        )


INPUT = -1
"""The writer of the network's input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentValue:
    """A value. writer: a step, or `INPUT`. readers: steps, ascending; the number of steps represents the network's output.

    bytes: size of the value when it is sent.
    """

    writer: int
    readers: tuple[int, ...]
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Dataflow:
    """Steps 0 … `steps` - 1; a step only reads values of earlier steps. Every value has a reader."""

    steps: int
    values: tuple[SentValue, ...]

    def __post_init__(self) -> None:
        for value in self.values:
            assert value.readers == tuple(sorted(set(value.readers))), value
            assert INPUT <= value.writer < value.readers[0] <= value.readers[-1] <= self.steps, value

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """For each step, and last for the network's output, positions of the values that are read."""
        found: list[list[int]] = [[] for _ in range(self.steps + 1)]
        for at, value in enumerate(self.values):
            for reader in value.readers:
                found[reader].append(at)
        return tuple(map(tuple, found))

    @cached_property
    def writes(self) -> tuple[tuple[int, ...], ...]:
        """For each step, positions of the values that it writes; the positions of the network's inputs come last."""
        found: list[list[int]] = [[] for _ in range(self.steps + 1)]
        for at, value in enumerate(self.values):
            found[value.writer].append(at)  # INPUT is -1, so it selects the last entry
        return tuple(map(tuple, found))

    @cached_property
    def crossing(self) -> NDArray[np.int64]:
        """Number of values (steps + 1,) that cross each cut; cut k has the first k steps on its left side."""
        return self._along_cuts([1] * len(self.values)).astype(np.int64)

    @cached_property
    def crossing_bytes(self) -> NDArray[np.float64]:
        """Bytes (steps + 1,) that cross each cut."""
        return self._along_cuts([value.bytes for value in self.values])

    def _along_cuts(self, sizes: list[int] | list[float]) -> NDArray[np.float64]:
        changes = np.zeros(self.steps + 2)
        for value, size in zip(self.values, sizes, strict=True):
            changes[value.writer + 1] += size
            changes[value.readers[-1] + 1] -= size
        return changes.cumsum()[: self.steps + 1]


ROUNDING = 1e-9  # share of a limit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionLimit:
    """An upper limit. per_step: (n, D) use by each step on each device. per_byte: (D, D) use by each byte sent."""

    name: str
    per_step: NDArray[np.float64]
    per_byte: NDArray[np.float64]
    most: float

    @property
    def bound(self) -> float:
        """The limit plus a margin for rounding."""
        return self.most + ROUNDING * abs(self.most)

    @classmethod
    def of_memory(cls, device: int, devices: int, bytes_: Sequence[float], most: float) -> "PartitionLimit":
        """The limit on the memory that one device has for the weights of steps (n,)."""
        per_step = np.zeros((len(bytes_), devices))
        per_step[:, device] = bytes_
        return cls(name=f"memory of device {device}", per_step=per_step, per_byte=np.zeros((devices,) * 2), most=most)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionProblem:
    """Steps and devices. compute_ms: (n, D) time of each step on each device; inf: the step cannot run there.

    coordinator: it has the network's input. returns: the output must return to the coordinator. private: number of
    first steps that stay on the coordinator; if it is not 0, so do all steps that read the network's input.
    """

    dataflow: Dataflow
    compute_ms: NDArray[np.float64]
    coordinator: int = 0
    returns: bool = True
    private: int = 0
    limits: tuple[PartitionLimit, ...] = ()

    def __post_init__(self) -> None:
        assert self.compute_ms.shape == (self.dataflow.steps, self.devices), self.compute_ms.shape
        assert 0 <= self.coordinator < self.devices, self.coordinator
        assert not np.isnan(self.compute_ms).any()

    @property
    def devices(self) -> int:
        """Number of devices."""
        return int(self.compute_ms.shape[1])

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """(n, D) whether a step may run on a device."""
        found = np.isfinite(self.compute_ms)
        kept = list(range(self.private))
        if self.private:
            kept += [reader for value in self.dataflow.values if value.writer == INPUT for reader in value.readers]
        for step in kept:
            if step < self.dataflow.steps:
                found[step, np.arange(self.devices) != self.coordinator] = False
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSegment:
    """Steps that one device runs without a change of device."""

    device: int
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionPlan:
    """A plan, and the parts of its cost.

    segments: in the order in which they run. compute_ms: (D,) without slow-down. bytes: (D, D) from one device to
    another. messages: (D, D), one for each change of device. used: amount used of each limit of the problem.
    """

    segments: tuple[StepSegment, ...]
    compute_ms: NDArray[np.float64]
    bytes: NDArray[np.float64]
    messages: NDArray[np.int64]
    used: tuple[float, ...]

    @property
    def placement(self) -> tuple[int, ...]:
        """The device of each step."""
        device_of = {step: segment.device for segment in self.segments for step in segment.steps}
        return tuple(device_of[step] for step in range(len(device_of)))

    @property
    def sends(self) -> bool:
        """Whether anything goes from one device to another."""
        return bool(self.messages.any())

    @property
    def row(self) -> NDArray[np.float64]:
        """The amounts (D + 2·D²,) that make up the latency, in the order of `weights`."""
        return np.concatenate([self.compute_ms, self.bytes.ravel(), self.messages.ravel()])

    def latency_ms(self, conditions: PartitionConditions) -> float:
        """Latency of one request, from the input on the coordinator to the output [ms]."""
        row, weights_ms = self.row, weights(conditions)
        return float(row[row > 0] @ weights_ms[row > 0])  # 0 · inf counts as 0: a link that is not used

    def keeps(self, limits: Sequence[PartitionLimit]) -> bool:
        """Whether the plan is within all limits of its problem."""
        return all(used <= limit.bound for used, limit in zip(self.used, limits, strict=True))


def weights(conditions: PartitionConditions) -> NDArray[np.float64]:
    """Time (D + 2·D²,) of a unit of each entry of `PartitionPlan.row` [ms]."""
    parts = [conditions.slow_down, conditions.ms_per_byte.ravel(), conditions.message_ms.ravel()]
    return np.concatenate(parts)


def segments_of(placement: Sequence[int]) -> tuple[StepSegment, ...]:
    """The segments of a placement whose steps run in their order."""
    found: list[tuple[int, list[int]]] = []
    for step, device in enumerate(placement):
        if not found or found[-1][0] != device:
            found.append((device, []))
        found[-1][1].append(step)
    return tuple(StepSegment(device=device, steps=tuple(steps)) for device, steps in found)


def plan_of(problem: PartitionProblem, conditions: PartitionConditions, found: Iterable[StepSegment]) -> PartitionPlan:
    """The plan with these segments. conditions: determine which holder sends a value to a device."""
    found, dataflow, devices = tuple(found), problem.dataflow, problem.devices
    ms_per_byte = conditions.ms_per_byte
    compute_ms, sent = np.zeros(devices), np.zeros((devices, devices))
    messages = np.zeros((devices, devices), np.int64)
    holders = {at: {problem.coordinator} for at in dataflow.writes[INPUT]}
    now = problem.coordinator

    def take(step: int, device: int) -> None:
        for at in dataflow.reads[step]:
            if device not in holders[at]:
                best = min(holders[at], key=lambda holder: (ms_per_byte[holder, device], holder))
                sent[best, device] += dataflow.values[at].bytes
                holders[at].add(device)

    for segment in found:
        messages[now, segment.device] += now != segment.device
        now = segment.device
        for step in segment.steps:
            take(step, now)
            compute_ms[now] += problem.compute_ms[step, now]
            holders.update((at, {now}) for at in dataflow.writes[step])
    if problem.returns:
        messages[now, problem.coordinator] += now != problem.coordinator
        take(dataflow.steps, problem.coordinator)
    used = tuple(
        float(
            sum(limit.per_step[list(segment.steps), segment.device].sum() for segment in found)
            + (limit.per_byte * sent).sum()
        )
        for limit in problem.limits
    )
    return PartitionPlan(segments=found, compute_ms=compute_ms, bytes=sent, messages=messages, used=used)
