"""The methods of search behind one interface: exact, genetic, and genetic by measured accuracy.

Budgets are (K,): for the latency, then for the problem's other costs. By measured accuracy, SubNets of a population are
evaluated, and their costs are predicted. Populations begin with the winners by predicted accuracy. A SubNet evaluated
for one budget is a candidate for all.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.chain import Chain
from solvers.exact import Optimum, optimum
from solvers.front import FrontSearch, Points
from solvers.tables import Infeasible, Undecided
from tailor_ir import SuperNet
from tasks.base.errors import UserError
from tasks.base.progress import Bar, Progress, Silent
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracies, known_accuracies
from tasks.search.feasibility import beam_descent, fastest
from tasks.search.genetic import BestCode, search
from tasks.search.problem import Additive, Bounds, Codes, Problem, Values, unique_rows
from tasks.search.settings import Settings

TIE_PRICE = 1e-9
"""Share of the whole gain that all costs together are worth: among SubNets with equal gains the cheapest wins."""
ROUNDING = 2e-12
"""Share of a budget by which two sums of the same numbers may differ."""


class Method(ABC):
    """Searches one problem within its limits, budget by budget."""

    def __init__(self, problem: Problem, settings: Settings, limits: Values | None) -> None:
        """limits: (K,), inf or None: none."""
        self._problem, self._settings = problem, settings
        self._limits = problem.unlimited if limits is None else limits
        self._quickest: Codes | None = None

    def quickest(self, budgets: Values | None = None) -> Codes:
        """Code (V,) of the fastest SubNet within budgets (None: the limits), or of one that exceeds them little."""
        if budgets is not None:
            return self._fastest(budgets)
        if self._quickest is None:
            self._quickest = self._fastest(self._limits)
        return self._quickest

    @abstractmethod
    def best(self) -> Codes:
        """Code (V,) of the SubNet with the best score within the limits, at any latency."""

    @abstractmethod
    def winner(self, budgets: Values) -> BestCode:
        """The best SubNet within budgets. The caller knows that some SubNet keeps them."""

    @abstractmethod
    def _fastest(self, budgets: Values) -> Codes: ...


class Exact(Method):
    """The optimum over the complete space."""

    def __init__(
        self,
        problem: Problem,
        chain: Chain,
        settings: Settings,
        costs: Sequence[Additive] = (Additive(rows=((),)),),
        limits: Values | None = None,
    ) -> None:
        """costs: K; their rows, one after the other, are the costs of the chain. limits: (K,), inf: none."""
        super().__init__(problem, settings, limits)
        self._chain, self._additive = chain, tuple(costs)
        self._first_rows = list(accumulate((len(cost.rows) for cost in costs[:-1]), initial=0))
        self._views: dict[tuple[tuple[int, ...], bytes, float], Chain] = {}
        self._genetic = Genetic(problem, settings, np.random.default_rng(settings.seed), limits)
        self._pace = np.zeros(chain.constraints)
        self._pace[self._first_rows] = problem.paces

    def _fastest(self, budgets: Values) -> Codes:
        """The fastest SubNet of the whole space."""
        try:
            code = self._canonical(self._solve(budgets, self._pace, 0.0).code)
        except Infeasible:
            return self._genetic.quickest(budgets)
        self._genetic.knows(code)
        return code

    def best(self) -> Codes:
        """The SubNet with the best score; the fastest among equal scores."""
        gain = sum(float(np.ptp(each.gain)) for each in self._chain.eliminations)
        spent = self._pace @ self._chain.best(np.zeros(self._chain.constraints))[2]
        return self._canonical(self._solve(self._limits, self._pace * TIE_PRICE * gain / spent).code)

    def winner(self, budgets: Values) -> BestCode:
        """The optimum. `stopped` states any remaining tolerance of the budgets or gap of predicted accuracy."""
        found = self._solve(budgets)
        stopped = "optimal" if not found.gap else f"within {100 * found.gap:.2g} points of the optimum"
        if found.error:
            stopped += f" within {100 * found.error:.2g}% of the budget"
        return BestCode(code=self._canonical(found.code), generations=0, stopped=stopped)

    def whole_front(self, progress: Progress, name: str) -> Points:
        """All SubNets that are optimal for some latency budget (`solvers.front`), if there are no other costs."""
        slowest_ms = float(self._problem.evaluate(self.best()[None]).latency_ms[0])
        search = FrontSearch(self._view([0], None, 1.0), slowest_ms, self._settings.tolerance)
        with progress.bar(f"whole front {name}", len(search.gaps)) as bar:
            for known in search.fill():
                bar.note(f"{known} SubNets")
                bar.advance()
        found = search.points()
        codes = self._problem.space.canonical_codes(found.codes)
        scores = self._problem.evaluate(codes)
        return Points(codes, scores.latency_ms, scores.score, found.error)

    def _solve(self, budgets: Values, prices: Values | None = None, weight: float = 1.0) -> Optimum:
        """The best code of all cases. The gain is `weight` times the score, minus the `prices` of the chain's costs."""
        found: list[Optimum] = []
        undecided: list[Undecided] = []
        for case in product(*(cost.cases for cost in self._additive)):
            try:
                found.append(self._solve_case(budgets, case, prices, weight))
            except Undecided as case_undecided:
                undecided.append(case_undecided)
            except Infeasible:
                continue
        if not found:
            raise max(undecided, key=lambda one: one.most, default=Infeasible())
        best = max(found, key=lambda one: one.gain)
        error = max(one.error for one in found)
        most = max([*(one.gain + one.gap for one in found), *(one.most for one in undecided)])
        return replace(best, error=error, gap=most - best.gain)

    def _solve_case(self, budgets: Values, case: Sequence[Bounds], prices: Values | None, weight: float) -> Optimum:
        """The best code of one case. A row is bounded once a solution exceeds it; the first within all bounds is best."""
        bounds = {
            first + row: float(budget if bound is None else bound)
            for first, rows, budget in zip(self._first_rows, case, budgets, strict=True)
            for row, bound in rows
            if np.isfinite(budget)
        }
        active = [0] if 0 in bounds else []
        while True:
            view = self._view(active, prices, weight)
            most = np.array([bounds[row] for row in active])
            try:
                found = optimum(view, most, self._settings.tolerance)
            except Undecided:
                return self._asked(view, most, budgets, timed=weight == 0.0)
            costs = self._chain.value(found.code)[1]
            excess = {row: costs[row] / most - 1 for row, most in bounds.items()}
            row = max(excess, key=excess.__getitem__, default=0)
            if excess.get(row, 0.0) <= ROUNDING:
                break
            active.append(row)
        if all(cost.exact for cost in self._additive) or self._allowed(found.code[None], budgets)[0]:
            return found
        return self._asked(view, most, budgets, timed=weight == 0.0)

    def _asked(self, view: Chain, most: Values, budgets: Values, *, timed: bool) -> Optimum:
        """The best code if a cost is no sum, or if no code was decided. It starts from the result of the genetic search."""
        known = None
        code = self._genetic.quickest(budgets) if timed else self._genetic.winner(budgets).code
        if self._allowed(code[None], budgets)[0]:
            gain, costs = view.value(code)
            known = Optimum(code=code, gain=gain, costs=costs)
        return optimum(view, most, self._settings.tolerance, lambda codes: self._allowed(codes, budgets), known)

    def _allowed(self, codes: Codes, budgets: Values) -> NDArray[np.bool_]:
        return self._problem.evaluate(self._problem.space.canonical_codes(codes)).within(budgets * (1 + ROUNDING))

    def _view(self, rows: Sequence[int], prices: Values | None, weight: float) -> Chain:
        key = tuple(rows), b"" if prices is None else prices.tobytes(), weight
        if key not in self._views:
            self._views[key] = self._chain.view(rows, prices, weight)
        return self._views[key]

    def _canonical(self, code: Codes) -> Codes:
        canonical: Codes = self._problem.space.canonical_codes(code[None])[0]
        return canonical


def starts_of(problem: Problem, beam_width: int, limits: Values) -> Codes:
    """Codes (n, V) that beams meet, with and without limits (K,); without a beam that of the largest SubNet alone."""
    if not beam_width:
        return problem.space.canonical_codes(problem.largest[None])
    starts = beam_descent(problem, beam_width).codes
    if np.isfinite(limits).any():
        starts = np.concatenate([starts, beam_descent(problem, beam_width, limits).codes])
    return unique_rows(starts)


class Genetic(Method):
    """Generations of a population. The winners of earlier budgets are starts of later ones."""

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        rng: np.random.Generator,
        limits: Values | None = None,
        exact: Callable[[], Method] | None = None,
        starts: Codes | None = None,
    ) -> None:
        """limits: (K,), inf: none. exact: fallback method for a SubNet within budgets if descents find none.

        starts: (n, V) initial canonical codes; None: codes of a beam.
        """
        super().__init__(problem, settings, limits)
        self._rng, self._exact, self._starts = rng, exact, starts
        self._goals: list[Codes] = []

    def _fastest(self, budgets: Values) -> Codes:
        """The fastest SubNet that descents find; the fallback is the fastest SubNet of the exact search."""
        found = fastest(self._problem, self._rng, budgets)
        if self._exact is not None and not self._problem.evaluate(found[None]).within(budgets)[0]:
            with suppress(UserError):  # variables are coupled too much for the exact search
                found = self._exact().quickest(budgets)
        self.knows(found)
        return found

    def knows(self, code: Codes) -> None:
        """Record a fast SubNet (V,) as a goal of repairs."""
        self._goals.append(code)

    def best(self) -> Codes:
        """The winner of a budget that the largest and the fastest SubNet keep."""
        ends = np.stack([self._goal(self._limits), self._problem.space.canonical_codes(self._problem.largest[None])[0]])
        budgets, timed = self._limits.copy(), self._problem.timed
        budgets[:timed] = self._problem.evaluate(ends).costs[:, :timed].max(axis=0)
        return self.winner(budgets).code

    def winner(self, budgets: Values) -> BestCode:
        """The best SubNet of the search, which becomes a start of later budgets."""
        goal = self._goal(budgets)
        if self._starts is None:
            self._starts = starts_of(self._problem, self._settings.beam_width, self._limits)
        found = search(self._problem, budgets, self._starts, goal, self._settings, self._rng)
        self._starts = np.concatenate([self._starts, found.code[None]])
        return found

    def _goal(self, budgets: Values) -> Codes:
        """Code (V,) of a fast SubNet within the budgets."""
        if self._goals:
            goals = np.stack(self._goals)
            scores = self._problem.evaluate(goals)
            within = np.flatnonzero(scores.within(budgets))
            if len(within):
                return goals[within[np.argmin(self._problem.pace(scores)[within])]]
        return self.quickest(budgets)


EVALUATED_FILE = "evaluated.jsonl"
LOSS_COUNTS = 0.25
"""Upper bound of the loss term in the score, as a share of one image's accuracy: at equal accuracies the smaller loss wins."""


@dataclass(slots=True)
class AccuracyEvaluator:
    """Evaluates SubNets in place of a predictor. Each result is a line of `file`; a second object with the file continues.

    codes: those whose score a `Problem` has requested, (n, V) at a time; it requests each once.
    """

    net: SuperNet
    images: EvaluationData
    file: Path
    bar: Bar
    codes: list[Codes] = field(default_factory=list)
    _lines: dict[str, Accuracy] = field(init=False)

    def __post_init__(self) -> None:
        self._lines = known_accuracies(self.file)

    def predict(self, codes: Codes) -> Values:
        """Accuracies (n,) on the images."""
        return np.array([found.share for found in self._accuracies(codes)])

    def score(self, codes: Codes) -> Values:
        """Accuracies (n,); their losses order equal ones."""
        self.codes.append(codes)
        self.bar.note(f"{sum(map(len, self.codes))} SubNets evaluated")
        found = self._accuracies(codes)
        moved = [LOSS_COUNTS / one.total * one.loss / (1 + one.loss) for one in found]
        return np.array([one.share for one in found]) - np.array(moved)

    def _accuracies(self, codes: Codes) -> list[Accuracy]:
        configs = [self.net.space.decode(row) for row in codes]
        return accuracies(self.net, configs, self.images, self.file, _Within(self.bar), known=self._lines)


class _Within(Silent):
    """Progress inside an outer bar. The outer bar does not move, but ends the work when the run is interrupted."""

    def __init__(self, outer: Bar) -> None:
        self._outer = outer

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
        yield self

    def advance(self, count: int = 1) -> None:
        """Let the outer bar end the work."""
        self._outer.advance(0)

    def note(self, text: str) -> None:
        """Do nothing: the outer bar has its own note."""


class MeasuredWinners(NamedTuple):
    """The winners, one for each budget, their accuracies (n,), and the number of evaluated SubNets."""

    winners: list[BestCode]
    accuracy: Values
    evaluated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedWinners:
    """The winners by predicted accuracy for budgets (n, K), their problem, and the code (V,) of a SubNet within the limits."""

    problem: Problem
    budgets: Sequence[Values]
    winners: Sequence[BestCode]
    fastest: Codes


def measured_winners(
    net: SuperNet,
    predicted: PredictedWinners,
    settings: Settings,
    images: EvaluationData,
    out: Path,
    progress: Progress,
) -> MeasuredWinners:
    """For each row of budgets the most accurate of all evaluated SubNets. A second call with the same `out` continues."""
    net.elastic.to(images.device)
    given, budgets = predicted.problem, predicted.budgets
    starts = np.stack([winner.code for winner in predicted.winners])
    own = settings.model_copy(update={"rebalance": 0, "beam_width": 0})
    found: list[BestCode] = []
    with progress.bar("search by measured accuracy", len(budgets)) as bar:
        accuracy = AccuracyEvaluator(net, images, out / EVALUATED_FILE, bar)
        problem = Problem(given.space, given.latency, accuracy, given.others, given.timed, measured=True)
        genetic = Genetic(problem, own, np.random.default_rng(settings.seed), starts=starts)
        genetic.knows(predicted.fastest)
        for row, winner in zip(budgets, predicted.winners, strict=True):
            genetic.knows(winner.code)
            found.append(genetic.winner(row))
            bar.advance()
    codes = np.concatenate(accuracy.codes)
    scores = problem.evaluate(codes)
    order = np.lexsort((problem.pace(scores), -scores.score))
    codes, ranked = codes[order], scores.take(order)
    best = np.stack([codes[np.flatnonzero(ranked.within(row))[0]] for row in budgets])
    chosen = [replace(one, code=code) for one, code in zip(found, best, strict=True)]
    return MeasuredWinners(chosen, accuracy.predict(best), len(codes))
