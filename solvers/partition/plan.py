"""Plans: the device of each step, and the cost under any conditions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.partition.conditions import PartitionConditions
from solvers.partition.dataflow import INPUT
from solvers.partition.problem import PartitionLimit, PartitionProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSteps:
    """Steps that one device runs without a change of device."""

    device: int
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionPlan:
    """A plan, and the parts of its cost.

    stays: segments in the order in which they run. compute_ms: (D,) without slow-down. bytes: (D, D) from one device to
    another. messages: (D, D), one for each change of device. used: amount used of each limit of the problem.
    """

    stays: tuple[PlacedSteps, ...]
    compute_ms: NDArray[np.float64]
    bytes: NDArray[np.float64]
    messages: NDArray[np.int64]
    used: tuple[float, ...]

    @property
    def placement(self) -> tuple[int, ...]:
        """The device of each step."""
        device_of = {step: stay.device for stay in self.stays for step in stay.steps}
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


def stays(placement: Sequence[int]) -> tuple[PlacedSteps, ...]:
    """The segments of a placement whose steps run in their order."""
    found: list[tuple[int, list[int]]] = []
    for step, device in enumerate(placement):
        if not found or found[-1][0] != device:
            found.append((device, []))
        found[-1][1].append(step)
    return tuple(PlacedSteps(device=device, steps=tuple(steps)) for device, steps in found)


def plan_of(problem: PartitionProblem, conditions: PartitionConditions, found: Iterable[PlacedSteps]) -> PartitionPlan:
    """The plan with these segments. conditions: determine which holder sends a value to a device."""
    found, dataflow, devices = tuple(found), problem.dataflow, problem.devices
    ms_per_byte = conditions.ms_per_byte
    compute_ms, sent = np.zeros(devices), np.zeros((devices, devices))
    messages = np.zeros((devices, devices), np.int64)
    holders = {at: {problem.home} for at in dataflow.writes[INPUT]}
    now = problem.home

    def take(step: int, device: int) -> None:
        for at in dataflow.reads[step]:
            if device not in holders[at]:
                best = min(holders[at], key=lambda holder: (ms_per_byte[holder, device], holder))
                sent[best, device] += dataflow.values[at].bytes
                holders[at].add(device)

    for stay in found:
        messages[now, stay.device] += now != stay.device
        now = stay.device
        for step in stay.steps:
            take(step, now)
            compute_ms[now] += problem.compute_ms[step, now]
            holders.update((at, {now}) for at in dataflow.writes[step])
    if problem.returns:
        messages[now, problem.home] += now != problem.home
        take(dataflow.steps, problem.home)
    used = tuple(
        float(
            sum(limit.per_step[list(stay.steps), stay.device].sum() for stay in found) + (limit.per_byte * sent).sum()
        )
        for limit in problem.limits
    )
    return PartitionPlan(stays=found, compute_ms=compute_ms, bytes=sent, messages=messages, used=used)
