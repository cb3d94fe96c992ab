"""Genetic search for the best SubNet within a latency budget, on integer matrices.

Source: OFA (ICLR 2020), evolution finder: population 100, a quarter of it parents, half of the children
mutated (each variable with probability 0.1), half crossed. Infeasible children are repaired, not redrawn.
"""

from dataclasses import dataclass

import numpy as np

from tasks.search.problem import Codes, Problem, Scores, unique_rows
from tasks.search.settings import Settings

IMPROVEMENT = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The best code (V,) found for one budget and how the search ended."""

    code: Codes
    generations: int
    stopped: str


def search(
    problem: Problem,
    budget_ms: float,
    starts: Codes,
    fastest: Codes,
    settings: Settings,
    rng: np.random.Generator,
) -> Winner:
    """Best code with predicted latency <= budget_ms.

    starts: (n, V) canonical codes to begin with, feasible or not. fastest: code (V,) that is feasible; repair
    walks towards it. Never returns an infeasible code.
    """
    population, scores = _first(problem, budget_ms, starts, fastest, settings, rng)
    best, stalled = scores.score[0], 0
    for generation in range(1, settings.generations + 1):
        parents = population[: max(2, round(settings.parent_share * settings.population))]
        children = _children(problem, parents, settings.population - len(parents), settings, rng)
        children = repair(problem, children, budget_ms, fastest, rng)
        population, scores = _ranked(problem, np.concatenate([parents, children]))
        stalled = 0 if scores.score[0] > best + IMPROVEMENT else stalled + 1
        best = scores.score[0]
        if stalled >= settings.plateau:
            stopped = f"plateau: no improvement in {settings.plateau} generations"
            return Winner(code=population[0], generations=generation, stopped=stopped)
    return Winner(code=population[0], generations=settings.generations, stopped="all generations used")


def _first(
    problem: Problem,
    budget_ms: float,
    starts: Codes,
    fastest: Codes,
    settings: Settings,
    rng: np.random.Generator,
) -> tuple[Codes, Scores]:
    """First population: up to half of it the best starts that fit (and the fastest), the rest random."""
    fits = starts[problem.evaluate(starts).latency_ms <= budget_ms]
    kept = _ranked(problem, np.concatenate([fits, fastest[None]]))[0][: settings.population // 2]
    drawn = problem.space.random_codes(settings.population - len(kept), rng)
    return _ranked(problem, np.concatenate([kept, repair(problem, drawn, budget_ms, fastest, rng)]))


def _ranked(problem: Problem, codes: Codes) -> tuple[Codes, Scores]:
    """Distinct codes, best score first, equal scores by latency."""
    codes = unique_rows(codes)
    scores = problem.evaluate(codes)
    order = np.lexsort((scores.latency_ms, -scores.score))
    return codes[order], scores.take(order)


def _children(problem: Problem, parents: Codes, n: int, settings: Settings, rng: np.random.Generator) -> Codes:
    """n canonical children (n, V): mutations first, then uniform crossovers."""
    mutated = round(settings.mutation_share * n)
    variables = parents.shape[1]
    mother, father = parents[rng.integers(len(parents), size=(2, n))]
    drawn = rng.integers(0, np.asarray(problem.space.cardinalities), size=(mutated, variables))
    other = np.concatenate([drawn, father[mutated:]])
    share = np.where(np.arange(n) < mutated, settings.mutation_probability, 0.5)[:, None]
    return problem.space.canonical_codes(np.where(rng.random((n, variables)) < share, other, mother))


def repair(problem: Problem, codes: Codes, budget_ms: float, fastest: Codes, rng: np.random.Generator) -> Codes:
    """Make codes (n, V) feasible: a too slow row moves random variables stepwise towards `fastest`."""
    codes = codes.copy()
    slow = np.flatnonzero(problem.evaluate(codes).latency_ms > budget_ms)
    for _ in range(int(np.sum(problem.space.cardinalities))):
        if not len(slow):
            return codes
        codes[slow] = _step_towards(problem, codes[slow], fastest, rng)
        slow = slow[problem.evaluate(codes[slow]).latency_ms > budget_ms]
    codes[slow] = fastest
    return codes


def _step_towards(problem: Problem, codes: Codes, goal: Codes, rng: np.random.Generator) -> Codes:
    """Rows (n, V) with one random variable a choice nearer to `goal` (V,).

    Where that choice is the same SubNet (equal sizes), the variable takes the goal's choice at once.
    """
    rows = np.arange(len(codes))
    away = goal - codes
    column = np.argmax(rng.random(away.shape) * (away != 0), axis=1)
    moved = codes.copy()
    moved[rows, column] += np.sign(away[rows, column])
    moved = problem.space.canonical_codes(moved)
    stuck = (moved == codes).all(axis=1)
    moved[stuck, column[stuck]] = goal[column[stuck]]
    return problem.space.canonical_codes(moved)
