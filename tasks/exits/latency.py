"""The latency of leaving at each exit on a device, and the expected latency of SubNets whose samples leave at known rates.

SubNets that end at an exit are timed as whole networks, each with only its own head. A SubNet with all exits runs in segments
and also runs the heads of earlier exits. These heads are not part of the timed SubNets: their latencies are the sums of their
operators in the device's table, corrected as in every prediction. Each further segment is one more run, which adds the
correction's offset.

An operator behind exit k runs for the share of samples that reach it, so it is weighted by this share. With fixed rates this is
a table for each operator, as without exits, and exact search stays exact. Rates are measured on one SubNet with its thresholds.
Other SubNets are assumed to have the same rates; samples of far less accurate SubNets will leave later.

Legend: E exits, the last is the whole network.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from adaptive_runtime.exits import Thresholds, reach
from profiling_agents.messages import Measurement
from solvers.tables import Codes, Table, Values
from tailor_ir import Config, Space, SuperNet
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.stored import Predicted
from tasks.base.schemas.winners import Front
from tasks.exits.policies import ExpectedWinner, WeighedSubnet
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.latency import LatencyPredictor
from tasks.prediction.layers import Layers
from tasks.prediction.sums import Sums
from tasks.search.problem import Problem
from tasks.search.settings import Settings as SearchSettings
from tasks.search.stage import Target, costs_of, method_of, rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitTimes:
    """Latencies of one SubNet. alone_ms_E: measured up to each exit, with no other head.

    passed_ms_E: latency of passing each exit's head. energies_mj_E: energies measured like alone_ms_E, if the device has a
    sensor.
    """

    alone_ms_E: Values
    passed_ms_E: Values
    energies_mj_E: Values | None = None

    @property
    def latency_ms_E(self) -> Values:
        """Latency up to the answer of each exit, including the heads on the way [ms]."""
        passed = [0.0, *accumulate(self.passed_ms_E[:-1].tolist())]
        return self.alone_ms_E + np.array(passed)

    def of_chain(self, thresholds: Thresholds) -> "ExitTimes":
        """The times of the exported chain, which has only the heads that thresholds need."""
        there = np.isin(np.arange(len(self.passed_ms_E)), thresholds.needed)
        return replace(self, passed_ms_E=np.where(there, self.passed_ms_E, 0.0))

    @property
    def whole_ms(self) -> float:
        """Latency of the SubNet without exits [ms]."""
        return float(self.alone_ms_E[-1])

    def segments_mj(self, alone_mj_E: Values) -> Values:
        """Energy of each segment with its head [mJ]; heads on the way take energy in proportion to their time."""
        until_mj_E = alone_mj_E * self.latency_ms_E / self.alone_ms_E
        return np.diff(until_mj_E, prepend=0.0)


def heads_ms(layers: Layers, exits: Sequence[Config]) -> Values:
    """Predicted latency of the head of each exit [ms]; 0 for the last exit, which has none. UserError: no latency is known."""
    whole = layers.of(exits[-1])
    found = []
    for config in exits:
        own = [layer for number, layer in layers.of(config).items() if number not in whole]
        unknown = [layer.title for layer in own if layer.predicted_ms is None]
        if unknown:
            raise UserError("exits", f"no latency of {unknown[0]} in the head of an exit", next_step="profile again")
        found.append(sum(layer.predicted_ms or 0.0 for layer in own))
    return np.array(found)


def times_of(layers: Layers, exits: Sequence[Config], measured: Sequence[Measurement]) -> ExitTimes:
    """The times from the measurements of a SubNet up to each exit. UserError: a measurement failed."""
    for one in measured:
        if one.p50_ms is None:
            raise UserError("exits", f"exit {one.key}: {one.reason}")
    energies = [one.energy_mj for one in measured]
    passed_ms_E = heads_ms(layers, exits) + max(0.0, layers.offset_ms)
    passed_ms_E[-1] = 0.0
    return ExitTimes(
        alone_ms_E=np.array([one.p50_ms for one in measured], np.float64),
        passed_ms_E=passed_ms_E,
        energies_mj_E=None if None in energies else np.array(energies, np.float64),
    )


EXIT = "exit"
"""The kind, and the name, of the exit variable."""
KEPT = set(Predicted.model_fields)
"""The fields of a winner that do not depend on its budget."""


def exits_of(space: Space) -> tuple[str, ...]:
    """Names of all exits in order of depth; the last is the whole network. Empty if the space has no exits."""
    found = (variable.choices for variable in space.variables if variable.kind == EXIT)
    return tuple(map(str, next(found, ())))


def with_exit(space: Space, config: Config, exit_: str) -> Config:
    """The SubNet up to one exit."""
    return space.canonical({**config, EXIT: exit_})


def passing_subnets(net: SuperNet, front: Front, count: int) -> list[Config]:
    """At most `count` winners that pass an exit before their own, the most accurate first, evenly spread over the front.

    They are chosen from the whole SubNets among these; if there are none, from all of them.
    """
    rows = sorted(front.winners, key=lambda row: row.accuracy)
    passing = {net.space.digest(row.config): row.config for row in rows if len(net.exits(row.config)) > 1}
    last = exits_of(net.space)[-1]
    chosen = [config for config in passing.values() if config[EXIT] == last] or list(passing.values())
    places = np.linspace(len(chosen) - 1, 0, min(count, len(chosen))).round().astype(int)
    return [chosen[place] for place in places.tolist()]


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
    plain = {row.budget_ms: row for row in front.winners if row.predicted_ms <= row.budget_ms}
    rows = []
    columns = zip(rows_of(net, problem, costs, codes), reached, most_ms, whole_N.tolist(), strict=True)
    for row, budget_ms, whole_ms, early in columns:
        own = plain.get(budget_ms)
        if own is not None and own.predicted_score > row["predicted_score"]:
            row, whole_ms, early = own.model_dump(include=KEPT, exclude_unset=True), own.predicted_ms, False
        rows.append(ExpectedWinner(**row, budget_ms=budget_ms, whole_ms=whole_ms, early=early))
    return tuple(rows)
