"""Descents from the largest SubNet: good starts for every budget, and least costs, also for refusals of infeasible budgets."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tasks.base.errors import UserError
from tasks.prediction.resources import MemoryWithin
from tasks.search.problem import Codes, CostModel, Problem, Scores, Values, neighbours, unique_rows

FASTEST_STARTS = 8


class Archive(NamedTuple):
    """Distinct codes (n, V) that a descent met, with their scores."""

    codes: Codes
    scores: Scores


def beam_descent(problem: Problem, width: int, limits: Values | None = None) -> Archive:
    """Descend from the largest SubNet, one modification at a time, keeping the `width` best SubNets of each round.

    A modification lowers one variable to its next choice that is predicted faster. SubNets are ranked by the accuracy lost per
    ms gained since the largest SubNet. All SubNets met are returned: they are starts for all budgets.

    limits: (K,); with limits, the time of a SubNet grows by the shares by which it exceeds them.
    """

    def cost(codes: Codes) -> Values:
        scores = problem.evaluate(codes)
        pace = problem.pace(scores)
        return pace if limits is None else pace * (1 + scores.excess(limits))

    beam = problem.space.canonical_codes(problem.largest[None])
    top, highest = problem.evaluate(beam), cost(beam)
    met = [beam]
    while len(beam):
        children = _faster_children(problem, beam, cost)
        gained_ms = highest - cost(children)
        lost_per_ms = (top.score - problem.evaluate(children).score) / gained_ms
        beam = children[np.argsort(lost_per_ms, kind="stable")[:width]]
        met.append(beam)
    codes = unique_rows(np.concatenate(met))
    return Archive(codes, problem.evaluate(codes))


def _faster_children(problem: Problem, beam: Codes, cost: Callable[[Codes], Values]) -> Codes:
    """For each SubNet and variable the nearest lower choice that is faster; distinct rows."""
    steps = neighbours(problem.space, beam, lower_only=True)
    faster = np.flatnonzero(cost(steps.codes) < cost(beam)[steps.parent])
    group = steps.parent[faster] * beam.shape[1] + steps.variable[faster]
    _, nearest = np.unique(group, return_index=True)
    return unique_rows(steps.codes[faster[nearest]])


def fastest(problem: Problem, rng: np.random.Generator, limits: Values | None = None) -> Codes:
    """Code (V,) of the fastest SubNet within `limits` (K,): `least`, with the pace as cost."""
    return least(problem, rng, problem.pace, limits)


def least(
    problem: Problem, rng: np.random.Generator, cost: Callable[[Scores], Values], limits: Values | None = None
) -> Codes:
    """Code (V,) with the least cost within `limits` (K,); if none is found, the code that exceeds them least.

    Uses coordinate descent from the largest, the smallest and random SubNets. The result is exact if each variable's best
    choice does not depend on the other variables; else it is a very good local optimum.
    """
    limits = problem.unlimited if limits is None else limits
    cardinalities = np.asarray(problem.space.cardinalities)
    starts = np.concatenate(
        [problem.largest[None], np.zeros((1, len(cardinalities)), np.int64),
         problem.space.random_codes(FASTEST_STARTS, rng)]
    )  # fmt: skip

    def keys(codes: Codes) -> tuple[Values, Values]:
        scores = problem.evaluate(codes)
        return scores.excess(limits), cost(scores)

    ends = np.stack([_coordinate_descent(problem, row, keys) for row in problem.space.canonical_codes(starts)])
    return ends[np.lexsort(keys(ends)[::-1])[0]]


def _coordinate_descent(problem: Problem, code: Codes, keys: Callable[[Codes], tuple[Values, Values]]) -> Codes:
    """Apply the best single modification to a code (V,) repeatedly, until no modification has lower keys."""
    excess, cost = keys(code[None])
    while True:
        around = neighbours(problem.space, code[None]).codes
        excesses, costs = keys(around)
        best = int(np.lexsort((costs, excesses))[0]) if len(around) else 0
        if not len(around) or (excesses[best], costs[best]) >= (excess[0], cost[0]):
            return code
        code, excess, cost = around[best], excesses[best : best + 1], costs[best : best + 1]


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
        """The setting that bounds the cost."""
        return f"search.{self.name}" if self.name == LATENCY else f"search.limits.{self.name}"


def refusal(problem: Problem, costs: Sequence[Cost], budgets: Values, rng: np.random.Generator) -> UserError:
    """The error that states why no SubNet keeps `budgets` (K,), at least one of them finite, and the nearest budgets.

    Descents find the least of each cost (`tasks.search.feasibility.least`), so some SubNet keeps the stated numbers.
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
    code = least(problem, rng, lambda scores: scores.costs[:, column], budgets)[None]
    return float(cost.predict(code)[0]) if problem.evaluate(code).within(budgets)[0] else None


def round_up(value: float, digits: int = 4) -> float:
    """The next number with `digits` significant digits, never below the value."""
    scale = digits - 1 - math.floor(math.log10(value))
    return max(value, round(math.ceil(value * 10**scale) / 10**scale, scale))
