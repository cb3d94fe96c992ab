"""Genetic search for the best SubNet within budgets, on integer matrices.

Source: OFA (ICLR 2020), evolution finder: a population of 100, a quarter of it parents, half of the children mutated (each
variable with probability 0.1), half crossed. Children beyond a budget are repaired, not drawn anew.

This search adds to OFA's:

- A population begins with SubNets around the largest and around the fastest SubNet (`tasks.search.rebalance`).
- At a plateau, SubNets around the best SubNet join the population, until they bring no improvement.
- Then a second population begins without the starts. Two populations rarely end at the same SubNet unless it is the optimum.
- At the end, SubNets are built around the best neighbours of the winner.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasks.search.problem import Codes, Problem, Scores, Values, unique_rows
from tasks.search.rebalance import around
from tasks.search.settings import Settings

IMPROVEMENT = 1e-12
PAIRED = 3
"""Number of the winner's neighbours around which SubNets are built at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCode:
    """The best code (V,) for one budget, and why the search stopped."""

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
) -> BestCode:
    """The best code whose predicted costs are within the budgets.

    budgets: (K,), or of latency alone. starts: (n, V) canonical codes to begin with, within the budgets or not.
    fastest: a code (V,) within the budgets; repair walks towards it. The result is always within the budgets.
    """
    return _Search(problem, np.broadcast_to(budgets, len(problem.costs)), fastest, settings, rng).winner(starts)


@dataclass(frozen=True, slots=True)
class _Search:
    """A search within budgets (K,)."""

    problem: Problem
    budgets: Values
    fastest: Codes
    settings: Settings
    rng: np.random.Generator
    _known: dict[bytes, Codes] = field(default_factory=dict)

    def winner(self, starts: Codes) -> BestCode:
        """The best of all populations. Each runs until a plateau, or until all generations are used."""
        populations, population, generations = self.settings.populations, starts[:0], 0
        for number in range(populations):
            first = self._first(starts if number == 0 else starts[:0])
            found, used, stalled = self._evolved(first, self.settings.generations - generations)
            population, _ = _ranked(self.problem, np.concatenate([population, found]))
            generations += used
            if not stalled:
                return BestCode(code=population[0], generations=generations, stopped="all generations used")
        if self.settings.rebalance:
            population = self._paired(population)
        each = f" in each of {populations} populations" if populations > 1 else ""
        stopped = f"plateau: no improvement in {self.settings.plateau} generations{each}"
        return BestCode(code=population[0], generations=generations, stopped=stopped)

    def _evolved(self, population: Codes, generations: int) -> tuple[Codes, int, bool]:
        """The population (n, V), best first, at its plateau or after `generations`; the number used; whether it stalled."""
        best, stalled, rebalanced = self.problem.evaluate(population[:1]).score[0], 0, population[:0]
        for generation in range(1, generations + 1):
            parents = population[: max(2, round(self.settings.parent_share * self.settings.population))]
            children = self._children(parents, self.settings.population - len(parents))
            children = self._repaired(children)
            population, scores = _ranked(self.problem, np.concatenate([parents, children]))
            stalled = 0 if scores.score[0] > best + IMPROVEMENT else stalled + 1
            best = scores.score[0]
            if stalled >= self.settings.plateau:
                if not self.settings.rebalance or np.array_equal(rebalanced, population[:1]):
                    return population, generation, True
                stalled, rebalanced = 0, population[:1]
                population, scores = _ranked(self.problem, np.concatenate([population, self._around(population[0])]))
                best = scores.score[0]
        return population, generations, False

    def _around(self, code: Codes) -> Codes:
        """Codes (n, V) around a code (V,), remembered: populations often ask for the same code."""
        key = code.tobytes()
        if key not in self._known:
            self._known[key] = around(self.problem, code, self.budgets, self.settings.rebalance)
        return self._known[key]

    def _paired(self, population: Codes) -> Codes:
        """The population (n, V), best first, with SubNets around the best neighbours of its best SubNet.

        These SubNets are two decisions away from the best one. Two decisions may pay only together, e.g. another width of one
        stage and another depth of a second stage.
        """
        near, _ = _ranked(self.problem, self._around(population[0]))
        pairs = [self._around(code) for code in near[:PAIRED]]
        return _ranked(self.problem, np.concatenate([population, *pairs]))[0]

    def _first(self, starts: Codes) -> Codes:
        """The first population: up to half of it the fastest SubNet and the best starts within the budgets, the rest random.

        SubNets around the largest and around the fastest SubNet are starts, too: skipping a block saves most there, and least.
        """
        problem, fastest = self.problem, self.fastest
        if self.settings.rebalance:
            ends = problem.space.canonical_codes(np.stack([problem.largest, fastest]))
            starts = np.concatenate([starts, *(self._around(end) for end in ends)])
        fits = starts[problem.within(starts, self.budgets)]
        kept = _ranked(problem, np.concatenate([fits, fastest[None]]))[0][: self.settings.population // 2]
        drawn = problem.space.random_codes(self.settings.population - len(kept), self.rng)
        return _ranked(problem, np.concatenate([kept, self._repaired(drawn)]))[0]

    def _repaired(self, codes: Codes) -> Codes:
        return repair(self.problem, codes, self.budgets, self.fastest, self.rng)

    def _children(self, parents: Codes, n: int) -> Codes:
        """n canonical children (n, V): mutations, then uniform crossovers.

        Variables without effect in a parent are drawn anew.
        """
        space, rng = self.problem.space, self.rng
        mutated = round(self.settings.mutation_share * n)
        variables = parents.shape[1]
        mother, father = rng.integers(len(parents), size=(2, n))
        drawn = rng.integers(0, np.asarray(space.cardinalities), size=(n, variables))
        genes = np.where(self.problem.without_effect(parents)[mother], drawn, parents[mother])
        other = np.concatenate([drawn[:mutated], parents[father[mutated:]]])
        share = np.where(np.arange(n) < mutated, self.settings.mutation_probability, 0.5)[:, None]
        return space.canonical_codes(np.where(rng.random((n, variables)) < share, other, genes))


def _ranked(problem: Problem, codes: Codes) -> tuple[Codes, Scores]:
    """Distinct codes, best score first, equal scores by latency."""
    codes = unique_rows(codes)
    scores = problem.evaluate(codes)
    order = np.lexsort((scores.latency_ms, -scores.score))
    return codes[order], scores.take(order)


def repair(problem: Problem, codes: Codes, budgets: float | Values, fastest: Codes, rng: np.random.Generator) -> Codes:
    """Codes (n, V) within the budgets: a row beyond a budget moves its variables, in random order, towards `fastest`.

    Each such row has a path of single moves to `fastest`. Bisection finds a move that leads from beyond the budgets to within
    them; if costs only fall along the path, it is the first such move.
    """
    codes = codes.copy()
    beyond = np.flatnonzero(~problem.within(codes, budgets))
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
    """Paths from each of n codes to a goal: single moves of one variable to its next choice, in random order."""

    def __init__(self, problem: Problem, codes: Codes, goal: Codes, rng: np.random.Generator) -> None:
        self._space, self._codes, self._away = problem.space, codes, goal - codes
        self.lengths = np.abs(self._away).sum(axis=1)
        most = np.asarray(problem.space.cardinalities) - 1
        variable = np.repeat(np.arange(len(most)), most)
        number = np.arange(len(variable)) - (np.cumsum(most) - most)[variable]
        needed = number < np.abs(self._away)[:, variable]
        self._turns = np.argsort(np.argsort(np.where(needed, rng.random(needed.shape), 1.0)))
        self._of_variable = np.eye(len(most), dtype=np.float32)[variable]

    def at(self, rows: NDArray[np.int64], moves: NDArray[np.int64]) -> Codes:
        """Canonical codes (m, V) of the paths `rows` (m,), each after its number of moves (m,), at most its length."""
        taken = (self._turns[rows] < moves[:, None]).astype(np.float32) @ self._of_variable
        codes = self._codes[rows] + np.sign(self._away[rows]) * taken.astype(np.int64)
        return self._space.canonical_codes(codes)
