"""Rules as data: conditions on the device, and the objective while they hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.decisions import DecisionInputs
from adaptive_runtime.policy.scoring import ACCURACY_FIRST, BatteryMu, CriterionWeights
from adaptive_runtime.policy.table import VariantTable

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
        """Which conditions of all rules hold now, in the order of the text. held: which held before; empty: none."""
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


def _value(quantity: Quantity, inputs: DecisionInputs) -> float | None:
    device = inputs.device
    if quantity == "load":
        return inputs.load
    if device is None:
        return None
    if quantity == "memory share":
        return device.memory_share
    if quantity == "charging":
        return None if device.charging is None else float(device.charging)
    return {
        "battery": device.battery,
        "memory": device.memory_available_mib,
        "temperature": device.temperature_c,
    }[quantity]
