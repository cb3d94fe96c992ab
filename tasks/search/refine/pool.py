"""The candidates of a refinement: candidates of each budget, and the search for further candidates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tailor_ir import Config, SuperNet
from tasks.base.schemas.candidates import Likely, Proposal
from tasks.base.schemas.front import Front
from tasks.base.schemas.subnets import Predicted
from tasks.evaluation.subnets import Accuracy
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.search.methods import Method
from tasks.search.problem import Codes, Problem, Values
from tasks.search.refine.candidates import Around
from tasks.search.refine.known import Latencies, within
from tasks.search.refine.learned import LearnedAccuracy, smoothed_ms
from tasks.search.results import rows_of
from tasks.search.settings import Settings as SearchSettings
from tasks.search.stage import Target, costs_of, method_of

NEAR = 0.02
"""Limits of latency that differ relatively by less than this are searched once."""


@dataclass(slots=True)
class Budget:
    """A budget of each device (D,) [ms], and the largest latencies that candidates may have; the code (V,) of its winner.
    own: the SubNets that were added for this budget: digest -> predicted latencies [ms].
    """

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
        self._problem = self._problem_of(accuracy)
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

    def _problem_of(self, accuracy: AccuracyPredictor) -> Problem:
        latency, *others = (cost.model for cost in self._costs)
        return Problem(self._net.space, latency, accuracy, tuple(others), timed=self._timed)

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
            problem = self._problem_of(AccuracyPredictor(self._accuracy.table, names))
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
        """Further candidates of a budget within predicted latencies; no candidate belongs to another budget.
        After `learn`, each candidate comes with its learned accuracy.
        """
        center = self._center(budget, limits_ms) if count else None
        if center is None:
            return []
        most_ms = np.array(limits_ms)
        if self.learned is not None:
            center = self.around.top(np.concatenate([center[None], self._evaluated]), most_ms)
        found = self.around.best(center, most_ms, count, self._codes(list(self.configs.values())))
        likely: Sequence[Likely | None] = [None] * len(found)
        if self.learned is not None and found:
            guess = self.learned.guess(np.stack([code for code, _ in found]))
            columns = zip(*(column.tolist() for column in guess), strict=True)
            likely = [Likely(accuracy=accuracy, deviation=deviation) for accuracy, deviation in columns]
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

    def _center(self, budget: Budget, limits_ms: Latencies) -> Codes | None:
        """The code (V,) that the search finds within latencies: the winner if near the budget; None if no code is as fast."""
        if all(abs(ms / own_ms - 1) <= NEAR for ms, own_ms in zip(limits_ms, budget.budgets_ms, strict=True)):
            return budget.winner
        return self._within(self._method, limits_ms)

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

    def rows(self, device: int) -> list[Predicted]:
        """The rows of all SubNets of the pool, with sizes and the predictions for one device, by its number."""
        codes = self._codes(list(self.configs.values()))
        return [Predicted.model_validate(row) for row in rows_of(self._net, self._problem, self._costs, codes, device)]


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
