"""Replacements for winners whose measured latency misses their budget, or that another measured SubNet beats.

After a refinement, the next best of its measured candidates replaces the winner. Without a refinement, the search runs
again for a smaller budget: divided by the ratio of measured to predicted latency. Models of SubNets are timed by name
when winners are exported.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

import tailor_ir
from profiling_agents.messages import Measurement
from tailor_ir import Config
from tasks.base.schemas.exports import AS_GIVEN, Card, Latency, MeasuredLargest
from tasks.base.schemas.placed import OWN_CHOICES
from tasks.base.schemas.stored import Predicted
from tasks.base.schemas.winners import Candidate, Candidates, Front, Winner
from tasks.evaluation.conversion import onnx_of
from tasks.export.files import Builder
from tasks.export.running import TimedSubNet
from tasks.measuring.subnets import Subject, implementations_of
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.search.methods import Method
from tasks.search.problem import Problem
from tasks.search.settings import Settings as SearchSettings
from tasks.search.stage import Target, costs_of, method_of, rows_of

LARGEST = "largest"
OWN_CHOICES_OF = "by the runtime's own choices"
IN_FP32 = "in fp32"
AS_EXPORTED = "as exported"
ALIGNED = "with aligned images"


def subjects_of(builder: Builder, configs: Mapping[str, Config]) -> dict[str, Subject]:
    """The largest SubNet and some others (by digest), by name.

    Each also without its chosen implementations, if it has some; with aligned images if its files align them.
    """
    if builder.in_int8:
        return _quantised(builder, configs)
    net, named = builder.net, {LARGEST: builder.net.max_config, **configs}
    subjects = {name: Subject(net.space.digest(config), net, config) for name, config in named.items()}
    for name in configs.keys() & builder.adapted.keys():
        if aligning := builder.adapted[name].aligning:
            subjects[name] = replace(subjects[name], key=f"{name} {ALIGNED}", statistics=aligning)
    own = [name for name, config in named.items() if implementations_of(net, config, builder.implementations)]
    keys = {f"{name} {OWN_CHOICES_OF}": subjects[name] for name in own}
    return subjects | {key: replace(one, key=key, implementations=OWN_CHOICES) for key, one in keys.items()}


def _quantised(builder: Builder, configs: Mapping[str, Config]) -> dict[str, Subject]:
    """The others by their exported files, some layers of which may be in fp32; the largest also in fp32."""
    net, exact = builder.net, f"{LARGEST} {IN_FP32}"
    largest = Subject(net.space.digest(net.max_config), net, net.max_config)

    def file(config: Config) -> Callable[[], bytes]:
        return lambda: builder.quantised(config).content

    return {
        LARGEST: largest,
        exact: replace(largest, key=exact, content=lambda: onnx_of(net, net.max_config, weights=False)),
        **{
            name: Subject(f"{name} {AS_EXPORTED}", net, config, content=file(config))
            for name, config in configs.items()
        },
    }


def timed(measured: Mapping[str, Measurement], digest: str) -> TimedSubNet:
    """The measurements of one SubNet."""
    return TimedSubNet(chosen=measured[digest], own=measured.get(f"{digest} {OWN_CHOICES_OF}"))


def largest_of(measured: Mapping[str, Measurement]) -> MeasuredLargest:
    """The measurement of the largest SubNet beside the others."""
    fields = {"own_choices": OWN_CHOICES_OF, "fp32": IN_FP32}
    others = {field: measured.get(f"{LARGEST} {name}") for field, name in fields.items()}
    return MeasuredLargest(
        latency=latency_of(measured[LARGEST]),
        **{field: latency_of(one) for field, one in others.items() if one is not None},
    )


def latency_of(measured: Measurement) -> Latency:
    """A measurement without its key."""
    return Latency.model_validate(measured.model_dump(exclude={"key"}))


MARGIN = 0.01
"""Share of a budget that is kept free, since measurements of one SubNet vary by that much."""

Tried = Mapping[str, float]
"""Measured latencies [ms] of SubNets for a budget, by digest."""


class Substitutes(Protocol):
    """A source of other SubNets for a budget."""

    def another(self, rows: Sequence[Winner], tried: Tried) -> Winner | None:
        """A SubNet that likely keeps the budget that none of `rows` (latest last) keeps; None if there is none."""
        ...


class SearchedSubstitutes:
    """The best SubNets by prediction within a smaller budget and the limits of the search."""

    def __init__(self, supernet: Path, target: Target, accuracy: AccuracyPredictor, front: Front) -> None:
        self._net, self._settings = tailor_ir.load(supernet), SearchSettings.model_validate(front.settings)
        self._costs = costs_of(self._net, [target], self._settings)
        others = tuple(cost.model for cost in self._costs[1:])
        self._problem = Problem(self._net.space, target.latency, accuracy, others)
        self._limits = np.array([cost.limit for cost in self._costs])

    def another(self, rows: Sequence[Winner], tried: Tried) -> Winner | None:
        """The winner of the search for the budget divided by the largest ratio of measured to predicted latency."""
        factor = max(tried[row.digest] / row.predicted_ms for row in rows)
        budgets = np.array([_reduced_ms(rows[0], factor), *self._limits[1:]])
        if not self._problem.evaluate(self._method.quickest()[None]).within(budgets)[0]:
            return None
        code = self._method.winner(budgets).code
        (found,) = rows_of(self._net, self._problem, self._costs, code[None])
        return None if found["digest"] in tried else _in_place_of(rows[0], Predicted.model_validate(found))

    @cached_property
    def _method(self) -> Method:
        return method_of(self._problem, self._net.space, self._settings, self._limits)


class MeasuredSubstitutes:
    """The most accurate candidates of a refinement, by its measurements."""

    def __init__(self, candidates: Candidates) -> None:
        # the larger of the measured latency and the latency smoothed over similar SubNets
        self._known = {
            row.digest: (row, max(row.latency.p50_ms, row.smoothed_ms or 0.0))
            for row in candidates.candidates
            if row.accuracy is not None and row.latency.p50_ms is not None
        }

    def another(self, rows: Sequence[Winner], tried: Tried) -> Winner | None:
        """The best within the budget divided by the largest ratio of the latencies measured now and in the refinement."""
        factor = max(1.0, *(tried[row.digest] / self._known[row.digest][1] for row in rows))
        most_ms = _reduced_ms(rows[0], factor)
        left = [row for row, ms in self._known.values() if ms <= most_ms and row.digest not in tried]
        if not left:
            return None
        best = max(left, key=lambda row: (row.accuracy or 0.0, -(row.loss or 0.0), -self._known[row.digest][1]))
        return _in_place_of(rows[0], best)


def _reduced_ms(row: Winner, factor: float) -> float:
    return (1 - MARGIN) * row.budget_ms / factor


def _in_place_of(row: Winner, found: Predicted) -> Winner:
    """The SubNet as the winner of a row's budget."""
    measured = {"measured_accuracy": found.accuracy} if isinstance(found, Candidate) else {}
    return Winner.model_validate({"budget_ms": row.budget_ms, **as_predicted(found).to_json(), **measured})


def as_predicted(found: Predicted) -> Predicted:
    """The SubNet with its predictions alone."""
    own = found.to_json()
    return Predicted.model_validate({name: own[name] for name in Predicted.model_fields if name in own})


def replaced(
    winners: Sequence[Winner],
    substitutes: Callable[[], Substitutes] | None,
    times: int,
    measure: Callable[[Mapping[str, Config]], dict[str, Measurement]],
    kept: Collection[str] = (),
) -> tuple[list[Winner], dict[str, Measurement]]:
    """The winners, with replacements for those that miss their budgets; and all measurements, by digest.

    substitutes: called at the first miss; None: nothing is replaced. times: most substitutes per budget. measure: measures
    SubNets by digest. If no SubNet keeps a budget, its winner stays. kept: digests of winners that always stay.
    """
    rows, source = [[winner] for winner in winners], None
    while True:
        measured = measure({row.digest: row.config for own in rows for row in own})
        known_ms = {digest: one.p50_ms for digest, one in measured.items() if one.p50_ms is not None}
        asked = [
            own
            for own in rows
            if len(own) <= times
            and own[0].digest not in kept
            and all(row.digest in known_ms and not _keeps(row, known_ms) for row in own)
        ]
        if substitutes is None or not asked:
            break
        source = source or substitutes()
        found = [(own, source.another(own, {row.digest: known_ms[row.digest] for row in own})) for own in asked]
        for own, another in found:
            own += [another] if another is not None else []
        if not any(another for _, another in found):
            break
    if substitutes is None or not times:
        return list(winners), measured
    every = [row for own in rows for row in own]
    return [own[0] if own[0].digest in kept else _chosen(own, every, known_ms) for own in rows], measured


def whole_network(front: Front, rows: Sequence[Winner], largest_ms: float | None) -> tuple[Winner, ...]:
    """The largest SubNet for the smallest budget that it keeps as measured, if it wins none; () if no budget is free for it.

    rows: a SubNet for each budget. largest_ms: its p50; None if it was not measured. A search over several devices has one
    winner for all of them, which stays.
    """
    kept_ms = [row.budget_ms for row in rows if largest_ms is not None and largest_ms <= row.budget_ms]
    is_free = all(row.budgets_ms is None and row.digest != front.largest.digest for row in rows)
    if not kept_ms or not is_free or not is_within_limits(front):
        return ()
    return (Winner.model_validate({"budget_ms": min(kept_ms), **front.largest.to_json()}),)


def is_within_limits(front: Front) -> bool:
    """Whether the largest SubNet is within the limits of the search."""
    row, limits = front.largest, SearchSettings.model_validate(front.settings).limits_of(front.device).given
    found = {
        "parameters": row.parameters,
        "macs": row.macs,
        "memory_mib": row.predicted_memory_mib,
        "energy_mj": row.predicted_energy_mj,
    }
    return all((value := found[name]) is not None and value <= limit for name, limit in limits.items())


def better(others: Sequence[Winner], rows: Sequence[Winner], share: Mapping[str, float]) -> tuple[Winner, ...]:
    """The SubNets of `others` that are more accurate than the SubNet of a budget that they keep. share: accuracies by
    digest.
    """

    def is_better(one: Winner) -> bool:
        return any(share[row.digest] < share[one.digest] for row in rows if row.budget_ms >= one.budget_ms)

    return tuple(filter(is_better, others))


def best_measured(
    rows: Sequence[Winner], cards: Mapping[str, Card], kept: Collection[str] = (), others: Sequence[Winner] = ()
) -> list[Winner]:
    """For each budget the most accurate of all exported SubNets that keep it, by the files' own measurements.

    rows: a SubNet for each budget. cards: by digest; accuracies are those of the first split. others: exported beside them. The
    SubNet of a row stays if none is better (the network as it was given: if it is as good), if it is in `kept`, or if it is one
    for several devices together. A SubNet with failed files replaces none.
    """
    good = [row for row in (*rows, *others) if all(file.state == "ok" for file in cards[row.digest].files.values())]

    def keeps(row: Winner, budget_ms: float) -> bool:
        ms = cards[row.digest].latency.p50_ms
        return ms is not None and ms <= budget_ms

    def rank(row: Winner) -> tuple[float, float]:
        card = cards[row.digest]
        return next(iter(card.accuracy.values())), -(card.latency.p50_ms or 0.0)

    def winner(row: Winner) -> Winner:
        if row.digest in kept or row.budgets_ms is not None:
            return row
        able = [one for one in good if keeps(one, row.budget_ms)]
        found = max(able, key=rank, default=row)
        if keeps(row, row.budget_ms) and rank(found)[0] <= rank(row)[0]:
            found = row
        found = next((one for one in able if one.digest == AS_GIVEN and rank(one) >= rank(found)), found)
        return row if found.digest == row.digest else found.model_copy(update={"budget_ms": row.budget_ms})

    return [winner(row) for row in rows]


def _keeps(row: Winner, known_ms: Mapping[str, float]) -> bool:
    return row.digest in known_ms and known_ms[row.digest] <= row.budget_ms


def _chosen(own: Sequence[Winner], every: Sequence[Winner], known_ms: Mapping[str, float]) -> Winner:
    """The winner of one budget: the first of its own SubNets that keeps it; else the best SubNet of another budget that
    does.
    """
    kept = [row for row in own if _keeps(row, known_ms)]
    if kept or own[0].digest not in known_ms:
        return next(iter(kept), own[0])
    others = [row.model_copy(update={"budget_ms": own[0].budget_ms}) for row in every]
    return max(
        (row for row in others if _keeps(row, known_ms)),
        key=lambda row: (row.accuracy, row.predicted_score),
        default=own[0],
    )
