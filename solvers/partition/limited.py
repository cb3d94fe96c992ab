"""The fastest plan within limits, exactly, by labels: a time and the use of each limit; dominated labels are dropped.

A label is dropped if its time plus the least time to the end exceeds that of a known plan, if its use plus the least use to the
end exceeds a limit, or if another label of its state is as good in time and every use.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solvers.errors import Infeasible
from solvers.partition.conditions import PartitionConditions
from solvers.partition.plan import plan_of, stays
from solvers.partition.problem import PartitionProblem
from solvers.partition.states import PlanStates, StepTransitions

SLACK = 1e-9  # share of a time, for rounding
BLOCK = 256  # labels that are compared with all others at a time

UseArray = NDArray[np.float64]


def cheapest_within(
    problem: PartitionProblem, states: PlanStates, times_ms: UseArray, conditions: PartitionConditions
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

    def __init__(self, state: NDArray[np.int64], ms: UseArray, used: UseArray, number: NDArray[np.int64]) -> None:
        self.state, self.ms, self.used, self.number = state, ms, used, number

    def at(self, positions: NDArray[np.int64]) -> "_Labels":
        return _Labels(self.state[positions], self.ms[positions], self.used[positions], self.number[positions])

    def grown(
        self, layer: StepTransitions, times_ms: UseArray, used: UseArray
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


def _use(problem: PartitionProblem, states: PlanStates, conditions: PartitionConditions) -> UseArray:
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


def _to_the_end(states: PlanStates, costs: UseArray) -> list[UseArray]:
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
