"""The two ways to search, behind one interface."""

from typing import Protocol

import numpy as np

from tasks.search.chain import Chain
from tasks.search.descent import beam_descent, fastest
from tasks.search.exact import optimum
from tasks.search.genetic import Winner, search
from tasks.search.problem import Codes, Problem
from tasks.search.settings import Settings

TIE_PRICE = 1e-9
"""Of all that can be gained, for all that can be spent: of equal gains the cheapest."""


class Method(Protocol):
    """Searches one problem, budget by budget."""

    quickest: Codes
    """Code (V,) of the fastest SubNet."""

    def best(self) -> Codes:
        """Code (V,) of the SubNet with the best score, whatever its latency."""
        ...

    def winner(self, budget_ms: float) -> Winner:
        """The best SubNet within a budget that the fastest one keeps."""
        ...


class Exact:
    """The optimum over the complete space."""

    def __init__(self, problem: Problem, chain: Chain, tolerance: float) -> None:
        self._problem, self._chain, self._tolerance = problem, chain, tolerance
        self.quickest = self._canonical(chain.best(np.ones(1), weight=0.0)[0])

    def best(self) -> Codes:
        """The best score; of equal ones the fastest."""
        gain = sum(float(np.ptp(step.gain)) for step in self._chain.steps)
        spent_ms = self._chain.best(np.zeros(1))[2][0]
        return self._canonical(self._chain.best(np.array([TIE_PRICE * gain / spent_ms]))[0])

    def winner(self, budget_ms: float) -> Winner:
        """Optimal, or within the tolerance of the budget, which it then says."""
        found = optimum(self._chain, np.array([budget_ms]), self._tolerance)
        stopped = f"optimal within {found.error:.2%} of the budget" if found.error else "optimal"
        return Winner(code=self._canonical(found.code), generations=0, stopped=stopped)

    def _canonical(self, code: Codes) -> Codes:
        canonical: Codes = self._problem.space.canonical_codes(code[None])[0]
        return canonical


class Genetic:
    """Generations of a population; each budget starts from the winners of those before, too."""

    def __init__(self, problem: Problem, settings: Settings, rng: np.random.Generator) -> None:
        self._problem, self._settings, self._rng = problem, settings, rng
        self.quickest = fastest(problem, rng)
        self._starts = beam_descent(problem, settings.beam_width).codes

    def best(self) -> Codes:
        """With the larger of the largest and the fastest SubNet's latency as the budget."""
        ends = np.stack([self.quickest, self._problem.space.canonical_codes(self._problem.largest[None])[0]])
        return self.winner(self._problem.evaluate(ends).latency_ms.max()).code

    def winner(self, budget_ms: float) -> Winner:
        """The best that was met."""
        found = search(self._problem, budget_ms, self._starts, self.quickest, self._settings, self._rng)
        self._starts = np.concatenate([self._starts, found.code[None]])
        return found
