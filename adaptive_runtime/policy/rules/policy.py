"""A policy that follows rules: the objective changes with battery, memory, load and temperature of the device."""

from collections.abc import Callable
from typing import NamedTuple

from adaptive_runtime.policy.decisions import ChoicePolicy, ChoiceState, Decision, DecisionInputs
from adaptive_runtime.policy.inputs import ChoiceLimits
from adaptive_runtime.policy.lookup import VariantLookUp
from adaptive_runtime.policy.objectives import Objective
from adaptive_runtime.policy.rules.rules import ChoiceRule, ChoiceRules
from adaptive_runtime.policy.scoring import ACCURACY_FIRST, BatteryMu, CriterionWeights, ScoredObjectives

NO_RULE = "no rule holds: accuracy first"


class RuledChoice(NamedTuple):
    """The current objective. holding: which conditions hold. mu: by the battery; None: no rule asks for it. told: in words."""

    holding: tuple[bool, ...]
    mu: float | None
    rule: ChoiceRule | None
    weights: CriterionWeights
    told: str


class ByRules:
    """Decides by the policy that `policy_of` makes for the objective of the first rule that holds.

    A condition that held stays until its value is beyond the limit by a band, and mu follows the battery in steps, so neither
    flaps. When another rule begins to hold, the wait for a better variant begins anew. The memory of a variant is limited to
    the
    free memory plus that of the running variant. AdaptiveError if a rule needs a column that the table lacks.
    """

    def __init__(
        self, rules: ChoiceRules, look_up: VariantLookUp, policy_of: Callable[[Objective], ChoicePolicy]
    ) -> None:
        rules.check(look_up.table)
        self.rules, self.look_up, self._policy_of = rules, look_up, policy_of
        self._objectives = ScoredObjectives(look_up)
        self._policies: tuple[Objective, ChoicePolicy] | None = None
        self._counting: tuple[tuple[object, ...], tuple[RuledChoice, ChoicePolicy, ChoiceLimits]] | None = None

    def decide(self, state: ChoiceState, inputs: DecisionInputs) -> tuple[ChoiceState, Decision]:
        """The next state, and the decision with the rule in front of its reason."""
        ruled, policy, limits = self._counts(state, inputs)
        known = state
        if state.rule != ruled.told and state.better_since_s is not None:
            known = state._replace(better_since_s=None)
        if limits is not inputs.limits:
            inputs = inputs._replace(limits=limits)
        after, decision = policy.decide(known, inputs)
        if not inputs.for_run and (ruled.holding, ruled.mu, ruled.told) != (after.holding, after.mu, after.rule):
            after = after._replace(holding=ruled.holding, mu=ruled.mu, rule=ruled.told)
        why = ruled.told if ruled.mu is None else f"{ruled.told}, mu {ruled.mu:.3g}"
        adapts_weights, reason = ruled.rule is None or ruled.rule.adapts_weights, f"{why}; {decision.reason}"
        return after, decision._replace(rule=ruled.told, reason=reason, adapts_weights=adapts_weights)

    def ruled(self, state: ChoiceState, inputs: DecisionInputs) -> RuledChoice:
        """The current objective. Before a later run of a request it is the objective of the first run."""
        is_later = inputs.for_run and state.rule is not None
        holding = state.holding if is_later else self.rules.holding(inputs, state.holding)
        rule = self.rules.first(holding)
        if rule is None:
            return RuledChoice(holding, None, None, ACCURACY_FIRST, NO_RULE)
        told = f"rule '{rule.text}'" + (" holds" if rule.any_of else "")
        if not isinstance(rule.counts, BatteryMu):
            return RuledChoice(holding, None, rule, rule.counts, told)
        device = inputs.device
        mu = state.mu if is_later else None
        if mu is None:
            battery, charging = (None, None) if device is None else (device.battery, device.charging)
            mu = rule.counts.mu(battery, charging, state.mu)
        return RuledChoice(holding, mu, rule, CriterionWeights.of_mu(mu), told)

    def _counts(self, state: ChoiceState, inputs: DecisionInputs) -> tuple[RuledChoice, ChoicePolicy, ChoiceLimits]:
        """The current objective, its policy, and the limits; found only once while all inputs stay the same."""
        of_inputs = inputs.limits, inputs.for_run, inputs.load, inputs.device
        asked = (*of_inputs, state.running, state.holding, state.mu, state.rule)
        if self._counting is None or self._counting[0] != asked:
            ruled = self.ruled(state, inputs)
            policy = self._policy(self._objectives.of(ruled.weights))
            limits = self._limits(inputs.limits, ruled.rule, state.running, inputs)
            self._counting = asked, (ruled, policy, limits)
        return self._counting[1]

    def _policy(self, objective: Objective) -> ChoicePolicy:
        if self._policies is None or self._policies[0] is not objective:
            self._policies = objective, self._policy_of(objective)
        return self._policies[1]

    def _limits(
        self, limits: ChoiceLimits, rule: ChoiceRule | None, running: int | None, inputs: DecisionInputs
    ) -> ChoiceLimits:
        """The limits with those of the rule, and within the free memory."""
        energy_mj = _least(limits.energy_mj, None if rule is None else rule.energy_mj)
        memory_mib = _least(limits.memory_mib, None if rule is None else rule.memory_mib)
        taken_mib, device = self.look_up.table.memory_mib, inputs.device
        if device is not None and device.memory_available_mib is not None and taken_mib is not None:
            own_mib = 0.0 if running is None else taken_mib[running]
            memory_mib = _least(memory_mib, device.memory_available_mib + own_mib)
        if (energy_mj, memory_mib) == (limits.energy_mj, limits.memory_mib):
            return limits
        return limits.model_copy(update={"energy_mj": energy_mj, "memory_mib": memory_mib})


def _least(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
