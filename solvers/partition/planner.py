"""The plan with the least latency for any number of devices, exactly, within limits: a shortest path along steps.

Exact under the model of `solvers.partition.problem`, among plans that change devices at cuts that up to `widest` values
cross. States and transitions are found once; other conditions only change the times of the transitions.

A state is the device that has run the last step, and, for each value that is still read, the set of devices that hold
it. At a cut that a single value crosses there are as many states as devices, so a chain of c such cuts has c · devices²
transitions. Devices change only at cuts that few values cross, so networks with long shortcuts have few states, too.

Within limits, the path is the solution of an integer program: one unit flows from the first state to the last one, and
the use of each limit is a sum over transitions. Its linear relaxation is nearly integral, so few branches are needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from solvers.partition.problem import INPUT, PartitionConditions, PartitionPlan, PartitionProblem, plan_of, segments_of
from solvers.tables import Infeasible, Values

MOST_TRANSITIONS = 100_000
PlanState = tuple[int, tuple[tuple[int, int], ...]]
"""The device, and for each value that is still read the devices that hold it, as bits."""


class _TooMany(Exception):
    """More than MOST_TRANSITIONS."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanStates:
    """All transitions (T,) between states; the last step stands for the network's output.

    before, after: devices. source, target: states; 0 is the one before all steps, `count` - 1 the one behind the output.
    complete: whether some transition leads there. sends: (T, R) positions of the transfers in a table (values, sets of devices,
    devices) of the time of a value from any of its holders to a device; its last position, behind the table, means no transfer.
    """

    step: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    count: int
    complete: bool
    sends: NDArray[np.int64]
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

    def find(self) -> PlanStates:
        dataflow, coordinator = self.dataflow, self.problem.coordinator
        states: dict[PlanState, int] = {
            (coordinator, tuple((at, 1 << coordinator) for at in dataflow.writes[INPUT])): 0
        }
        rows: list[tuple[int, int, int, int, int]] = []
        sends: list[tuple[int, ...]] = []
        count = 1
        for step in range(dataflow.steps + 1):
            following: dict[PlanState, int] = {}
            for state, source in states.items():
                for device in self._devices(state[0], step):
                    reached, sent = self._after(state, step, device)
                    target = following.setdefault(reached, count + len(following))
                    rows.append((step, state[0], device, source, target))
                    sends.append(sent)
            if self.widest > 1 and len(rows) > MOST_TRANSITIONS:
                raise _TooMany
            states, count = following, count + len(following)
        nothing = len(self.last) * (1 << self.problem.devices) * self.problem.devices
        padded = np.full((len(rows), max(map(len, sends), default=0)), nothing, np.int64)
        for row, sent in zip(padded, sends, strict=True):
            row[: len(sent)] = sent
        columns = ("step", "before", "after", "source", "target")
        arrays = dict(zip(columns, np.asarray(rows, np.int64).reshape(-1, 5).T, strict=True))
        return PlanStates(**arrays, count=count, complete=bool(states), sends=padded, widest=self.widest)

    def _devices(self, before: int, step: int) -> Iterator[int]:
        """The devices that may run a step. The network's output is read on the coordinator, or wherever it is."""
        if step == self.dataflow.steps:
            yield self.problem.coordinator if self.problem.returns else before
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
        if step == self.dataflow.steps:
            return (self.problem.coordinator, ()), tuple(sent)
        holders.update((at, 1 << device) for at in self.dataflow.writes[step])
        return (device, tuple((at, mask) for at, mask in sorted(holders.items()) if self.last[at] > step)), tuple(sent)


WIDEST = 4
TIE = 1e-9  # share of the latency by which a plan that sends something must be better
SCALE = 1e4
"""Sum of times on the fastest path, as the integer program counts: its gap of 1e-6 is nothing beside it."""


class PartitionPlanner:
    """Plans for one problem under any conditions. widest: the most values that may cross a cut at which devices change."""

    def __init__(self, problem: PartitionProblem, widest: int = WIDEST) -> None:
        self.problem = problem
        self._states = states = find_states(problem, widest)
        devices = problem.devices
        self._compute_at = states.step * devices + states.after
        self._message_at = states.before * devices + states.after
        self._device = np.zeros(states.count, np.int64)
        self._device[states.target] = states.after
        self._sizes = np.asarray([value.bytes for value in problem.dataflow.values])
        held = (np.arange(1 << devices)[:, None] >> np.arange(devices)) & 1 > 0
        self._held = held[:, :, None]  # (sets, holders, 1)

    @property
    def transitions(self) -> int:
        """Number of transitions between states."""
        return len(self._states.step)

    @property
    def widest(self) -> int:
        """The most values that cross a cut at which devices change."""
        return self._states.widest

    def fastest(self, conditions: PartitionConditions) -> PartitionPlan:
        """The plan with the least latency within all limits. Nothing is sent unless sending pays.

        Infeasible: no plan is within the limits, or no link leads to a device that can run a step.
        """
        times_ms = self._transition_ms(conditions)
        plan = plan_of(self.problem, conditions, segments_of(self._shortest(times_ms)))
        if not plan.keeps(self.problem.limits):
            plan = self._within_limits(conditions, times_ms)
        coordinator = self._coordinator
        if not plan.sends or coordinator is None:
            return plan
        latency_ms = plan.latency_ms(conditions)
        return coordinator if coordinator.latency_ms(conditions) <= latency_ms + TIE * abs(latency_ms) else plan

    def _transition_ms(self, conditions: PartitionConditions) -> Values:
        """Time of each transition (T,)."""
        compute_ms = np.vstack([self.problem.compute_ms, np.zeros(self.problem.devices)]) * conditions.slow_down
        unit_ms = np.where(self._held, conditions.ms_per_byte, np.inf).min(axis=1)  # (sets, devices): the first holder
        with np.errstate(invalid="ignore"):
            sends_ms = self._sizes[:, None, None] * unit_ms
        sends_ms[self._sizes == 0] = np.where(np.isfinite(unit_ms), 0.0, np.inf)
        found = compute_ms.ravel()[self._compute_at] + conditions.message_ms.ravel()[self._message_at]
        return found + np.append(sends_ms.ravel(), 0.0)[self._states.sends].sum(axis=1)

    def _shortest(self, times_ms: Values) -> list[int]:
        """The device of each step on the fastest path. Infeasible: no path leads to the end."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        states = self._states
        edges = csr_array((times_ms, (states.source, states.target)), shape=(states.count,) * 2)
        reached_ms, before = dijkstra(edges, indices=0, return_predecessors=True)
        if not states.complete or not np.isfinite(reached_ms[-1]):
            raise Infeasible("no link leads to a device that can run a step")
        found, node = list[int](), int(before[-1])
        while node:
            found.append(int(self._device[node]))
            node = int(before[node])
        return found[::-1]

    def _within_limits(self, conditions: PartitionConditions, times_ms: Values) -> PartitionPlan:
        """The fastest plan within all limits. Infeasible: no plan is within them."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array, vstack

        states, limits = self._states, self.problem.limits
        there = np.isfinite(times_ms)
        count = len(there)
        flow = csr_array((np.ones(count), (states.source, np.arange(count))), shape=(states.count, count))
        flow -= csr_array((np.ones(count), (states.target, np.arange(count))), shape=(states.count, count))
        ends = np.zeros(states.count)
        ends[0], ends[-1] = 1.0, -1.0
        used, most = self._use(conditions), np.asarray([limit.bound for limit in limits])
        scale = np.maximum(most, used.max(axis=0) * 1e-3) + np.finfo(float).tiny
        times = np.where(there, times_ms, 0.0)
        rows, upper = csr_array((used / scale).T), most / scale
        while True:
            found = milp(
                times * (SCALE / max(times.max(), np.finfo(float).tiny)),
                integrality=np.ones(count),
                bounds=Bounds(0.0, there.astype(float)),
                constraints=[LinearConstraint(flow, ends, ends), LinearConstraint(rows, -np.inf, upper)],
                options={"mip_rel_gap": 0.0},
            )
            if found.x is None:
                raise Infeasible("no plan keeps the limits")
            taken = found.x > 0.5
            plan = plan_of(self.problem, conditions, segments_of(states.after[taken][:-1].tolist()))
            if plan.keeps(limits):
                return plan
            # the program allows a millionth more than a limit: exclude this path
            rows = vstack([rows, csr_array(taken[None].astype(float))]).tocsr()
            upper = np.append(upper, taken.sum() - 1.0)

    def _use(self, conditions: PartitionConditions) -> Values:
        """Use (T, R) of each limit by each transition."""
        states, devices = self._states, np.arange(self.problem.devices)
        senders = np.where(self._held, conditions.ms_per_byte, np.inf).argmin(axis=1)  # (sets, devices)
        found = np.zeros((len(states.step), len(self.problem.limits)))
        for number, limit in enumerate(self.problem.limits):
            per_step = np.vstack([limit.per_step, np.zeros(len(devices))])
            sent = np.append((self._sizes[:, None, None] * limit.per_byte[senders, devices]).ravel(), 0.0)
            found[:, number] = per_step[states.step, states.after] + sent[states.sends].sum(axis=1)
        return found

    @cached_property
    def _coordinator(self) -> PartitionPlan | None:
        """The plan that sends nothing, which is the same under all conditions; None if it is not allowed."""
        problem = self.problem
        if not problem.allowed[:, problem.coordinator].all():
            return None
        everywhere = PartitionConditions.of(problem.devices, np.inf, 0.0)
        plan = plan_of(problem, everywhere, segments_of([problem.coordinator] * problem.dataflow.steps))
        return plan if plan.keeps(problem.limits) else None
