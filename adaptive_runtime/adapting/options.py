"""How a deployed model adapts, in one place."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from adaptive_runtime.choice import ChoiceLimits, ChoicePolicy, ChoiceRules, Objective, Switching, parse_rules
from adaptive_runtime.errors import AdaptiveError
from profiling_agents.messages import one_line
from profiling_agents.sensing.sensors import SYSTEM


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptingOptions:
    """quantile: the probability with which a request keeps the budget. energy_mj: of one sample at most; None: no limit.

    decisions: a file that every decision is appended to; above decisions_mib it is renamed to `NAME.1.SUFFIX`, in place of an
    older one, and begun anew. every_s: time between two samples of the device's state. rules: what is best, as text or as they
    are read; None: the most accurate variant within the limits. policy: made of what is best; `Switching` has options of its
    own. sensors_root: where the device's /sys and /proc are. hit_rate: samples have the hit rate of the caches.
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
        """The rules, read. AdaptiveError in one line: where the text is none."""
        return parse_rules(self.rules) if isinstance(self.rules, str) else self.rules

    def limits(self, budget_ms: float | None, memory_mib: float | None) -> ChoiceLimits:
        """The limits at the start. AdaptiveError: there is no budget, or a limit that cannot be."""
        if budget_ms is None:
            raise AdaptiveError("adapting", "no budget", next_step="give budget_ms, within which requests are answered")
        values = {"budget_ms": budget_ms, "quantile": self.quantile, "energy_mj": self.energy_mj}
        return checked_limits({**values, "memory_mib": memory_mib})


def checked_limits(values: dict[str, float | None]) -> ChoiceLimits:
    """Limits by name. AdaptiveError in one line."""
    try:
        return ChoiceLimits.model_validate(values)
    except ValidationError as error:
        raise AdaptiveError("limits", one_line(error)) from error
