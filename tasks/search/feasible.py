"""Refusals of infeasible budgets and limits, with the nearest feasible values."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tasks.base.errors import UserError
from tasks.prediction.memory import MemoryWithin
from tasks.search.descent import least
from tasks.search.problem import Codes, CostModel, Problem, Scores, Values

LATENCY = "budgets_ms"
NEXT_STEP = "raise it or give the space smaller choices"


class Cost(NamedTuple):
    """A bounded quantity: its name in the settings, the device, the predictor, the limit (inf: none)."""

    name: str
    device: str
    model: CostModel
    limit: float = math.inf

    def text(self, value: float) -> str:
        """A value of the cost in words."""
        return f"{value:.10g} ms on '{self.device}'" if self.name == LATENCY else f"{self.name}={value:.10g}"

    def predict(self, codes: Codes) -> Values:
        """The predictions (n,) of canonical codes (n, V), even if the model gives bounds beside its limit."""
        return (self.model.memory if isinstance(self.model, MemoryWithin) else self.model).predict(codes)

    @property
    def setting(self) -> str:
        """The setting that bounds the cost; a name with a dot is already the name of a setting."""
        return f"search.{self.name}" if self.name == LATENCY or "." in self.name else f"search.limits.{self.name}"


def refusal(problem: Problem, costs: Sequence[Cost], budgets: Values, rng: np.random.Generator) -> UserError:
    """The error that states why no SubNet keeps `budgets` (K,), at least one of them finite, and the nearest budgets.

    Descents find the least of each cost (`tasks.search.descent.least`), so some SubNet keeps the stated numbers.
    """
    bounded = [column for column in range(len(costs)) if math.isfinite(budgets[column])]
    near: list[str] = []
    for column in bounded:
        cost = costs[column]
        smallest = _smallest(problem, cost, column, problem.unlimited, rng)
        assert smallest is not None
        if smallest > budgets[column]:
            return UserError(
                cost.setting,
                f"{cost.text(budgets[column])} is below the least of any SubNet, predicted {smallest:.4g} on '{cost.device}'",
                allowed=f"{round_up(smallest):.10g} and more",
                next_step=NEXT_STEP,
            )
        others = budgets.copy()
        others[column] = math.inf
        nearest = _smallest(problem, cost, column, others, rng)
        if nearest is not None:
            near.append(cost.text(round_up(nearest)))
    timed = any(costs[column].name == LATENCY for column in bounded)
    return UserError(
        f"search.{LATENCY}" if timed else "search.limits",
        f"no SubNet keeps {' and '.join(costs[column].text(budgets[column]) for column in bounded)} at once",
        allowed=" or ".join(near) + ", with the others as they are" if near else "",
        next_step="raise one of them or give the space smaller choices",
    )


def _smallest(problem: Problem, cost: Cost, column: int, budgets: Values, rng: np.random.Generator) -> float | None:
    """The least of one cost within budgets (K,); None if no SubNet within them was found."""

    def own(scores: Scores) -> Values:
        return scores.costs[:, column]

    code = least(problem, rng, own, budgets)[None]
    return float(cost.predict(code)[0]) if problem.evaluate(code).within(budgets)[0] else None


def round_up(value: float, digits: int = 4) -> float:
    """The next number with `digits` significant digits, never below the value."""
    scale = digits - 1 - math.floor(math.log10(value))
    return max(value, round(math.ceil(value * 10**scale) / 10**scale, scale))
