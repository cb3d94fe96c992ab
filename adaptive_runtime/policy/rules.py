"""Rules of the user, as text and as data: the main criterion by battery, memory, load and temperature of the device.

A rule has conditions on the device, and the objective while they hold; a policy follows the rules.
[The choice at run time](docs/runtime_choice.md#rules) has the language with examples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.choosing import choose
from adaptive_runtime.policy.decisions import ChoicePolicy, ChoiceState, Decision, DecisionInputs, DeviceContext
from adaptive_runtime.policy.inputs import ChoiceLimits, VariantTable
from adaptive_runtime.policy.lookup import Objective, VariantLookUp
from adaptive_runtime.policy.scoring import ACCURACY_FIRST, KEPT_ORDERS, BatteryMu, CriterionWeights, ScoredObjectives

Quantity = Literal["battery", "memory", "memory share", "load", "temperature", "charging"]
ComparisonSign = Literal["<", "<=", ">", ">="]
BANDS: dict[Quantity, float] = {"battery": 0.02, "memory share": 0.02, "load": 0.05, "temperature": 2.0}
"""How far a value has to move back over its limit until a condition that held no longer does."""
MEMORY_BAND = 0.05
"""The same for free memory in MiB, as a share of the limit."""


@dataclass(frozen=True, slots=True)
class RuleCondition:
    """A quantity and its limit. battery, memory share, load: 0 to 1; memory [MiB]: free memory; temperature [°C].

    charging: limit 1 if the device should have a power supply, 0 if it should not.
    """

    quantity: Quantity
    sign: ComparisonSign
    limit: float

    def holds(self, inputs: DecisionInputs, held: bool) -> bool:
        """Whether it holds now. held: whether it held before; then a value has to move back by a band.

        An unknown value changes nothing.
        """
        value = _value(self.quantity, inputs)
        if value is None:
            return held
        if self.quantity == "charging":
            return value == self.limit
        band = self.band if held else 0.0
        if self.sign in ("<", "<="):
            limit = self.limit + band
            return value < limit or (value == limit and self.sign == "<=")
        limit = self.limit - band
        return value > limit or (value == limit and self.sign == ">=")

    @property
    def band(self) -> float:
        """The distance by which a value has to move back over the limit."""
        return MEMORY_BAND * self.limit if self.quantity == "memory" else BANDS.get(self.quantity, 0.0)


@dataclass(frozen=True, slots=True)
class ChoiceRule:
    """A rule holds while all conditions of one group of `any_of` hold; always if it has none. text: as the user wrote it.

    counts: the objective. energy_mj, memory_mib: limits besides those of the model; None: no limit. adapts_weights: false:
    weights stay those of the bundle.
    """

    text: str
    any_of: tuple[tuple[RuleCondition, ...], ...] = ()
    counts: CriterionWeights | BatteryMu = ACCURACY_FIRST
    energy_mj: float | None = None
    memory_mib: float | None = None
    adapts_weights: bool = True

    @property
    def conditions(self) -> tuple[RuleCondition, ...]:
        """All its conditions, in the order of the text."""
        return tuple(condition for every in self.any_of for condition in every)

    def holds(self, holding: Sequence[bool]) -> bool:
        """Whether the rule holds. holding: which of its conditions hold."""
        if not self.any_of:
            return True
        start = 0
        for every in self.any_of:
            if all(holding[start : start + len(every)]):
                return True
            start += len(every)
        return False

    def check(self, table: VariantTable) -> None:
        """Raise AdaptiveError in one line if the rule needs a column that the table lacks."""
        where = f"policy, rule '{self.text}'"
        weights = CriterionWeights.of_mu(0.5) if isinstance(self.counts, BatteryMu) else self.counts
        for name, column, used in (
            ("energy", table.energy_mj, weights.energy or self.energy_mj is not None),
            ("memory", table.memory_mib, weights.memory or self.memory_mib is not None),
        ):
            if used and column is None:
                got = f"needs the {name} of variants, which the table does not have"
                raise AdaptiveError(where, got, next_step=f"measure {name}, or take a rule without it")


@dataclass(frozen=True, slots=True)
class ChoiceRules:
    """The first rule that holds decides. If none holds, the most accurate variant within the limits is best."""

    text: str
    rules: tuple[ChoiceRule, ...]

    def holding(self, inputs: DecisionInputs, held: Sequence[bool]) -> tuple[bool, ...]:
        """The conditions of all rules that hold now, in the order of the text. held: which held before; empty: none."""
        conditions = [condition for rule in self.rules for condition in rule.conditions]
        before = held if len(held) == len(conditions) else (False,) * len(conditions)
        return tuple(condition.holds(inputs, was) for condition, was in zip(conditions, before, strict=True))

    def first(self, holding: Sequence[bool]) -> ChoiceRule | None:
        """The first rule that holds; None if none does."""
        start = 0
        for rule in self.rules:
            end = start + len(rule.conditions)
            if rule.holds(holding[start:end]):
                return rule
            start = end
        return None

    def check(self, table: VariantTable) -> None:
        """Raise AdaptiveError in one line if a rule needs a column that the table lacks."""
        for rule in self.rules:
            rule.check(table)


FIELDS = {
    "battery": "battery",
    "memory": "memory_available_mib",
    "temperature": "temperature_c",
    "charging": "charging",
}
"""Fields of `DeviceContext` by quantity, besides the share of the memory."""


def _value(quantity: Quantity, inputs: DecisionInputs) -> float | None:
    if quantity == "load":
        return inputs.load
    device = inputs.device or DeviceContext()
    value: float | None = device.memory_share if quantity == "memory share" else getattr(device, FIELDS[quantity])
    return value


NO_RULE = "no rule holds: accuracy first"


class RuledChoice(NamedTuple):
    """The objective now. holding: which conditions hold. mu: by the battery; None: no rule asks for it. described: in words."""

    holding: tuple[bool, ...]
    mu: float | None
    rule: ChoiceRule | None
    weights: CriterionWeights
    described: str


class ByRules:
    """Chooses by the objective of the first rule that holds, with the hysteresis that `policy_of` makes for it.

    A condition that held stays until its value is beyond the limit by a band, and mu follows the battery in steps, so neither
    flaps. When another rule begins to hold, the wait for a better variant begins anew. The memory of a variant is limited to
    the free memory plus that of the running variant. AdaptiveError if a rule needs a column that the table lacks.
    """

    def __init__(
        self, rules: ChoiceRules, look_up: VariantLookUp, policy_of: Callable[[Objective], ChoicePolicy]
    ) -> None:
        rules.check(look_up.table)
        self.rules, self.look_up = rules, look_up
        objectives = ScoredObjectives(look_up)
        self._of = lru_cache(KEPT_ORDERS)(lambda weights: (objectives.of(weights), policy_of(objectives.of(weights))))

    def __call__(self, state: ChoiceState, inputs: DecisionInputs) -> Decision:
        """The decision with the next state, and with the rule in front of its reason."""
        ruled = self._ruled(state, inputs)
        objective, hysteresis = self._of(ruled.weights)
        known = state
        if state.rule != ruled.described and state.better_since_s is not None:
            known = state._replace(better_since_s=None)
        limits = self._limits(inputs.limits, ruled.rule, state.running, inputs)
        if limits is not inputs.limits:
            inputs = inputs._replace(limits=limits)
        decision = choose(known, inputs, objective, hysteresis)
        after = decision.after
        if not inputs.for_run and (ruled.holding, ruled.mu, ruled.described) != (after.holding, after.mu, after.rule):
            after = after._replace(holding=ruled.holding, mu=ruled.mu, rule=ruled.described)
        why = ruled.described if ruled.mu is None else f"{ruled.described}, mu {ruled.mu:.3g}"
        adapts_weights, reason = ruled.rule is None or ruled.rule.adapts_weights, f"{why}; {decision.reason}"
        return decision._replace(rule=ruled.described, reason=reason, adapts_weights=adapts_weights, after=after)

    def _ruled(self, state: ChoiceState, inputs: DecisionInputs) -> RuledChoice:
        """The current objective. Before a later run of a request it is the objective of the first run."""
        is_later = inputs.for_run and state.rule is not None
        holding = state.holding if is_later else self.rules.holding(inputs, state.holding)
        rule = self.rules.first(holding)
        if rule is None:
            return RuledChoice(holding, None, None, ACCURACY_FIRST, NO_RULE)
        described = f"rule '{rule.text}'" + (" holds" if rule.any_of else "")
        if not isinstance(rule.counts, BatteryMu):
            return RuledChoice(holding, None, rule, rule.counts, described)
        mu = state.mu if is_later else None
        if mu is None:
            device = inputs.device or DeviceContext()
            mu = rule.counts.mu(device.battery, device.charging, state.mu)
        return RuledChoice(holding, mu, rule, CriterionWeights.of_mu(mu), described)

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


def _least(*limits: float | None) -> float | None:
    return min((one for one in limits if one is not None), default=None)
