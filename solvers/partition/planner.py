"""The plan with the least latency for any number of devices, exactly: dynamic programming along the steps.

Exact under the model of `solvers.partition.problem`, among plans that change devices at cuts which up to `widest` values
cross. PlanStates and transitions are found once; a plan under other conditions takes array operations alone.
"""

from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solvers.errors import Infeasible
from solvers.partition.conditions import PartitionConditions
from solvers.partition.limited import cheapest_within
from solvers.partition.plan import PartitionPlan, plan_of, stays
from solvers.partition.problem import PartitionProblem
from solvers.partition.states import find_states, holders_ms

WIDEST = 4
TIE = 1e-9  # of the latency: a plan that sends something is better by more than this

TransitionTimes = NDArray[np.float64]


class PartitionPlanner:
    """Plans for one problem under any conditions. widest: of cuts at which devices change, in values that cross them."""

    def __init__(self, problem: PartitionProblem, widest: int = WIDEST) -> None:
        self.problem = problem
        self._states = find_states(problem, widest)
        self._flat = np.concatenate([layer.transition.ravel() for layer in self._states.layers])
        ends = np.cumsum([0, *(layer.transition.size for layer in self._states.layers)])
        self._slices = [slice(start, end) for start, end in pairwise(ends.tolist())]
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
        """The plan with the least latency within all limits. Where nothing that is sent pays, nothing is sent.

        Infeasible: no plan keeps the limits, or no link leads to a device that can run a step.
        """
        plan = self._plan(conditions, self.placement(conditions))
        if not plan.keeps(self.problem.limits):
            plan = self._plan(conditions, self._within_limits(conditions))
        return self._at_home_if_as_good(conditions, plan)

    def placement(self, conditions: PartitionConditions) -> tuple[int, ...]:
        """The device of each step, limits aside. Infeasible: no link leads to a device that can run a step."""
        layers = self._layered_ms(self._transition_ms(conditions))
        reached = [np.zeros(1)]
        for layer, times_ms in zip(self._states.layers, layers, strict=True):
            reached.append(np.minimum.reduce(reached[-1][layer.source] + times_ms, axis=1))
        state = 0
        if not len(reached[-1]) or not np.isfinite(reached[-1][0]):
            raise Infeasible("no link leads to a device that can run a step")
        found = []
        for number in range(len(layers) - 1, -1, -1):
            layer = self._states.layers[number]
            column = int((reached[number][layer.source[state]] + layers[number][state]).argmin())
            found.append(int(self._states.after[layer.transition[state, column]]))
            state = int(layer.source[state, column])
        return tuple(found[:0:-1])

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

    def _layered_ms(self, times_ms: TransitionTimes) -> list[TransitionTimes]:
        """The same as each layer has them; inf where there is no transition."""
        spread = np.append(times_ms, np.inf)[self._flat]
        return [
            spread[part].reshape(layer.transition.shape)
            for part, layer in zip(self._slices, self._states.layers, strict=True)
        ]

    def _within_limits(self, conditions: PartitionConditions) -> tuple[int, ...]:
        return cheapest_within(self.problem, self._states, self._transition_ms(conditions), conditions)

    def _at_home_if_as_good(self, conditions: PartitionConditions, plan: PartitionPlan) -> PartitionPlan:
        """The plan that sends nothing, where it is allowed and as fast."""
        home = self._home
        if not plan.sends or home is None:
            return plan
        latency_ms = plan.latency_ms(conditions)
        return home if home.latency_ms(conditions) <= latency_ms + TIE * abs(latency_ms) else plan

    @cached_property
    def _home(self) -> PartitionPlan | None:
        """The plan that sends nothing, which is the same under all conditions; None where it is not allowed."""
        problem = self.problem
        if not problem.allowed[:, problem.home].all():
            return None
        everywhere = PartitionConditions.of(problem.devices, np.inf, 0.0)
        plan = plan_of(problem, everywhere, stays([problem.home] * problem.dataflow.steps))
        return plan if plan.keeps(problem.limits) else None
