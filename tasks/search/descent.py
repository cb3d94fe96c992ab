"""Descents from the largest SubNet: good starts for every budget, and the SubNets that need least."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tasks.search.problem import Codes, Problem, Scores, Values, neighbours, unique_rows

FASTEST_STARTS = 8


class Archive(NamedTuple):
    """Codes (n, V) met on the way down, distinct, with their scores."""

    codes: Codes
    scores: Scores


def beam_descent(problem: Problem, width: int, limits: Values | None = None) -> Archive:
    """Step down from the largest SubNet, one modification at a time, keeping the `width` best of each step.

    A step lowers one variable to its next choice that is predicted faster. States are ranked by accuracy lost
    per ms gained since the largest SubNet. Every state met is returned: starts for all budgets. With `limits` (K,), time
    is `_strain`, which counts what is beyond them, too.
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
    """The pace (n,), for each limit increased by the share that is beyond it."""
    pace = problem.pace(scores)
    return pace if limits is None else pace * (1 + scores.excess(limits))


def _faster_children(problem: Problem, beam: Codes, cost: Callable[[Codes], Values]) -> Codes:
    """Per state and variable, the nearest lower choice that is faster (distinct rows)."""
    steps = neighbours(problem.space, beam, lower_only=True)
    faster = np.flatnonzero(cost(steps.codes) < cost(beam)[steps.parent])
    group = steps.parent[faster] * beam.shape[1] + steps.variable[faster]
    _, nearest = np.unique(group, return_index=True)
    return unique_rows(steps.codes[faster[nearest]])


def fastest(problem: Problem, rng: np.random.Generator, limits: Values | None = None) -> Codes:
    """Code (V,) of the fastest SubNet within `limits` (K,), else of the one that exceeds them least: see `least`."""
    return least(problem, rng, problem.pace, limits)


def least(
    problem: Problem,
    rng: np.random.Generator,
    cost: Callable[[Scores], Values],
    limits: Values | None = None,
) -> Codes:
    """Code (V,) with the least cost within `limits` (K,), else of the one that exceeds them least.

    By coordinate descent from the largest, the smallest and random SubNets. Exact when each variable's best choice does not
    depend on the others; else a very good local optimum.
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
    """Best single modification of code (V,) again and again until none has lower keys."""
    excess, cost = keys(code[None])
    while True:
        around = neighbours(problem.space, code[None]).codes
        excesses, costs = keys(around)
        best = int(np.lexsort((costs, excesses))[0]) if len(around) else 0
        if not len(around) or (excesses[best], costs[best]) >= (excess[0], cost[0]):
            return code
        code, excess, cost = around[best], excesses[best : best + 1], costs[best : best + 1]
