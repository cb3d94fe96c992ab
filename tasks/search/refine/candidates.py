"""The candidates of a refinement: the best SubNets by prediction around winners, and estimates from measurements.

The accuracy predictor adds sensitivities of the largest SubNet. Far from the largest SubNet the sum is wrong, since two
modifications together cost more than their sum, or less. A Gaussian process (Rasmussen and Williams, *Gaussian
Processes for Machine Learning*, 2006; Matérn kernel, ν = 5/2) learns the accuracies of SubNets that were not evaluated.
The coordinates of a SubNet are the losses that its choices cost. SubNets with similar losses are therefore similar,
variables without effect do not count, and three hyperparameters are enough for any number of variables. Each estimate
comes with its standard deviation.

The same process smooths latencies: the smallest of hundreds of measured latencies are small by luck, and the latencies
of similar SubNets correct them.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tailor_ir import Config, SuperNet
from tasks.base.schemas.winners import Front, Likely, Proposal
from tasks.evaluation.subnets import Accuracy
from tasks.prediction.accuracy import AccuracyPredictor, MeasuredAccuracy
from tasks.prediction.latency import LatencyPredictor
from tasks.search.methods import Method
from tasks.search.problem import Codes, Problem, SearchSpace, Values, neighbours, row_keys
from tasks.search.refine.known import Latencies, within
from tasks.search.settings import Settings as SearchSettings
from tasks.search.stage import Target, costs_of, method_of, rows_of

FEWEST = 8
"""Least number of different SubNets to learn from."""
MOST = 1000
"""Largest number of SubNets to learn from: the effort grows with its cube."""
PREDICTED_AT_ONCE = 1 << 12


class _Surface:
    """Values over SubNets, at canonical codes (n, V) and between them."""

    def __init__(self, coordinates: Sequence[Values], codes: Codes, values: Values, noise: float) -> None:
        """coordinates: of each choice of each variable. noise: share of the values' variance, where fitting begins."""
        from sklearn.exceptions import ConvergenceWarning  # sklearn takes a second or two
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        self._coordinates = coordinates
        self._mean, self._spread = float(values.mean()), float(values.std()) or 1.0
        white = WhiteKernel(noise, (1e-6, 1e1))
        self._process = GaussianProcessRegressor(
            ConstantKernel(1.0, (1e-3, 1e3)) * Matern(1.0, (1e-2, 1e2), nu=2.5) + white
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a bound that is reached is as good as any value
            self._process.fit(self._placed(codes), (values - self._mean) / self._spread)

    def guess(self, codes: Codes) -> tuple[Values, Values]:
        """For few codes: values (n,), and the standard deviations (n,) of their errors."""
        value, deviation = self._process.predict(self._placed(codes), return_std=True)
        return self._mean + self._spread * value, self._spread * deviation

    def at(self, codes: Codes) -> Values:
        """For many codes: values (n,)."""
        parts = [
            self._process.predict(self._placed(codes[at : at + PREDICTED_AT_ONCE]))
            for at in range(0, len(codes), PREDICTED_AT_ONCE)
        ]
        return self._mean + self._spread * np.concatenate([np.zeros(0), *parts])

    def _placed(self, codes: Codes) -> Values:
        return np.stack([one[column] for one, column in zip(self._coordinates, codes.T, strict=True)], axis=1)


def _coordinates(predictor: AccuracyPredictor) -> list[Values] | None:
    """The loss that each choice costs, relative to the costliest choice; None if no choice costs anything."""
    table = predictor.table
    lost = [np.array([found.loss for found in row.measured]) - table.largest.loss for row in table.variables]
    spread = max((float(np.abs(one).max()) for one in lost), default=0.0)
    return [one / spread for one in lost] if spread else None


class LearnedAccuracy:
    """An `AccuracyModel`: accuracies of evaluated SubNets, and estimates between them."""

    def __init__(self, coordinates: Sequence[Values], codes: Codes, accuracies: Values) -> None:
        """Learns from canonical codes (n, V) and their accuracies (n,). coordinates: of each choice of each variable."""
        self._surface = _Surface(coordinates, codes, accuracies, noise=1e-3)

    @classmethod
    def of(
        cls, space: SearchSpace, predictor: AccuracyPredictor, codes: Codes, measured: Sequence[Accuracy]
    ) -> Self | None:
        """Learns from the predictor's measurements and the last accuracies of canonical codes (n, V); None: too few."""
        coordinates = _coordinates(predictor)
        first, of_first = _modified(predictor)
        every = np.concatenate([space.canonical_codes(first), codes])
        accuracies = np.array([*(found.accuracy for found in of_first), *(found.share for found in measured)])
        rows = list({key: row for row, key in enumerate(row_keys(every))}.values())[-MOST:]
        if coordinates is None or len(rows) < FEWEST:
            return None
        return cls(coordinates, every[rows], accuracies[rows])

    def guess(self, codes: Codes) -> tuple[Values, Values]:
        """Accuracies (n,), fractions, and the standard deviations (n,) of their errors, for few canonical codes (n, V)."""
        return self._surface.guess(codes)

    def predict(self, codes: Codes) -> Values:
        """Accuracy (n,), a fraction, of canonical codes (n, V)."""
        return np.clip(self.score(codes), 0.0, 1.0)

    def score(self, codes: Codes) -> Values:
        """The values (n,) that a search maximises: accuracies, which are not clipped."""
        return self._surface.at(codes)


def smoothed_ms(predictor: AccuracyPredictor, codes: Codes, predicted_ms: Values, measured_ms: Values) -> Values:
    """Latencies (n,) [ms] of canonical codes (n, V), with smoothed ratios of measured to predicted; unchanged if too few."""
    coordinates = _coordinates(predictor)
    if coordinates is None or len(codes) < FEWEST:
        return measured_ms
    rows = np.linspace(0, len(codes) - 1, min(len(codes), MOST)).astype(np.int64)
    ratios = np.log(measured_ms / predicted_ms)
    return predicted_ms * np.exp(_Surface(coordinates, codes[rows], ratios[rows], noise=0.1).at(codes))


def _modified(predictor: AccuracyPredictor) -> tuple[Codes, list[MeasuredAccuracy]]:
    """The SubNets with which sensitivities and interactions were measured: their codes (n, V), and their accuracies."""
    table = predictor.table
    single = [
        ((column,), (choice,), measured)
        for column, row in enumerate(table.variables)
        for choice, measured in enumerate(row.measured[:-1])
    ]
    both = [(*pair, each.measured) for pair, each in zip(predictor.pairs, table.interactions, strict=True)]
    changes = [*single, *both]
    codes = np.tile([len(row.choices) - 1 for row in table.variables], (1 + len(changes), 1))
    for code, (columns, choices, _) in zip(codes[1:], changes, strict=True):
        code[list(columns)] = choices
    return codes, [table.largest, *(measured for *_, measured in changes)]


AT_ONCE = 1 << 16
"""Approximate number of codes that are made and predicted together."""


@dataclass(frozen=True, slots=True)
class Around:
    """The neighbourhood of winners (n, V): one modification from any, two from a center. limits: (K,), not of latencies."""

    problem: Problem
    limits: Values
    winners: Codes

    def best(self, center: Codes, limits_ms: Values, count: int, known: Codes) -> list[tuple[Codes, Values]]:
        """The (at most) `count` codes (V,) with the best predicted score within predicted latencies, and their own (D,) [ms].

        center: the code (V,) that is modified twice. limits_ms: (D,), of each device. known: canonical codes (m, V), left out.
        """
        if not count:
            return []
        taken = set(row_keys(known))
        best, scores = self.winners[:0], np.zeros(0)
        for codes in self._near(center):
            fits = self._fitting(codes, limits_ms)
            best, scores = np.concatenate([best, fits]), np.concatenate([scores, self.problem.accuracy.score(fits)])
            shares = (self._predicted_ms(best) / limits_ms).max(axis=1)
            rows = _first(best, np.lexsort((shares, -scores)), count, taken)
            best, scores = best[rows], scores[rows]
        return list(zip(best, self._predicted_ms(best), strict=True))

    def top(self, starts: Codes, limits_ms: Values) -> Codes:
        """The code that repeated calls of `best` reach from the best of codes (n, V) within latencies (D,); else the first."""
        fits = self._fitting(starts, limits_ms)
        if not len(fits):
            return starts[0]
        score = self.problem.accuracy.score
        center: Codes = fits[np.argmax(score(fits))]
        while True:
            ((better, _),) = self.best(center, limits_ms, 1, starts[:0])
            if score(better[None])[0] <= score(center[None])[0]:
                return center
            center = better

    def _near(self, center: Codes) -> Iterator[Codes]:
        singles = neighbours(self.problem.space, center[None]).codes
        yield np.concatenate([self.winners, neighbours(self.problem.space, self.winners).codes, center[None], singles])
        step = max(1, AT_ONCE // max(1, len(singles)))
        for start in range(0, len(singles), step):
            yield neighbours(self.problem.space, singles[start : start + step]).codes

    def _fitting(self, codes: Codes, limits_ms: Values) -> Codes:
        return codes[np.all(self._predicted_ms(codes) <= limits_ms, axis=1)]

    def _predicted_ms(self, codes: Codes) -> Values:
        """Predicted latencies (n, D) by device. Infinite if an operator has no latency, and beyond the limits."""
        timed = self.problem.timed
        is_known = np.ones(len(codes), bool)
        for latency in self.problem.costs[:timed]:
            assert isinstance(latency, LatencyPredictor)
            is_known &= latency.unknown.predict(codes) == 0
        costs = self.problem.predict_costs(codes[is_known])
        found = np.full((len(codes), timed), np.inf)
        within: NDArray[np.bool_] = np.all(costs[:, timed:] <= self.limits[timed:], axis=1)
        found[is_known] = np.where(within[:, None], costs[:, :timed], np.inf)
        return found


def _first(codes: Codes, order: NDArray[np.int64], count: int, known: Set[bytes]) -> list[int]:
    """The first rows in this order that are distinct and not known."""
    rows: dict[bytes, int] = {}
    for row in order.tolist():
        if len(rows) == count:
            break
        (key,) = row_keys(codes[row, None])
        if key not in known:
            rows.setdefault(key, row)
    return list(rows.values())


NEAR = 0.02
"""Limits of latency that differ relatively by less than this are searched once."""


@dataclass(slots=True)
class Budget:
    """A budget of each device, and the largest latencies of candidates [ms]; its winner (V,); own: predicted ms by digest."""

    budgets_ms: Latencies
    limits_ms: Latencies
    winner: Codes
    own: dict[str, Latencies]

    def is_missed_by(self, timed_ms: Mapping[str, Latencies]) -> bool:
        """Whether no SubNet keeps the budget, less the margin."""
        return not any(within(ms, self.limits_ms) for ms in timed_ms.values())

    def predicted_limits_ms(self, timed_ms: Mapping[str, Latencies]) -> Latencies:
        """The largest predicted latencies [ms] of the next candidates; lower if no candidate keeps the budget so far."""
        own = {digest: predicted_ms for digest, predicted_ms in self.own.items() if digest in timed_ms}
        if not own:
            return self.budgets_ms
        own_ms = {digest: timed_ms[digest] for digest in own}
        ratios = np.array(list(own_ms.values())) / np.array(list(own.values()))
        factors = (ratios.max(axis=0) if self.is_missed_by(own_ms) else np.median(ratios, axis=0)).tolist()
        return tuple(limit_ms / factor for limit_ms, factor in zip(self.limits_ms, factors, strict=True))


class Pool:
    """The SubNets to be measured, by digest: the search's winners, other fronts' winners, and candidates of budgets.

    All keep the search's limits. The other fronts are those of uniformly shrunk SubNets and, in a space of sizes and
    alternatives, of sizes alone and of alternatives alone (`_parts`), so that no winner is below one of them. targets, fronts:
    one for each device, of one search.
    """

    def __init__(
        self, net: SuperNet, targets: Sequence[Target], accuracy: AccuracyPredictor, fronts: Sequence[Front]
    ) -> None:
        self.winners = fronts[0].winners
        self.configs = {row.digest: row.config for row in self.winners}
        self.likely: dict[str, Likely] = {}
        self.learned: LearnedAccuracy | None = None
        self._evaluated: Codes
        self._net, self._accuracy, self._timed = net, accuracy, len(targets)
        self._settings = SearchSettings.model_validate(fronts[0].settings)
        self._costs = costs_of(net, targets, self._settings)
        latency, *others = (cost.model for cost in self._costs)
        self._problem = Problem(net.space, latency, accuracy, tuple(others), timed=self._timed)
        self._limits = np.array([cost.limit for cost in self._costs])
        self.budgets_ms = [
            tuple(row.budget_ms for row in rows) for rows in zip(*(front.winners for front in fronts), strict=True)
        ]
        self.around = Around(self._problem, self._limits, self._codes([row.config for row in self.winners]))
        uniform = {row.digest: row.config for row in fronts[0].baseline}
        codes = self._codes(list(uniform.values()))
        most = np.concatenate([np.full(self._timed, np.inf), self._limits[self._timed :]])
        kept = self._problem.within(codes, most).tolist() if uniform else []
        self.configs |= {digest: uniform[digest] for digest, keeps in zip(uniform, kept, strict=True) if keeps}
        self.configs |= {net.space.digest(config): config for config in self._parts()}

    def _parts(self) -> Iterator[Config]:
        """The winners of each budget among SubNets that differ in sizes alone, and among those in alternatives alone.

        The sum of sensitivities has larger errors if small blocks are replaced, too. Nothing if the space has only sizes or
        only alternatives.
        """
        variables = self._net.space.variables
        is_block = np.array([variable.kind == "block" for variable in variables])
        both = is_block.any() and not is_block.all()
        for unchanged in (is_block, ~is_block) if both else ():
            names = {variable.name for variable, stays in zip(variables, unchanged, strict=True) if stays}
            problem = replace(self._problem, accuracy=AccuracyPredictor(self._accuracy.table, names), _memo={})
            method = method_of(problem, self._net.space, self._settings, self._limits)
            for budgets_ms in self.budgets_ms:
                code = self._within(method, budgets_ms)
                if code is not None and (code == problem.largest)[unchanged].all():
                    yield self._net.space.decode(code)

    def _codes(self, configs: Sequence[Config]) -> Codes:
        codes: Codes = self._net.space.canonical_codes(self._net.space.encode(configs))
        return codes

    def learn(self, found: Mapping[str, Accuracy]) -> None:
        """Learn from measured accuracies (digest -> accuracy), for the search for further candidates."""
        codes = self._codes([self.configs[digest] for digest in found])
        self.learned = LearnedAccuracy.of(self._net.space, self._accuracy, codes, list(found.values()))
        self._evaluated = codes
        if self.learned is not None:
            self.around = replace(self.around, problem=replace(self._problem, accuracy=self.learned))

    def more(self, budget: Budget, limits_ms: Latencies, count: int) -> list[Proposal]:
        """Further candidates of a budget within predicted latencies, which no budget has; with accuracies, if learned."""
        if not count:
            return []
        center: Codes | None = budget.winner
        if any(abs(ms / own_ms - 1) > NEAR for ms, own_ms in zip(limits_ms, budget.budgets_ms, strict=True)):
            center = self._within(self._method, limits_ms)
        if center is None:
            return []
        most_ms = np.array(limits_ms)
        if self.learned is not None:
            center = self.around.top(np.concatenate([center[None], self._evaluated]), most_ms)
        found = self.around.best(center, most_ms, count, self._codes(list(self.configs.values())))
        likely: Sequence[Likely | None] = [None] * len(found)
        if self.learned is not None and found:
            columns = self.learned.guess(np.stack([code for code, _ in found]))
            pairs = zip(*(column.tolist() for column in columns), strict=True)
            likely = [Likely(accuracy=accuracy, deviation=deviation) for accuracy, deviation in pairs]
        return [
            Proposal(config=self._net.space.decode(code), predicted_ms=tuple(predicted_ms.tolist()), likely=one)
            for (code, predicted_ms), one in zip(found, likely, strict=True)
        ]

    def add(self, budget: Budget, rows: Sequence[Proposal]) -> None:
        """Add candidates to the pool."""
        for row in rows:
            digest = self._net.space.digest(row.config)
            self.configs[digest] = row.config
            budget.own[digest] = row.predicted_ms
            if row.likely is not None:
                self.likely[digest] = row.likely

    def _within(self, method: Method, limits_ms: Latencies) -> Codes | None:
        """The code (V,) that a method finds within latencies; None if no code is as fast."""
        most = np.array([*limits_ms, *self._limits[self._timed :]])
        fastest = method.quickest()
        if self._timed > 1 and not self._keeps(fastest, most):  # the fastest on all devices together
            fastest = method.quickest(most)
        return method.winner(most).code if self._keeps(fastest, most) else None

    def _keeps(self, code: Codes, most: Values) -> bool:
        return bool(self._problem.evaluate(code[None]).within(most)[0])

    @cached_property
    def _method(self) -> Method:
        return method_of(self._problem, self._net.space, self._settings, self._limits)

    def smoothed_ms(self, timed_ms: Mapping[str, Latencies]) -> dict[str, Latencies]:
        """Latencies [ms] by digest, smoothed over all measurements."""
        codes = self._codes([self.configs[digest] for digest in timed_ms])
        columns = [
            smoothed_ms(self._accuracy, codes, cost.model.predict(codes), np.array(measured_ms)).tolist()
            for cost, measured_ms in zip(self._costs, zip(*timed_ms.values(), strict=True), strict=False)
        ]
        return dict(zip(timed_ms, zip(*columns, strict=True), strict=True))

    def rows(self, device: int) -> list[dict[str, Any]]:
        """The rows of all SubNets of the pool, with sizes and the predictions for one device, by its number."""
        codes = self._codes(list(self.configs.values()))
        return rows_of(self._net, self._problem, self._costs, codes, device)


def budgets_of(pool: Pool, fronts: Sequence[Front], margin: float) -> list[Budget]:
    """The budgets of a search with a front for each device. margin: share of a budget that is left free."""
    return [
        Budget(
            budgets_ms=budgets_ms,
            limits_ms=tuple((1 - margin) * budget_ms for budget_ms in budgets_ms),
            winner=code,
            own={rows[0].digest: tuple(row.predicted_ms for row in rows)},
        )
        for budgets_ms, rows, code in zip(
            pool.budgets_ms, zip(*(front.winners for front in fronts), strict=True), pool.around.winners, strict=True
        )
    ]
