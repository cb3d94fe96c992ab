"""Descents from the largest SubNet: good starts for every budget, and the fastest SubNet there is."""

from typing import NamedTuple

import numpy as np

from tasks.search.problem import Codes, Problem, Scores, neighbours, unique_rows

FASTEST_STARTS = 8


class Archive(NamedTuple):
    """Codes (n, V) met on the way down, distinct, with their scores."""

    codes: Codes
    scores: Scores


def beam_descent(problem: Problem, width: int) -> Archive:
    """Step down from the largest SubNet, one modification at a time, keeping the `width` best of each step.

    A step lowers one variable to its next choice that is predicted faster. States are ranked by accuracy lost
    per ms gained since the largest SubNet. Every state met is returned: starts for all budgets.
    """
    beam = problem.space.canonical_codes(problem.largest[None])
    top = problem.evaluate(beam)
    met = [beam]
    while len(beam):
        children = _faster_children(problem, beam)
        scores = problem.evaluate(children)
        gained_ms = top.latency_ms - scores.latency_ms
        lost_per_ms = (top.score - scores.score) / gained_ms
        beam = children[np.argsort(lost_per_ms, kind="stable")[:width]]
        met.append(beam)
    codes = unique_rows(np.concatenate(met))
    return Archive(codes, problem.evaluate(codes))


def _faster_children(problem: Problem, beam: Codes) -> Codes:
    """Per state and variable, the nearest lower choice that is faster (distinct rows)."""
    steps = neighbours(problem.space, beam, lower_only=True)
    latency_ms = problem.evaluate(steps.codes).latency_ms
    faster = np.flatnonzero(latency_ms < problem.evaluate(beam).latency_ms[steps.parent])
    group = steps.parent[faster] * beam.shape[1] + steps.variable[faster]
    _, nearest = np.unique(group, return_index=True)
    return unique_rows(steps.codes[faster[nearest]])


def fastest(problem: Problem, rng: np.random.Generator) -> Codes:
    """Code (V,) of the fastest SubNet: coordinate descent from the largest, the smallest and random ones.

    Exact when each variable's fastest choice does not depend on the others; else a very good local optimum.
    """
    cardinalities = np.asarray(problem.space.cardinalities)
    starts = np.concatenate(
        [problem.largest[None], np.zeros((1, len(cardinalities)), np.int64),
         problem.space.random_codes(FASTEST_STARTS, rng)]
    )  # fmt: skip
    ends = np.stack([_coordinate_descent(problem, row) for row in problem.space.canonical_codes(starts)])
    return ends[np.argmin(problem.evaluate(ends).latency_ms)]


def _coordinate_descent(problem: Problem, code: Codes) -> Codes:
    """Best single modification of code (V,) again and again until none is faster."""
    latency_ms = problem.evaluate(code[None]).latency_ms[0]
    while True:
        around = neighbours(problem.space, code[None]).codes
        found = problem.evaluate(around).latency_ms
        if not len(found) or found.min() >= latency_ms:
            return code
        code, latency_ms = around[np.argmin(found)], found.min()
