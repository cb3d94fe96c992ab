"""A request of several runs: its remaining time is checked from run to run."""

from dataclasses import dataclass

from adaptive_runtime.policy.decisions import ChoicePolicy, ChoiceState, Decision, DecisionInputs
from adaptive_runtime.policy.lookup import FoundVariant
from adaptive_runtime.policy.objectives import Objective
from adaptive_runtime.policy.switching import made


@dataclass(frozen=True, slots=True)
class RunByRun:
    """A policy decides for a request. Before each of its later runs, the remaining runs share the remaining budget.

    While the decided variant keeps its share, it continues. Else the best loaded variant that does serves the next run, for
    this
    request only: the next request begins with the policy's decision. The same applies to a request with less time than others.
    """

    policy: ChoicePolicy
    objective: Objective

    def decide(self, state: ChoiceState, inputs: DecisionInputs) -> tuple[ChoiceState, Decision]:
        running = state.running
        if not inputs.for_run or running is None:
            return self.policy.decide(state, inputs)
        look_up, limits, factors = self.objective.look_up, inputs.limits, inputs.factors
        unable, keeps = inputs.without | inputs.cold, look_up.keeps(running, limits, factors)
        left = f"{limits.budget_ms:.3g} ms are left for each run of the request"
        if (keeps and running not in unable) or len(unable) == len(look_up.table):
            now = FoundVariant(running, look_up.effective_ms(running, limits, factors), keeps)
            return state, made(self.objective, inputs, now, "stay", left)
        return state, made(self.objective, inputs, self.objective.find(limits, factors, unable), "hurry", left)
