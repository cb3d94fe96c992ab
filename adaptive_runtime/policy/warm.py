"""Variants that must be loaded first: another one runs until they are."""

from dataclasses import dataclass

from adaptive_runtime.policy.decisions import ChoicePolicy, ChoiceState, Decision, DecisionInputs
from adaptive_runtime.policy.objectives import Objective


@dataclass(frozen=True, slots=True)
class WarmFirst:
    """A policy that may decide for a cold variant: the best warm one by the objective runs `meanwhile`.

    The decided variant counts as running, even while it is loaded.
    """

    policy: ChoicePolicy
    objective: Objective

    def decide(self, state: ChoiceState, inputs: DecisionInputs) -> tuple[ChoiceState, Decision]:
        state, decision = self.policy.decide(state, inputs)
        unable = inputs.without | inputs.cold
        if decision.variant not in inputs.cold or len(unable) == len(self.objective.look_up.table):
            return state, decision
        warm = self.objective.find(inputs.limits, inputs.factors, unable)
        return state, decision._replace(meanwhile=warm.variant)
