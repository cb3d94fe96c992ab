"""NSGA-II (Deb et al., IEEE Transactions on Evolutionary Computation 6, 2002), by pymoo: one run gives a front for all budgets.

The objectives are the latency on each device and the score. A cost with a limit is a constraint.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.mutation import Mutation
from pymoo.core.problem import Problem as Objectives
from pymoo.core.repair import Repair
from pymoo.indicators.hv import HV
from pymoo.operators.crossover.ux import UX
from pymoo.termination import get_termination

from solvers.front import pareto_mask
from tasks.search.genetic import BestCode
from tasks.search.methods import Genetic, Method, starts_of
from tasks.search.problem import Codes, Problem, SearchSpace, Values, unique_rows
from tasks.search.settings import Settings

GROWTH = 1e-3
"""Share by which the hypervolume of a front must grow, else the front counts as stalled."""


class EvolvedFront:
    """All SubNets that a run met: `codes` (n, V) with their `scores`; its `generations`, and why it `stopped`."""

    def __init__(self, problem: Problem, starts: Codes, limits: Values, settings: Settings) -> None:
        """starts: (m, V) canonical codes; up to half of the first population is taken from them. limits: (K,), inf: none."""
        objectives = _Objectives(problem, limits)
        algorithm = NSGA2(
            pop_size=settings.population,
            sampling=_first(problem, starts, limits, settings),
            crossover=UX(prob=1 - settings.mutation_share),
            mutation=_Redraw(problem.space, settings),
            repair=_CanonicalRepair(problem.space),
            eliminate_duplicates=True,
        )
        algorithm.setup(objectives, termination=get_termination("n_gen", settings.generations), seed=settings.seed)
        self.stopped = "all generations used"
        volume: HV | None = None
        best, waited = 0.0, 0
        while algorithm.has_next():
            algorithm.next()
            values, feasible = algorithm.pop.get("F", "feas")
            values = values[feasible.ravel()]
            volume = volume or HV(ref_point=values.max(axis=0))  # the worst corner of the first population
            waited += 1
            if (found := float(volume(values))) > (1 + GROWTH) * best:
                best, waited = found, 0
            if waited >= settings.plateau:
                self.stopped = f"plateau: the front grew by less than {GROWTH:.1%} in {settings.plateau} generations"
                break
        if algorithm.termination.force_termination:
            self.stopped = "no further SubNets"
        self.generations = int(algorithm.n_gen) - 1
        self.codes = unique_rows(np.concatenate(objectives.met))
        self.scores = problem.evaluate(self.codes)


def _first(problem: Problem, starts: Codes, limits: Values, settings: Settings) -> Codes:
    """The first population: about half, at least one, from the front of the starts within the limits; the rest random."""
    within = starts[problem.evaluate(starts).within(limits)]
    scores = problem.evaluate(within)
    pace = problem.pace(scores)
    rows = np.flatnonzero(pareto_mask(pace, scores.score))
    kept = within[rows[np.argsort(pace[rows])]]
    half = np.unique(np.linspace(0, len(kept) - 1, settings.population // 2).astype(np.int64))
    drawn = problem.space.random_codes(settings.population - len(half), np.random.default_rng(settings.seed))
    return unique_rows(np.concatenate([kept[half], drawn]))


class _Objectives(Objectives):
    """Minimises latencies and the negative score; the share beyond each limit is a constraint. `met`: every code."""

    def __init__(self, problem: Problem, limits: Values) -> None:
        self._problem, self._limits = problem, limits
        self._limited = np.flatnonzero(np.isfinite(limits))
        self.met: list[Codes] = []
        last = problem.largest.astype(float)
        super().__init__(
            n_var=len(last), n_obj=problem.timed + 1, n_ieq_constr=len(self._limited), xl=0 * last, xu=last
        )

    def _evaluate(self, x: NDArray[Any], out: dict[str, Values], *_args: Any, **_kwargs: Any) -> None:
        codes = x.astype(np.int64)
        self.met.append(codes)
        scores = self._problem.evaluate(codes)
        out["F"] = np.column_stack([scores.costs[:, : self._problem.timed], -scores.score])
        out["G"] = scores.costs[:, self._limited] / self._limits[self._limited] - 1


class _Redraw(Mutation):
    """Draws each variable of a mutated code (n, V) anew with a probability."""

    def __init__(self, space: SearchSpace, settings: Settings) -> None:
        super().__init__(prob=settings.mutation_share)
        self._space, self._probability = space, settings.mutation_probability

    def _do(
        self, _problem: Objectives, x: Codes, *_args: Any, random_state: np.random.Generator, **_kwargs: Any
    ) -> Codes:
        drawn = random_state.integers(0, np.asarray(self._space.cardinalities), size=x.shape)
        return np.where(random_state.random(x.shape) < self._probability, drawn, x)


class _CanonicalRepair(Repair):
    """Makes codes (n, V) canonical, so that no SubNet is in the population twice."""

    def __init__(self, space: SearchSpace) -> None:
        super().__init__()
        self._space = space

    def _do(self, _problem: Objectives, x: Codes, **_kwargs: Any) -> Codes:
        return self._space.canonical_codes(x.astype(np.int64))


class Nsga2(Method):
    """One run for all budgets: each winner is one of the SubNets that the run met. It takes costs and scores of any kind."""

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        limits: Values | None = None,
        exact: Callable[[], Method] | None = None,
    ) -> None:
        """limits and exact: as in `Genetic`."""
        super().__init__(problem, settings, limits)
        self._genetic = Genetic(problem, settings, np.random.default_rng(settings.seed), limits, exact)

    def _fastest(self, budgets: Values) -> Codes:
        return self._genetic.quickest(budgets)

    def best(self) -> Codes:
        """The best SubNet of the run."""
        return self.winner(self._limits).code

    def winner(self, budgets: Values) -> BestCode:
        """The best SubNet of the run within the budgets; if the run met none, the fastest SubNet within them."""
        front = self._front
        within = np.flatnonzero(front.scores.within(budgets))
        if len(within):
            scores = front.scores.take(within)
            code = front.codes[within[np.lexsort((self._problem.pace(scores), -scores.score))[0]]]
        else:
            code = self.quickest(budgets)
        return BestCode(code=code, generations=front.generations, stopped=front.stopped)

    @cached_property
    def _front(self) -> EvolvedFront:
        starts = starts_of(self._problem, self._settings.beam_width, self._limits)
        starts = np.concatenate([starts, self.quickest()[None]])
        return EvolvedFront(self._problem, starts, self._limits, self._settings)
