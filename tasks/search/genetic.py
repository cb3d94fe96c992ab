"""Genetic search for the best SubNet within budgets (a number: of latency; or (K,): of each cost), on integer matrices.

Source: OFA (ICLR 2020), evolution finder: population 100, a quarter of it parents, half of the children
mutated (each variable with probability 0.1), half crossed. Infeasible children are repaired, not redrawn. Populations begin
with SubNets built around the largest and the fastest one (`tasks.search.rebalance`); at a plateau those around the best one
join, until they have brought nothing. Then a second population begins without the starts: where the first ended, another
rarely ends too when it is not the optimum.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.search.problem import Codes, Problem, Scores, Values, unique_rows
from tasks.search.rebalance import around
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
    budgets: float | Values,
    starts: Codes,
    fastest: Codes,
    settings: Settings,
    rng: np.random.Generator,
) -> Winner:
    """Best code whose predicted costs are within the budgets.

    starts: (n, V) canonical codes to begin with, feasible or not. fastest: code (V,) that is feasible; repair
    walks towards it. Never returns an infeasible code.
    """
    population, generations = starts[:0], 0
    for number in range(settings.populations):
        first = _first(problem, budgets, starts if number == 0 else starts[:0], fastest, settings, rng)
        left = settings.generations - generations
        found, used, stalled = _evolved(problem, budgets, first, fastest, settings, rng, left)
        population, _ = _ranked(problem, np.concatenate([population, found]))
        generations += used
        if not stalled:
            return Winner(code=population[0], generations=generations, stopped="all generations used")
    each = f" in each of {settings.populations} populations" if settings.populations > 1 else ""
    stopped = f"plateau: no improvement in {settings.plateau} generations{each}"
    return Winner(code=population[0], generations=generations, stopped=stopped)


def _evolved(
    problem: Problem,
    budgets: float | Values,
    population: Codes,
    fastest: Codes,
    settings: Settings,
    rng: np.random.Generator,
    generations: int,
) -> tuple[Codes, int, bool]:
    """A population (n, V) after it has stalled or after `generations`, best first; after how many, and whether it stalled."""
    best, stalled, rebalanced = problem.evaluate(population[:1]).score[0], 0, population[:0]
    for generation in range(1, generations + 1):
        parents = population[: max(2, round(settings.parent_share * settings.population))]
        children = _children(problem, parents, settings.population - len(parents), settings, rng)
        children = repair(problem, children, budgets, fastest, rng)
        population, scores = _ranked(problem, np.concatenate([parents, children]))
        stalled = 0 if scores.score[0] > best + IMPROVEMENT else stalled + 1
        best = scores.score[0]
        if stalled >= settings.plateau:
            if not settings.rebalance or np.array_equal(rebalanced, population[:1]):
                return population, generation, True
            stalled, rebalanced = 0, population[:1]
            near = around(problem, population[0], np.broadcast_to(budgets, len(problem.costs)), settings.rebalance)
            population, scores = _ranked(problem, np.concatenate([population, near]))
            best = scores.score[0]
    return population, generations, False


def _first(
    problem: Problem,
    budgets: float | Values,
    starts: Codes,
    fastest: Codes,
    settings: Settings,
    rng: np.random.Generator,
) -> Codes:
    """First population: up to half of it the best starts that fit (and the fastest), the rest random.

    What is built around the largest and the fastest SubNet starts, too: there skipping a block saves most and least.
    """
    if settings.rebalance:
        bounds = np.broadcast_to(budgets, len(problem.costs))
        ends = problem.space.canonical_codes(np.stack([problem.largest, fastest]))
        starts = np.concatenate([starts, *(around(problem, end, bounds, settings.rebalance) for end in ends)])
    fits = starts[problem.evaluate(starts).within(budgets)]
    kept = _ranked(problem, np.concatenate([fits, fastest[None]]))[0][: settings.population // 2]
    drawn = problem.space.random_codes(settings.population - len(kept), rng)
    return _ranked(problem, np.concatenate([kept, repair(problem, drawn, budgets, fastest, rng)]))[0]


def _ranked(problem: Problem, codes: Codes) -> tuple[Codes, Scores]:
    """Distinct codes, best score first, equal scores by latency."""
    codes = unique_rows(codes)
    scores = problem.evaluate(codes)
    order = np.lexsort((scores.latency_ms, -scores.score))
    return codes[order], scores.take(order)


def _children(problem: Problem, parents: Codes, n: int, settings: Settings, rng: np.random.Generator) -> Codes:
    """n canonical children (n, V): mutations first, then uniform crossovers. What does nothing in a parent is drawn anew."""
    mutated = round(settings.mutation_share * n)
    variables = parents.shape[1]
    mother, father = rng.integers(len(parents), size=(2, n))
    drawn = rng.integers(0, np.asarray(problem.space.cardinalities), size=(n, variables))
    genes = np.where(problem.without_effect(parents)[mother], drawn, parents[mother])
    other = np.concatenate([drawn[:mutated], parents[father[mutated:]]])
    share = np.where(np.arange(n) < mutated, settings.mutation_probability, 0.5)[:, None]
    return problem.space.canonical_codes(np.where(rng.random((n, variables)) < share, other, genes))


def repair(problem: Problem, codes: Codes, budgets: float | Values, fastest: Codes, rng: np.random.Generator) -> Codes:
    """Make codes (n, V) feasible: a row beyond a budget moves random variables stepwise towards `fastest`.

    Each such row has a path of single steps in random order. Halving it again and again finds a step that leads from beyond
    the budgets to within them: the first one, where costs only fall along the path.
    """
    codes = codes.copy()
    beyond = np.flatnonzero(~problem.evaluate(codes).within(budgets))
    if len(beyond):
        paths = _Paths(problem, codes[beyond], fastest, rng)
        low, high = np.zeros(len(beyond), np.int64), paths.lengths.copy()
        while (left := np.flatnonzero(high - low > 1)).size:
            middle = (low[left] + high[left]) // 2
            within = (problem.predict_costs(paths.at(left, middle)) <= budgets).all(axis=1)
            high[left[within]], low[left[~within]] = middle[within], middle[~within]
        codes[beyond] = paths.at(np.arange(len(beyond)), high)
    return codes


class _Paths:
    """From each of n codes to a goal, one choice of one variable at a time, in random order."""

    def __init__(self, problem: Problem, codes: Codes, goal: Codes, rng: np.random.Generator) -> None:
        self._space, self._codes, self._away = problem.space, codes, goal - codes
        self.lengths = np.abs(self._away).sum(axis=1)
        steps = np.asarray(problem.space.cardinalities) - 1
        variable = np.repeat(np.arange(len(steps)), steps)
        number = np.arange(len(variable)) - (np.cumsum(steps) - steps)[variable]
        needed = number < np.abs(self._away)[:, variable]
        self._turns = np.argsort(np.argsort(np.where(needed, rng.random(needed.shape), 1.0)))
        self._of_variable = np.eye(len(steps), dtype=np.float32)[variable]

    def at(self, rows: NDArray[np.int64], steps: NDArray[np.int64]) -> Codes:
        """Canonical codes (m, V) of some paths (m,), each after so many steps (m,), at most its length."""
        taken = (self._turns[rows] < steps[:, None]).astype(np.float32) @ self._of_variable
        codes = self._codes[rows] + np.sign(self._away[rows]) * taken.astype(np.int64)
        return self._space.canonical_codes(codes)
