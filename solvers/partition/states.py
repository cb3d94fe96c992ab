"""The states of a plan between two steps, and the transitions from each to the next, without any times.

A state is the device that has run the last step, and, for each value that is still read, the set of devices that hold it. At a
cut that a single value crosses there are as many states as devices, so a chain of c such cuts has c · devices² transitions.
Devices change only at cuts that few values cross, so networks with long shortcuts have few states, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.partition.dataflow import INPUT, Dataflow
from solvers.partition.problem import PartitionProblem

MOST_TRANSITIONS = 100_000
PlanState = tuple[int, tuple[tuple[int, int], ...]]
"""The device, and for each value that is still read the devices that hold it, as bits."""


class _TooMany(Exception):
    """More than MOST_TRANSITIONS."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTransitions:
    """The transitions of one step, grouped by target state: (states, most transitions into one state), padded.

    transition: positions in the arrays of `PlanStates`; the last position means no transition. source: states before the step.
    """

    transition: NDArray[np.int64]
    source: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanStates:
    """All transitions (T,), step by step; the last step stands for the network's output.

    before, after: devices. sends: (T, R) positions of the transfers in a table (values, sets of devices, devices) of the time
    of a value from any of its holders to a device; its last position, behind the table, means no transfer.
    """

    step: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    sends: NDArray[np.int64]
    layers: tuple[StepTransitions, ...]
    widest: int


def find_states(problem: PartitionProblem, widest: int) -> PlanStates:
    """The states if devices change at cuts that up to `widest` values cross; at fewer cuts if transitions are too many."""
    for most in range(widest, 1, -1):
        try:
            return _Finder(problem, most).find()
        except _TooMany:
            continue
    return _Finder(problem, 1).find()


class _Finder:
    def __init__(self, problem: PartitionProblem, widest: int) -> None:
        self.problem, self.widest, self.dataflow = problem, widest, problem.dataflow
        self.allowed = problem.allowed
        self.last = [value.readers[-1] for value in self.dataflow.values]
        self.rows: list[tuple[int, int, int]] = []
        self.sends: list[tuple[int, ...]] = []

    def find(self) -> PlanStates:
        dataflow, home = self.dataflow, self.problem.home
        states: dict[PlanState, int] = {(home, tuple((at, 1 << home) for at in dataflow.writes[INPUT])): 0}
        layers: list[list[list[tuple[int, int]]]] = []
        for step in range(dataflow.steps + 1):
            following: dict[PlanState, int] = {}
            leading: list[list[tuple[int, int]]] = []
            for state, source in states.items():
                for device in self._devices(state[0], step):
                    reached, sent = self._after(state, step, device)
                    number = following.setdefault(reached, len(following))
                    if number == len(leading):
                        leading.append([])
                    leading[number].append((len(self.rows), source))
                    self.rows.append((step, state[0], device))
                    self.sends.append(sent)
            if self.widest > 1 and len(self.rows) > MOST_TRANSITIONS:
                raise _TooMany
            states = following
            layers.append(leading)
        return self._arrays(layers)

    def _devices(self, before: int, step: int) -> Iterator[int]:
        """The devices that may run a step. The network's output is read on the coordinator, or wherever it is."""
        if step == self.dataflow.steps:
            yield self.problem.home if self.problem.returns else before
            return
        changes = self.dataflow.crossing[step] <= self.widest
        for device in range(self.problem.devices):
            if self.allowed[step, device] and (changes or device == before):
                yield device

    def _after(self, state: PlanState, step: int, device: int) -> tuple[PlanState, tuple[int, ...]]:
        """The state after a step on a device, and the transfers that it needs."""
        holders, sent = dict(state[1]), []
        if step < self.dataflow.steps or self.problem.returns:
            for at in self.dataflow.reads[step]:
                if not holders[at] >> device & 1:
                    sent.append((at << self.problem.devices | holders[at]) * self.problem.devices + device)
                    holders[at] |= 1 << device
        if step < self.dataflow.steps:
            holders.update((at, 1 << device) for at in self.dataflow.writes[step])
        left = tuple((at, mask) for at, mask in sorted(holders.items()) if self.last[at] > step)
        return (device, left) if step < self.dataflow.steps else (self.problem.home, ()), tuple(sent)

    def _arrays(self, layers: list[list[list[tuple[int, int]]]]) -> PlanStates:
        count, nothing = len(self.rows), len(self.last) * (1 << self.problem.devices) * self.problem.devices
        most = max((len(sent) for sent in self.sends), default=0)
        sends = np.full((count, most), nothing, np.int64)
        for row, sent in zip(sends, self.sends, strict=True):
            row[: len(sent)] = sent
        step, before, after = np.asarray(self.rows, np.int64).reshape(-1, 3).T
        return PlanStates(
            step=step,
            before=before,
            after=after,
            sends=sends,
            layers=tuple(_layer(leading, count) for leading in layers),
            widest=self.widest,
        )


def _layer(leading: list[list[tuple[int, int]]], none: int) -> StepTransitions:
    width = max(map(len, leading), default=1)
    transition = np.full((len(leading), width), none, np.int64)
    source = np.zeros((len(leading), width), np.int64)
    for number, pairs in enumerate(leading):
        transition[number, : len(pairs)], source[number, : len(pairs)] = zip(*pairs, strict=True)
    return StepTransitions(transition=transition, source=source)


def holders_ms(dataflow: Dataflow, ms_per_byte: NDArray[np.float64]) -> NDArray[np.float64]:
    """The table of `PlanStates.sends`, and a final 0: the holder from which a value arrives first sends it."""
    devices = len(ms_per_byte)
    held = (np.arange(1 << devices)[:, None] >> np.arange(devices)) & 1 > 0  # (sets, holders)
    unit_ms = np.where(held[:, :, None], ms_per_byte, np.inf).min(axis=1)  # (sets, devices)
    sizes = np.asarray([value.bytes for value in dataflow.values])
    with np.errstate(invalid="ignore"):
        table = sizes[:, None, None] * unit_ms
    if not (sizes > 0).all():
        table[sizes == 0] = np.where(np.isfinite(unit_ms), 0.0, np.inf)
    return np.append(table.ravel(), 0.0)
