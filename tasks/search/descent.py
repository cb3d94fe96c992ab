"""Descents from the largest SubNet: good starts for every budget, and the SubNets with the least cost."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tasks.search.problem import Codes, Problem, Scores, Values, neighbours, unique_rows

FASTEST_STARTS = 8


class Archive(NamedTuple):
    """Distinct codes (n, V) that a descent met, with their scores."""

    codes: Codes
    scores: Scores


def beam_descent(problem: Problem, width: int, limits: Values | None = None) -> Archive:
    """Descend from the largest SubNet, one modification at a time, keeping the `width` best SubNets of each round.

    A modification lowers one variable to its next choice that is predicted faster. SubNets are ranked by the accuracy lost per
    ms gained since the largest SubNet. All SubNets met are returned: they are starts for all budgets.

    limits: (K,); with limits, the time of a SubNet grows by the shares by which it exceeds them (`_strain`).
    """

    def cost(codes: Codes) -> Values:
        return _strain(problem, problem.evaluate(codes), limits)

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


def _strain(problem: Problem, scores: Scores, limits: Values | None) -> Values:
    """The pace (n,), increased by the share that is beyond each limit."""
    pace = problem.pace(scores)
    return pace if limits is None else pace * (1 + scores.excess(limits))


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
    problem: Problem,
    rng: np.random.Generator,
    cost: Callable[[Scores], Values],
    limits: Values | None = None,
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
