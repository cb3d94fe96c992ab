"""The plan with the least latency for any number of devices, exactly: a shortest path along the steps.

Exact under the model of `solvers.partition.problem`, among plans that change devices at cuts that up to `widest` values cross.
States and transitions are found once; other conditions only change the times of the transitions.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from solvers.errors import Infeasible
from solvers.partition.conditions import PartitionConditions
from solvers.partition.limited import cheapest_within
from solvers.partition.plan import PartitionPlan, plan_of, stays
from solvers.partition.problem import PartitionProblem
from solvers.partition.states import PlanStates, find_states, holders_ms

WIDEST = 4
TIE = 1e-9  # share of the latency by which a plan that sends something must be better

TransitionTimes = NDArray[np.float64]


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

    def _transition_ms(self, conditions: PartitionConditions) -> TransitionTimes:
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

    def shortest(self, times_ms: TransitionTimes) -> tuple[int, ...]:
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
