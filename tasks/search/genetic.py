"""Genetic search for the best SubNet within budgets, on integer matrices, with starts around known SubNets.

Source: OFA (ICLR 2020), evolution finder: a population of 100, a quarter of it parents, half of the children mutated
(each variable with probability 0.1), half crossed. Children beyond a budget are repaired, not drawn anew.

This search adds to OFA's: a population begins with SubNets around the largest and around the fastest SubNet; at a
plateau, SubNets around the best SubNet join it, until they bring no improvement; then a second population begins
without the starts (two rarely end at the same SubNet unless it is the optimum); at the end, SubNets are built around
the best neighbours of the winner.

Around a known SubNet, one modification is decided, then all other variables are chosen anew to match it. Another
resolution or depth pays only together with other widths, which a converged population, changing few variables at a
time, reaches only through worse SubNets. Around a SubNet many variables change at once:

1. The predictors give the score and the costs of every single modification of the SubNet.
2. A Lagrangian price of the costs decides the best choice of every variable. Bisection finds the lowest price whose
  SubNet keeps the budgets.
3. The rest of the budgets is spent on further choices, one at a time.

The costs and the score may be of any kind. The choices of skipped blocks have no effect, so they would stay the same;
in a second form of each SubNet they are the smallest, so that adding a skipped block again is cheap.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.search.problem import Codes, Problem, Scores, Values, unique_rows
from tasks.search.settings import Settings

ROUNDS = 2
"""How often modifications are predicted anew, around the SubNet chosen before."""
HALVINGS = 10
FILLINGS = 6
"""Number of choices that are tried to spend the rest of the budgets."""
CHEAPEST, DEAREST = 1e-2, 1e3
"""Initial prices of the bisection; at price 1 the whole range of costs is worth the whole range of scores."""
KEPT = 1e-9
"""Least gain of score that another choice must bring."""


def around(problem: Problem, code: Codes, budgets: Values, most: int) -> Codes:
    """Canonical codes (n, V) around a code (V,), within budgets (K,), at least one of them finite.

    most: number of modifications that are decided; those with the largest change of costs come first.
    """
    choices = _Choices.of(np.asarray(problem.space.cardinalities))
    slots = np.flatnonzero(choices.choice != code[choices.variable])
    codes = np.repeat(code[None], len(slots), axis=0)
    codes[np.arange(len(slots)), choices.variable[slots]] = choices.choice[slots]
    changes = np.abs(_strain(_predicted(problem, codes), budgets) - _strain(_predicted(problem, code[None]), budgets))
    first = np.argsort(-changes, kind="stable")[:most]
    codes, decided = codes[first], choices.variable[slots[first]]
    hidden = problem.without_effect(problem.space.canonical_codes(codes))
    hidden[np.arange(len(codes)), decided] = False
    rows = np.flatnonzero(hidden.any(axis=1))
    codes = np.concatenate([codes, np.where(hidden[rows], 0, codes[rows])])
    return _rebalanced(problem, choices, codes, np.concatenate([decided, decided[rows]]), budgets)


class _Choices(NamedTuple):
    """Variable and choice of each of all S choices."""

    variable: NDArray[np.int64]
    choice: NDArray[np.int64]

    @classmethod
    def of(cls, cardinalities: NDArray[np.int64]) -> "_Choices":
        return cls(
            np.repeat(np.arange(len(cardinalities)), cardinalities), np.concatenate([*map(np.arange, cardinalities)])
        )


def _rebalanced(
    problem: Problem, choices: _Choices, codes: Codes, decided: NDArray[np.int64], budgets: Values
) -> Codes:
    """Distinct canonical codes within the budgets, from codes (n, V) whose variable `decided` (n,) does not change."""
    rows, found = np.arange(len(codes)), [codes[:0]]
    for _ in range(ROUNDS):
        gain, strain = _effects(problem, choices, codes, budgets)
        gain[rows[:, None], np.arange(codes.shape[1]), codes] += KEPT
        own = gain[rows, decided, codes[rows, decided]]
        gain[rows, decided] = -np.inf
        gain[rows, decided, codes[rows, decided]] = own
        codes, kept = _within(problem, gain, strain, codes, budgets)
        codes[kept] = _filled(problem, gain[kept], strain[kept], codes[kept], budgets)
        found.append(problem.space.canonical_codes(codes[kept]))
    return unique_rows(np.concatenate(found))


def _effects(problem: Problem, choices: _Choices, codes: Codes, budgets: Values) -> tuple[Values, Values]:
    """Scores and strains (n, V, C) of all single modifications of codes (n, V).

    C: the most choices of a variable. Variables with fewer choices have a score of -inf beyond them.
    """
    number, size = len(codes), len(choices.variable)
    modified = np.repeat(codes, size, axis=0)
    modified[np.arange(len(modified)), np.tile(choices.variable, number)] = np.tile(choices.choice, number)
    scores = _predicted(problem, modified)
    shape = (*codes.shape, int(choices.choice.max()) + 1)
    gain, strain = np.full(shape, -np.inf), np.zeros(shape)
    gain[:, choices.variable, choices.choice] = scores.score.reshape(number, size)
    strain[:, choices.variable, choices.choice] = _strain(scores, budgets).reshape(number, size)
    return gain, strain


def _within(
    problem: Problem, gain: Values, strain: Values, codes: Codes, budgets: Values
) -> tuple[Codes, NDArray[np.bool_]]:
    """For each row the choices at the lowest price that keeps the budgets, else `codes`; and whether a price keeps them."""
    scores = np.where(np.isfinite(gain), gain, np.nan)
    unit = _range(scores) / np.maximum(_range(strain), np.finfo(float).tiny)
    low, high = np.log(np.maximum(unit, np.finfo(float).tiny)) + np.log([[CHEAPEST], [DEAREST]])
    codes, kept = codes.copy(), np.zeros(len(codes), bool)
    for step in range(HALVINGS + 1):
        price = (low + high) / 2 if step else high
        chosen = np.argmax(gain - np.exp(price)[:, None, None] * strain, axis=2)
        within = _predicted(problem, chosen).within(budgets)
        codes[within], kept = chosen[within], kept | within
        low, high = np.where(within, low, price), np.where(within, price, high)
    return codes, kept


def _filled(problem: Problem, gain: Values, strain: Values, codes: Codes, budgets: Values) -> Codes:
    """Codes (n, V) with further choices for the rest of the budgets, the most promising first; `gain`, `codes` are changed."""
    slack = np.isfinite(budgets).sum()
    rows, variables = np.arange(len(codes)), np.arange(codes.shape[1])
    scores = _predicted(problem, codes)
    for _ in range(FILLINGS):
        own = rows[:, None], variables, codes
        more = gain - gain[own][:, :, None]
        more[strain - strain[own][:, :, None] > (slack - _strain(scores, budgets))[:, None, None]] = -np.inf
        variable, choice = np.divmod(
            more.reshape(len(codes), gain.shape[1] * gain.shape[2]).argmax(axis=1), gain.shape[2]
        )
        some = np.flatnonzero(more[rows, variable, choice] > 0)
        tried = codes[some]
        tried[np.arange(len(some)), variable[some]] = choice[some]
        after = _predicted(problem, tried)
        better = after.within(budgets) & (after.score > scores.score[some])
        gain[some, variable[some], choice[some]] = np.where(better, gain[some, variable[some], choice[some]], -np.inf)
        codes[some[better]] = tried[better]
        scores.costs[some[better]], scores.score[some[better]] = after.costs[better], after.score[better]
    return codes


def _range(values: Values) -> Values:
    found: Values = np.nanmax(values, axis=(1, 2)) - np.nanmin(values, axis=(1, 2))
    return found


def _predicted(problem: Problem, codes: Codes) -> Scores:
    return problem.predict(problem.space.canonical_codes(codes))


def _strain(scores: Scores, budgets: Values) -> Values:
    """Costs as shares of the finite budgets, added up (n,)."""
    bounded = np.isfinite(budgets)
    found: Values = (scores.costs[:, bounded] / budgets[bounded]).sum(axis=1)
    return found


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
            children = repair(self.problem, children, self.budgets, self.fastest, self.rng)
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
        drawn = repair(problem, drawn, self.budgets, fastest, self.rng)
        return _ranked(problem, np.concatenate([kept, drawn]))[0]

    def _children(self, parents: Codes, n: int) -> Codes:
        """n canonical children (n, V): mutations, then uniform crossovers; variables without effect are drawn anew."""
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
