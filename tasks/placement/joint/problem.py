"""The problem of a joint search, for the methods of `tasks.search`: SubNet, devices of segments and coding are one code."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from solvers.chain import Chain
from solvers.exact import optimum
from solvers.tables import Codes, Table, Values, with_derived
from tasks.placement.joint.layout import JointSpace
from tasks.placement.joint.terms import JointTerms
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.sums import Sums
from tasks.search.feasible import LATENCY, Cost
from tasks.search.genetic import BestCode
from tasks.search.methods import Exact
from tasks.search.problem import Problem
from tasks.search.settings import Settings
from tasks.search.terms import Additive, chain_of_tables, gain_tables

TIE = 1e-9
"""A plan that sends values is only taken if it is faster than the coordinator alone by more than this share."""

JointLimits = dict[str, tuple[list[Table], float]]
"""Setting -> tables whose sum is bounded, and the bound."""


@dataclass(frozen=True)
class JointAccuracy:
    """The accuracy of a SubNet minus the loss by coding."""

    space: JointSpace
    accuracy: AccuracyPredictor
    losses: Sums

    def predict(self, codes: Codes) -> Values:
        """Accuracy (n,), a fraction, of canonical codes (n, V + segments + 1)."""
        return np.clip(self.accuracy.predict(codes[:, : self.space.variables]) - self.losses.predict(codes), 0.0, 1.0)

    def score(self, codes: Codes) -> Values:
        """The score (n,), which is maximised."""
        return self.accuracy.score(codes[:, : self.space.variables]) - self.losses.predict(codes)

    @cached_property
    def tables(self) -> list[Table]:
        """The terms that are added to the largest SubNet's score."""
        own = [self.space.table(table) for table in gain_tables(self.space.space, self.accuracy)]
        return [*own, *(table.scaled(-1.0) for table in self.losses.tables)]


class JointSearch:
    """Finds the best code within budgets over all SubNets, devices and codings. limits: bounds besides the latency's."""

    def __init__(
        self,
        terms: JointTerms,
        accuracy: AccuracyPredictor,
        settings: Settings,
        limits: JointLimits | None = None,
    ) -> None:
        self.terms, self.space = terms, terms.space
        name = "+".join(device.name for device in terms.devices)
        self.latency = self._sums(terms.latency())
        others = {setting: (self._sums(tables), most) for setting, (tables, most) in (limits or {}).items()}
        self.costs = [
            Cost(LATENCY, name, self.latency),
            *(Cost(setting, name, model, most) for setting, (model, most) in others.items()),
        ]
        self.accuracy = JointAccuracy(self.space, accuracy, self._sums(terms.loss()))
        self.sums = (self.latency, *(model for model, _ in others.values()))
        self.problem = Problem(self.space, self.latency, self.accuracy, self.sums[1:])
        rows = [model.tables for model in self.sums]
        chain = chain_of_tables(
            self.space.cardinalities.tolist(), self.accuracy.tables, rows, self.space.derived, self.space.groups
        )
        bounds = np.array([cost.limit for cost in self.costs])
        self.method = Exact(self.problem, chain, settings, [Additive(rows=(row,)) for row in rows], bounds)

    def winner(self, budgets: Values) -> BestCode:
        """The most accurate code within budgets (K,), with the fastest plan of its SubNet that loses no more accuracy.

        If offloading does not pay, nothing is sent.
        """
        found = self.method.winner(budgets)
        return replace(found, code=self._least(found.code, budgets))

    def quickest(self, budgets: Values | None = None) -> Codes:
        """The fastest code; see `tasks.search.methods.Method`."""
        return self.method.quickest(budgets)

    def best(self) -> Codes:
        """The most accurate code, the fastest among equals; see `tasks.search.methods.Method`."""
        return self.method.best()

    def at_home(self, code: Codes) -> Codes:
        """The same SubNet on the coordinator alone."""
        found = code.copy()
        found[self.space.variables :] = self.space.cardinalities[self.space.variables :] - 1
        return found

    def _sums(self, tables: list[Table]) -> Sums:
        return Sums(self.space.cardinalities.tolist(), tables, self.space.derived)

    def _least(self, code: Codes, budgets: Values) -> Codes:
        """The SubNet of a code with the fastest devices and coding that lose no more accuracy."""
        lost = [*self.accuracy.losses.tables, Table.constant(1.0)]  # no loss is a budget, too
        costs = [lost, *(model.tables for model in self.sums[1:])]
        bounds = np.append(1.0 + self.accuracy.losses.predict(code[None])[0], budgets[1:])
        gain = [table.scaled(-1.0) for table in self._placing(code, self.latency.tables)]
        choices = self.space.cardinalities[self.space.variables :].tolist()
        chain = Chain(choices, gain, [self._placing(code, tables) for tables in costs])
        kept = np.isfinite(bounds)
        found = optimum(chain.view(np.flatnonzero(kept).tolist()), bounds[kept], tolerance=0.0)
        placed = code.copy()
        placed[self.space.variables :] = found.code
        pair = self.space.canonical_codes(np.stack([placed, self.at_home(code)]))
        placed_ms, home_ms = self.latency.predict(pair).tolist()
        as_good = home_ms <= placed_ms * (1 + TIE) and self.problem.within(pair[1:], budgets)[0]
        best: Codes = pair[1] if as_good else pair[0]
        return best

    def _placing(self, code: Codes, tables: Iterable[Table]) -> list[Table]:
        """Tables of the SubNet of a code, only over the devices of its segments and the coding."""
        variables, last = self.space.variables, self.space.coding
        known = with_derived(code[None], self.space.derived)[0].tolist()
        of_subnet = {column: value for column, value in enumerate(known) if not variables <= column <= last}
        left = (table.under(of_subnet) for table in tables)
        return [Table(tuple(column - variables for column in columns), values) for columns, values in left]
