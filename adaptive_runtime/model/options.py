"""Options for the adaptation of a deployed model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import ChoiceLimits, ChoicePolicy, ChoiceRules, Objective, Switching, parse_rules
from profiling_agents.messages import one_line
from profiling_agents.sensing.sensors import SYSTEM


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptingOptions:
    """quantile: the probability that a request keeps the budget. energy_mj: upper limit per sample; None: no limit.

    decisions: a file to which every decision is appended; above decisions_mib it is renamed to `NAME.1.SUFFIX`, replacing an
    older one, and a new file is begun. every_s: time between two samples of the device's state. rules: definition of the best
    variant, as text or parsed; None: the most accurate variant within the limits. policy: constructor that takes the objective;
    `Switching` has further options. sensors_root: folder that contains the device's /sys and /proc. hit_rate: samples include
    the hit rate of the caches.
    """

    quantile: float = 0.95
    energy_mj: float | None = None
    decisions: str | Path | None = None
    decisions_mib: float = 8.0
    every_s: float = 1.0
    sensors_root: Path = SYSTEM
    policy: Callable[[Objective], ChoicePolicy] = Switching
    rules: str | ChoiceRules | None = None
    hit_rate: bool = False

    def __post_init__(self) -> None:
        if not (self.decisions_mib > 0 and self.every_s > 0):
            got = f"decisions_mib {self.decisions_mib:g}, every_s {self.every_s:g}"
            raise AdaptiveError("adapting", got, allowed="both above 0")

    @property
    def read_rules(self) -> ChoiceRules | None:
        """The parsed rules. AdaptiveError in one line: the text is invalid."""
        return parse_rules(self.rules) if isinstance(self.rules, str) else self.rules

    def limits(self, budget_ms: float | None, memory_mib: float | None) -> ChoiceLimits:
        """The initial limits. AdaptiveError: no budget, or an invalid limit."""
        if budget_ms is None:
            raise AdaptiveError("adapting", "no budget", next_step="give budget_ms, within which requests are answered")
        values = {"budget_ms": budget_ms, "quantile": self.quantile, "energy_mj": self.energy_mj}
        return checked_limits({**values, "memory_mib": memory_mib})


def checked_limits(values: dict[str, float | None]) -> ChoiceLimits:
    """Limits from values by name. AdaptiveError in one line."""
    try:
        return ChoiceLimits.model_validate(values)
    except ValidationError as error:
        raise AdaptiveError("limits", one_line(error)) from error
