"""The plan with the least latency for any number of devices, exactly, within limits: a shortest path along steps.

Exact under the model of `solvers.partition.problem`, among plans that change devices at cuts that up to `widest` values
cross. States and transitions are found once; other conditions only change the times of the transitions.

A state is the device that has run the last step, and, for each value that is still read, the set of devices that hold
it. At a cut that a single value crosses there are as many states as devices, so a chain of c such cuts has c · devices²
transitions. Devices change only at cuts that few values cross, so networks with long shortcuts have few states, too.

Within limits, a label has a time and the use of each limit. A label is dropped if its time plus the least time to the
end exceeds the time of a known plan, if its use plus the least use to the end exceeds a limit, or if another label of
its state is as good in time and every use.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from solvers.partition.problem import (
    INPUT,
    Dataflow,
    PartitionConditions,
    PartitionPlan,
    PartitionProblem,
    plan_of,
    stays,
)
from solvers.tables import Infeasible, Values

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


SLACK = 1e-9  # share of a time, for rounding
BLOCK = 256  # labels that are compared with all others at a time


def cheapest_within(
    problem: PartitionProblem, states: PlanStates, times_ms: Values, conditions: PartitionConditions
) -> tuple[int, ...]:
    """The device of each step of the fastest plan within all limits. Infeasible if no plan is within them."""
    used = _use(problem, states, conditions)
    most = np.asarray([limit.bound for limit in problem.limits])
    left_ms = _to_the_end(states, times_ms)
    known_ms = _single_cut_ms(problem, states, conditions) * (1 + SLACK) + SLACK
    left_use = [_to_the_end(states, each) for each in used.T]
    label = _Labels(np.zeros(1, np.int64), np.zeros(1), np.zeros((1, len(most))), np.zeros(1, np.int64))
    history: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for number, layer in enumerate(states.layers):
        grown, transition, parent = label.grown(layer, times_ms, used)
        least_use = np.stack([each[number + 1][grown.state] for each in left_use], axis=1)
        least_ms = grown.ms + left_ms[number + 1][grown.state]
        fits = (grown.used + least_use <= most).all(axis=1) & np.isfinite(least_ms) & (least_ms <= known_ms)
        kept = np.flatnonzero(fits)
        if not len(kept):
            raise Infeasible("no plan keeps the limits")
        kept = kept[_not_beaten(grown.at(kept))]
        history.append((transition[kept], parent[kept]))
        label = grown.at(kept)
    at = int(label.ms.argmin())
    found = []
    for transition, parent in reversed(history):
        found.append(int(states.after[transition[at]]))
        at = int(parent[at])
    return tuple(found[:0:-1])


def _single_cut_ms(problem: PartitionProblem, states: PlanStates, conditions: PartitionConditions) -> float:
    """The least time of plans within all limits that leave the coordinator once and do not return; inf if none exists."""
    steps, home, found = problem.dataflow.steps, problem.home, np.inf
    allowed, crossing = problem.allowed, problem.dataflow.crossing
    for device in range(problem.devices):
        for cut in range(steps + 1):
            there = crossing[cut] <= states.widest or cut == steps
            if there and allowed[:cut, home].all() and allowed[cut:, device].all():
                plan = plan_of(problem, conditions, stays([home] * cut + [device] * (steps - cut)))
                if plan.keeps(problem.limits):
                    found = min(found, plan.latency_ms(conditions))
    return float(found)


class _Labels:
    """Labels (L,): state, time, use (L, R) of each limit, and each label's own number."""

    def __init__(self, state: NDArray[np.int64], ms: Values, used: Values, number: NDArray[np.int64]) -> None:
        self.state, self.ms, self.used, self.number = state, ms, used, number

    def at(self, positions: NDArray[np.int64]) -> "_Labels":
        return _Labels(self.state[positions], self.ms[positions], self.used[positions], self.number[positions])

    def grown(
        self, layer: StepTransitions, times_ms: Values, used: Values
    ) -> tuple["_Labels", NDArray[np.int64], NDArray[np.int64]]:
        """All labels one step later, with the transition and the label that each comes from."""
        there = layer.transition < len(times_ms)
        after, column = np.nonzero(there)
        source, transition = layer.source[after, column], layer.transition[after, column]
        order = np.argsort(source, kind="stable")
        after, source, transition = after[order], source[order], transition[order]
        first, end = np.searchsorted(source, self.state), np.searchsorted(source, self.state, side="right")
        parent = np.repeat(np.arange(len(self.state)), end - first)
        offset = np.arange(len(parent)) - np.repeat(np.cumsum(end - first) - (end - first), end - first)
        taken = first[parent] + offset
        found = _Labels(
            after[taken],
            self.ms[parent] + times_ms[transition[taken]],
            self.used[parent] + used[transition[taken]],
            np.arange(len(parent)),
        )
        return found, transition[taken], parent


def _use(problem: PartitionProblem, states: PlanStates, conditions: PartitionConditions) -> Values:
    """Use (T, R) of each limit by each transition."""
    devices = problem.devices
    sizes = np.asarray([value.bytes for value in problem.dataflow.values])
    held = (np.arange(1 << devices)[:, None] >> np.arange(devices)) & 1 > 0
    fastest = np.where(held[:, :, None], conditions.ms_per_byte, np.inf).argmin(axis=1)  # (sets, devices): the sender
    found = np.zeros((len(states.step), len(problem.limits)))
    for number, limit in enumerate(problem.limits):
        per_step = np.vstack([limit.per_step, np.zeros(devices)])
        found[:, number] = per_step[states.step, states.after]
        unit = limit.per_byte[fastest, np.arange(devices)]  # (sets, devices)
        sent = np.append((sizes[:, None, None] * unit).ravel(), 0.0)
        found[:, number] += sent[states.sends].sum(axis=1)
    return found


def _to_the_end(states: PlanStates, costs: Values) -> list[Values]:
    """For each layer the least sum of costs from each of its states to the end; the last entry is behind the last layer."""
    spread = np.append(costs, np.inf)
    found = [np.zeros(1)]
    for number in range(len(states.layers) - 1, -1, -1):
        layer = states.layers[number]
        before = 1 if not number else len(states.layers[number - 1].transition)
        least = np.full(before, np.inf)
        np.minimum.at(least, layer.source, found[-1][:, None] + spread[layer.transition])
        found.append(least)
    return found[::-1]


def _not_beaten(labels: _Labels) -> NDArray[np.int64]:
    """Positions of the labels that no other one of their state beats or equals in everything."""
    order = np.lexsort((*labels.used.T, labels.ms, labels.state))
    values = np.column_stack([labels.ms, labels.used])[order]
    state = labels.state[order]
    kept = np.ones(len(order), bool)
    bounds = np.flatnonzero(np.diff(state, prepend=-1, append=-1))
    for start, end in pairwise(bounds.tolist()):
        for first in range(start, end, BLOCK):
            last = min(first + BLOCK, end)
            # sorted by time: only earlier labels can beat a later one
            others = values[start:last][kept[start:last]]
            position = np.flatnonzero(kept[start:last]) + start
            beats = (others[:, None] <= values[None, first:last]).all(axis=2)
            beats &= position[:, None] < np.arange(first, last)[None]
            kept[first:last] &= ~beats.any(axis=0)
    return order[kept]


WIDEST = 4
TIE = 1e-9  # share of the latency by which a plan that sends something must be better


class PartitionPlanner:
    """Plans for one problem under any conditions. widest: the most values that may cross a cut at which devices change."""

    def __init__(self, problem: PartitionProblem, widest: int = WIDEST) -> None:
        self.problem = problem
        self._states = find_states(problem, widest)
        self._graph = _StateGraph(self._states)
        devices, states = problem.devices, self._states
        self._compute_at = states.step * devices + states.after
        self._message_at = states.before * devices + states.after
        self._compute_ms = np.vstack([problem.compute_ms, np.zeros(devices)])

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
        plan = self._plan(conditions, self.placement(conditions))
        if not plan.keeps(self.problem.limits):
            plan = self._plan(conditions, self._within_limits(conditions))
        return self._at_home_if_as_good(conditions, plan)

    def placement(self, conditions: PartitionConditions) -> tuple[int, ...]:
        """The device of each step, ignoring limits. Infeasible: no link leads to a device that can run a step."""
        return self._graph.shortest(self._transition_ms(conditions))

    def _plan(self, conditions: PartitionConditions, placement: tuple[int, ...]) -> PartitionPlan:
        return plan_of(self.problem, conditions, stays(placement))

    def _transition_ms(self, conditions: PartitionConditions) -> Values:
        """Time of each transition (T,)."""
        compute_ms = (self._compute_ms * conditions.slow_down).ravel()
        sends_ms = holders_ms(self.problem.dataflow, conditions.ms_per_byte)
        found = compute_ms[self._compute_at] + conditions.message_ms.ravel()[self._message_at]
        for sent in self._states.sends.T:
            found += sends_ms[sent]
        return found

    def _within_limits(self, conditions: PartitionConditions) -> tuple[int, ...]:
        return cheapest_within(self.problem, self._states, self._transition_ms(conditions), conditions)

    def _at_home_if_as_good(self, conditions: PartitionConditions, plan: PartitionPlan) -> PartitionPlan:
        """The plan that sends nothing, if it is allowed and as fast; else the given plan."""
        home = self._home
        if not plan.sends or home is None:
            return plan
        latency_ms = plan.latency_ms(conditions)
        return home if home.latency_ms(conditions) <= latency_ms + TIE * abs(latency_ms) else plan

    @cached_property
    def _home(self) -> PartitionPlan | None:
        """The plan that sends nothing, which is the same under all conditions; None if it is not allowed."""
        problem = self.problem
        if not problem.allowed[:, problem.home].all():
            return None
        everywhere = PartitionConditions.of(problem.devices, np.inf, 0.0)
        plan = plan_of(problem, everywhere, stays([problem.home] * problem.dataflow.steps))
        return plan if plan.keeps(problem.limits) else None


class _StateGraph:
    """States as nodes, the first one before all steps and the last one behind the output; transitions as edges."""

    def __init__(self, states: PlanStates) -> None:
        ends = np.cumsum([1, *(len(layer.transition) for layer in states.layers)])
        first, count = [0, *ends.tolist()], len(states.step)
        tail, head = np.zeros((2, count), np.int32)
        for number, layer in enumerate(states.layers):
            to, column = np.nonzero(layer.transition < count)
            own = layer.transition[to, column]
            tail[own], head[own] = first[number] + layer.source[to, column], first[number + 1] + to
        self._nodes, self._complete = first[-1], len(states.layers[-1].transition) > 0
        self._device = np.zeros(self._nodes, np.int64)
        self._device[head] = states.after
        self._order = np.lexsort((head, tail))
        self._head = head[self._order]
        self._first = np.searchsorted(tail[self._order], np.arange(self._nodes + 1)).astype(np.int32)

    def shortest(self, times_ms: Values) -> tuple[int, ...]:
        """The device of each step on the fastest path from the first node to the last one. Infeasible if no path exists."""
        edges = csr_array((times_ms[self._order], self._head, self._first), shape=(self._nodes, self._nodes))
        reached_ms, before = dijkstra(edges, indices=0, return_predecessors=True)
        if not self._complete or not np.isfinite(reached_ms[-1]):
            raise Infeasible("no link leads to a device that can run a step")
        found, node = [], int(before[-1])
        while node:
            found.append(int(self._device[node]))
            node = int(before[node])
        return tuple(reversed(found))
