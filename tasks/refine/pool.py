"""The candidates of a refinement: a budget's own, and where further ones are sought."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from tailor_ir import SuperNet
from tasks.evaluate import Accuracy
from tasks.predict.accuracy import AccuracyPredictor
from tasks.refine.candidates import Around
from tasks.refine.learned import LearnedAccuracy, smoothed_ms
from tasks.search.methods import Method
from tasks.search.problem import Codes, Problem
from tasks.search.results import rows_of
from tasks.search.settings import Settings as SearchSettings
from tasks.search.stage import Target, costs_of, method_of

NEAR = 0.02
"""Limits of latency that differ by less, relative, are searched once."""

Row = dict[str, Any]


@dataclass(slots=True)
class Budget:
    """A budget, the code (V,) of its winner, and the SubNets that were taken for it: digest -> predicted latency [ms]."""

    budget_ms: float
    limit_ms: float
    winner: Codes
    own: dict[str, float]

    def predicted_limit_ms(self, timed_ms: Mapping[str, float]) -> float:
        """The predicted latency that its next candidates may have; more careful where none of its own keeps the budget."""
        own = {digest: predicted_ms for digest, predicted_ms in self.own.items() if digest in timed_ms}
        if not own:
            return self.budget_ms
        ratios = [timed_ms[digest] / predicted_ms for digest, predicted_ms in own.items()]
        missed = min(timed_ms[digest] for digest in own) > self.limit_ms
        return self.limit_ms / (max(ratios) if missed else median(ratios))


class Pool:
    """The SubNets to be measured, by digest: the search's winners, and what budgets ask for. All keep the search's limits."""

    def __init__(self, net: SuperNet, target: Target, accuracy: AccuracyPredictor, front: Row) -> None:
        self.winners: list[Row] = front["winners"]
        self.configs = {row["digest"]: row["config"] for row in self.winners}
        self.likely: dict[str, Row] = {}
        self.learned: LearnedAccuracy | None = None
        self._evaluated: Codes
        self._net, self._accuracy = net, accuracy
        self._settings = SearchSettings.model_validate(front["settings"])
        self._costs = costs_of(net, [target], self._settings)
        others = tuple(cost.model for cost in self._costs[1:])
        self._problem = Problem(net.space, target.latency, accuracy, others)
        self._limits = np.array([cost.limit for cost in self._costs])
        self.around = Around(self._problem, self._limits, self._codes([row["config"] for row in self.winners]))

    def _codes(self, configs: Sequence[Row]) -> Codes:
        codes: Codes = self._net.space.canonical_codes(self._net.space.encode(configs))
        return codes

    def learn(self, found: Mapping[str, Accuracy]) -> None:
        """Further candidates are sought with what was measured for these: digest -> accuracy."""
        codes = self._codes([self.configs[digest] for digest in found])
        self.learned = LearnedAccuracy.of(self._net.space, self._accuracy, codes, list(found.values()))
        self._evaluated = codes
        if self.learned is not None:
            self.around = replace(self.around, problem=replace(self._problem, accuracy=self.learned))

    def more(self, budget: Budget, limit_ms: float, count: int) -> list[Row]:
        """Further candidates of a budget within a predicted latency, none of which another budget has.

        With `config`, `predicted_ms` and, where the pool has learned, the accuracy that is `likely` and its deviation.
        """
        center = self._center(budget, limit_ms) if count else None
        if center is None:
            return []
        if self.learned is not None:
            center = self.around.top(np.concatenate([center[None], self._evaluated]), limit_ms)
        found = self.around.best(center, limit_ms, count, self._codes(list(self.configs.values())))
        rows = self._rows(found)
        if self.learned is not None and rows:
            likely = self.learned.guess(np.stack([code for code, _ in found]))
            for row, accuracy, deviation in zip(rows, *(column.tolist() for column in likely), strict=True):
                row["likely"] = {"accuracy": accuracy, "deviation": deviation}
        return rows

    def _rows(self, found: Sequence[tuple[Codes, float]]) -> list[Row]:
        return [{"config": self._net.space.decode(code), "predicted_ms": predicted_ms} for code, predicted_ms in found]

    def add(self, budget: Budget, rows: Sequence[Row]) -> None:
        """Take candidates in."""
        for row in rows:
            digest = self._net.space.digest(row["config"])
            self.configs[digest] = row["config"]
            budget.own[digest] = row["predicted_ms"]
            if "likely" in row:
                self.likely[digest] = row["likely"]

    def _center(self, budget: Budget, limit_ms: float) -> Codes | None:
        """What the search finds within a latency; the winner where that is about the budget, None if nothing is as fast."""
        if abs(limit_ms / budget.budget_ms - 1) <= NEAR:
            return budget.winner
        if limit_ms < self._problem.evaluate(self._method.quickest()[None]).latency_ms[0]:
            return None
        return self._method.winner(np.array([limit_ms, *self._limits[1:]])).code

    @cached_property
    def _method(self) -> Method:
        return method_of(self._problem, self._net.space, self._settings, self._limits)

    def smoothed_ms(self, timed_ms: Mapping[str, float]) -> dict[str, float]:
        """Latencies [ms] by digest as all measurements together tell them."""
        codes = self._codes([self.configs[digest] for digest in timed_ms])
        predicted_ms = self._problem.latency.predict(codes)
        found = smoothed_ms(self._accuracy, codes, predicted_ms, np.array(list(timed_ms.values())))
        return dict(zip(timed_ms, found.tolist(), strict=True))

    def rows(self) -> list[Row]:
        """Digest, config, predictions and size of each."""
        return rows_of(self._net, self._problem, self._costs, self._codes(list(self.configs.values())))
