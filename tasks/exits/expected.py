"""Expected latency of whole SubNets whose samples leave at known rates: a sum over operators, like any latency.

An operator behind exit k runs for the share of samples that reach it, so it is weighted by this share. With fixed rates this is
a table for each operator, as without exits, and exact search stays exact. Rates are measured on one SubNet with its thresholds.
Other SubNets are assumed to have the same rates until they have their own thresholds; samples of far less accurate SubNets will
leave later.

Legend: E exits, the last is the whole network.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptive_runtime.exits import reach
from solvers.tables import Codes, Table, Values
from tailor_ir import Space, SuperNet
from tasks.base.progress import Progress
from tasks.base.schemas.front import Front, Winner
from tasks.base.schemas.subnets import Predicted
from tasks.exits.passing import EXIT, exits_of, with_exit
from tasks.exits.policies import ExpectedWinner, WeighedSubnet
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.latency import LatencyPredictor
from tasks.prediction.sums import Sums
from tasks.search.problem import Problem
from tasks.search.results import rows_of
from tasks.search.settings import Settings as SearchSettings
from tasks.search.stage import Target, costs_of, method_of


@dataclass(frozen=True, slots=True)
class ExpectedLatency:
    """Predicts the mean latency [ms] of codes (n, V) of whole SubNets; codes that end at an exit keep their plain latency.

    column: column of the exit variable. rates_E: share of samples that leave at each exit. passed_ms_E: latency of passing each
    exit's head, for the SubNet with these rates.
    """

    latency: LatencyPredictor
    column: int
    rates_E: Values
    passed_ms_E: Values

    def predict(self, codes: Codes) -> Values:
        """Expected latencies (n,) [ms]. UserError when an operator of a SubNet has no latency."""
        found = self.latency.predict(codes)
        whole = codes[:, self.column] == len(self.rates_E) - 1
        if whole.any():
            found[whole] = self.heads_ms
            for exit_, rate in enumerate(self.rates_E.tolist()):
                if rate > 0:
                    until = codes[whole].copy()
                    until[:, self.column] = exit_
                    found[whole] += rate * self.latency.predict(until)
        return found

    @property
    def heads_ms(self) -> float:
        """Mean latency of the heads that samples pass without leaving [ms]."""
        return float((reach(self.rates_E) - self.rates_E) @ self.passed_ms_E)

    def as_sums(self) -> LatencyPredictor | None:
        """The same latency as sums of tables; None if derived columns decide the presence of operators by exits."""
        if self.latency.sums.derived or self.latency.unknown.derived:
            return None
        heads = np.zeros(len(self.rates_E))
        heads[-1] = self.heads_ms
        tables = [*map(self._weighed, self.latency.sums.tables), Table((self.column,), heads)]
        sums = Sums(self.latency.sums.cardinalities, tables)
        return LatencyPredictor(sums, self.latency.correction, self.latency.unknown, self.latency.missing)

    def _weighed(self, table: Table) -> Table:
        """A table in which the last exit's value is the mean over all exits, weighted by rates."""
        if self.column not in table.columns:
            return table
        axis = table.columns.index(self.column)
        values = np.moveaxis(np.array(table.values, np.float64), axis, -1)
        values[..., -1] = values @ self.rates_E
        return Table(table.columns, np.moveaxis(values, -1, axis))


def column_of(space: Space) -> int:
    """The column of the exit variable."""
    return next(column for column, variable in enumerate(space.variables) if variable.kind == EXIT)


def weighed_by(latency: LatencyPredictor, space: Space, rates: Sequence[float], passed_ms_E: Values) -> ExpectedLatency:
    """Expected latency by the rates of a SubNet with thresholds, up to its full answer; no sample goes further."""
    exits = len(passed_ms_E)
    rates_E = np.array([*rates, *[0.0] * (exits - len(rates))])
    return ExpectedLatency(latency, column_of(space), rates_E, passed_ms_E)


def weighed_subnets(
    space: Space, expected: ExpectedLatency, accuracy: AccuracyPredictor, front: Front
) -> tuple[WeighedSubnet, ...]:
    """The winners of a front as whole SubNets, with their predicted largest and mean latency."""
    last = exits_of(space)[-1]
    whole = [with_exit(space, row.config, last) for row in front.winners]
    found = {space.digest(config): config for config in whole}
    codes = space.canonical_codes(space.encode(list(found.values())))
    columns = (expected.latency.predict(codes), expected.predict(codes), accuracy.predict(codes))
    rows = zip(found.items(), *(column.tolist() for column in columns), strict=True)
    return tuple(
        WeighedSubnet(digest=digest, config=config, whole_ms=whole_ms, expected_ms=expected_ms, accuracy=share)
        for (digest, config), whole_ms, expected_ms, share in rows
    )


def expected_winners(
    net: SuperNet,
    target: Target,
    expected: ExpectedLatency,
    accuracy: AccuracyPredictor,
    front: Front,
    progress: Progress,
) -> tuple[ExpectedWinner, ...]:
    """The best SubNet for each budget of a front if whole SubNets are ranked by their expected latency.

    Uses the method and the limits of the search, but the genetic method if expected latencies are no sums of tables. A winner
    of the front stays if it is better on its own, without heads on the way.
    """
    sums = expected.as_sums()
    settings = SearchSettings.model_validate({**front.settings, "accuracy": "predicted"})
    if sums is None:
        settings = settings.model_copy(update={"method": "genetic"})
    costs = costs_of(net, [replace(target, latency=sums or expected)], settings)
    latency, *others = (cost.model for cost in costs)
    problem = Problem(net.space, latency, accuracy, tuple(others))
    limits = np.array([cost.limit for cost in costs])
    method = method_of(problem, net.space, settings, limits)
    fastest = problem.evaluate(method.quickest()[None])
    budgets = [row.budget_ms for row in front.winners]
    reached = [ms for ms in budgets if fastest.within(np.array([ms, *limits[1:]]))[0]]
    found = []
    with progress.bar("search by expected latency", len(reached)) as bar:
        for budget_ms in reached:
            found.append(method.winner(np.array([budget_ms, *limits[1:]])).code)
            bar.advance()
    if not found:
        return ()
    codes = np.stack(found)
    heads_ms = expected.passed_ms_E.sum()
    whole_N = codes[:, expected.column] == len(expected.rates_E) - 1
    most_ms = (expected.latency.predict(codes) + heads_ms * whole_N).tolist()
    columns = zip(rows_of(net, problem, costs, codes), reached, most_ms, whole_N.tolist(), strict=True)
    rows = [
        ExpectedWinner.model_validate({**row, "budget_ms": budget_ms, "whole_ms": whole_ms, "early": whole})
        for row, budget_ms, whole_ms, whole in columns
    ]
    plain = {row.budget_ms: row for row in front.winners if row.predicted_ms <= row.budget_ms}
    return tuple(_better(row, plain.get(row.budget_ms)) for row in rows)


def _better(found: ExpectedWinner, plain: Winner | None) -> ExpectedWinner:
    """The SubNet that the search by expected latency found, or the plain winner if its predicted score is higher."""
    if plain is None or found.predicted_score >= plain.predicted_score:
        return found
    own = plain.model_dump(include=set(Predicted.model_fields), exclude_unset=True)
    return ExpectedWinner(**own, budget_ms=plain.budget_ms, whole_ms=plain.predicted_ms, early=False)
