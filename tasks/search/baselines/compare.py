"""The gain of winners over baselines, computed from measured points.

A point is a network with its latency and two accuracies. Networks are chosen by the first (validation images) and judged by
the second (test images), so that luck in choosing gains nothing. A budget takes the point with the best validation accuracy
within the budget; the *picks* are the points that some budget takes.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from solvers.front import hypervolume
from tasks.base.schemas.baselines import Against, AtBudget, Gains


class Point(NamedTuple):
    """A network: p50 [ms], accuracies as fractions."""

    ms: float
    known: float
    """Accuracy on the validation images; networks are chosen by it."""
    true: float
    """Accuracy on the test images; networks are judged by it."""


def picks(points: Sequence[Point]) -> list[Point]:
    """The points that some budget takes, by rising latency. Each has a higher validation accuracy than all faster points.

    Ties in accuracy go to the fastest point, ties in latency as well to the worst test accuracy.
    """
    found: list[Point] = []
    for point in sorted(points, key=lambda one: (one.ms, -one.known, one.true)):
        if not found or point.known > found[-1].known:
            found.append(point)
    return found


def taken(chosen: Sequence[Point], budget_ms: float) -> Point | None:
    """The pick that a budget takes; None if all are slower."""
    return next((point for point in reversed(chosen) if point.ms <= budget_ms), None)


def compare(winners: Sequence[Point], baselines: Mapping[str, Sequence[Point]], budgets_ms: Sequence[float]) -> Gains:
    """The winners against every baseline, at each budget and over all budgets. There is at least one winner and one budget.

    above_every: share of the budgets at which the winners are more accurate than every baseline. not_below_any: share at which
    they are at least as accurate. Hypervolumes are bounded by `reference_ms`, the latency of the largest budget, and by
    `reference_accuracy`, the lowest accuracy of any pick.
    """
    ours = picks(winners)
    others = {name: picks(points) for name, points in baselines.items()}
    reference_ms = max(budgets_ms)
    reference_accuracy = min(point.true for chosen in (ours, *others.values()) for point in chosen)

    def volume(chosen: Sequence[Point]) -> float:
        latency_ms, accuracy = (np.array([point[at] for point in chosen], np.float64) for at in (0, 2))
        return hypervolume(latency_ms, accuracy, reference_cost=reference_ms, reference_gain=reference_accuracy)

    rows = []
    for budget_ms in budgets_ms:
        own = taken(ours, budget_ms)
        rivals = {name: taken(chosen, budget_ms) for name, chosen in others.items()}
        accuracies = {name: None if point is None else point.true for name, point in rivals.items()}
        rows.append(AtBudget(budget_ms=budget_ms, winners=None if own is None else own.true, baselines=accuracies))
    return Gains(
        above_every=_share([all(_above(row, name) for name in others) for row in rows]),
        not_below_any=_share([all(_not_below(row, name) for name in others) for row in rows]),
        reference_ms=reference_ms,
        reference_accuracy=reference_accuracy,
        hypervolume=volume(ours),
        baselines={
            name: _against(name, len(baselines[name]), ours, chosen, rows, _ratio(volume(ours), volume(chosen)))
            for name, chosen in others.items()
        },
        budgets=tuple(rows),
    )


def _against(
    name: str,
    points: int,
    ours: Sequence[Point],
    chosen: Sequence[Point],
    rows: Sequence[AtBudget],
    ratio: float | None,
) -> Against:
    """The gain of the winners' picks over the picks of one baseline. points: number of the baseline's networks."""
    accuracy_gain, both = _accuracy_gain(rows, name)
    latency_gain, not_reached = _latency_gain(ours, chosen)
    return Against(
        points=points,
        picks=len(chosen),
        above=_share([_above(row, name) for row in rows]),
        not_below=_share([_not_below(row, name) for row in rows]),
        hypervolume_ratio=ratio,
        accuracy_gain_points=accuracy_gain,
        budgets_of_both=both,
        latency_gain=latency_gain,
        not_reached=not_reached,
    )


def _above(row: AtBudget, name: str) -> bool:
    """Whether the winners are more accurate than a baseline at a budget; true if only they have a network within it."""
    own, other = row.winners, row.baselines[name]
    return own is not None and (other is None or own > other)


def _not_below(row: AtBudget, name: str) -> bool:
    own, other = row.winners, row.baselines[name]
    return other is None or (own is not None and own >= other)


def _accuracy_gain(rows: Sequence[AtBudget], name: str) -> tuple[float | None, int]:
    """Mean difference [percentage points] over the budgets within which both have a network; the number of these budgets."""
    pairs = [(row.winners, row.baselines[name]) for row in rows]
    gains = [100 * (own - other) for own, other in pairs if own is not None and other is not None]
    return float(np.mean(gains)) if gains else None, len(gains)


def _latency_gain(ours: Sequence[Point], chosen: Sequence[Point]) -> tuple[float | None, int]:
    """Geometric mean of ratios: latency of a baseline's pick over the latency of the fastest winner at least as accurate.

    Picks are left out if a faster pick of the baseline is as accurate. The second value is the number of remaining picks
    whose accuracy no winner reaches.
    """
    ratios, best, asked = [], -np.inf, 0
    for point in chosen:
        if point.true <= best:
            continue
        best, asked = point.true, asked + 1
        as_good = [own.ms for own in ours if own.true >= point.true]
        if as_good:
            ratios.append(point.ms / min(as_good))
    mean = float(np.exp(np.mean(np.log(ratios)))) if ratios else None
    return mean, asked - len(ratios)


def _ratio(own: float, other: float) -> float | None:
    return own / other if other > 0 else None


def _share(found: Sequence[bool]) -> float:
    return float(np.mean(found))
