"""Variants that would have to be loaded first: another one runs until they are."""

from dataclasses import dataclass

from adaptive_runtime.choice.decisions import ChoicePolicy, ChoiceState, Decision, DecisionInputs
from adaptive_runtime.choice.objectives import Objective


@dataclass(frozen=True, slots=True)
class WarmFirst:
    """A policy whose variant may be cold: the best of the warm ones runs `meanwhile`, by the objective.

    The variant that is decided counts as running, also while it is loaded.
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
