"""The stage of baselines: networks chosen and evaluated once for all devices, timed on each, and compared with winners.

Winners of the search are evaluated and timed again beside the baselines, so that both sides have the same images and
the same load on the device.

The gain of winners is computed from measured points. A point is a network with its latency and two accuracies. Networks
are chosen by the first (validation images) and judged by the second (test images), so that luck in choosing gains
nothing. A budget takes the point with the best validation accuracy within the budget; the *picks* are the points that
some budget takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tailor_ir
from profiling_agents.messages import Measurement, MeasureSettings
from solvers.front import hypervolume
from tailor_ir import Config, SuperNet
from tasks.base.artifacts import NO_STORE, SubNetStore, digest_of
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.placed import OWN_CHOICES
from tasks.base.schemas.stored import StageResult
from tasks.base.schemas.winners import (
    BASELINES_FILE,
    COMPARED_FILE,
    Against,
    AtBudget,
    BaselineNetwork,
    Baselines,
    Compared,
    Evaluated,
    EvaluatedWinner,
    Gains,
    TimedNetwork,
    TimedWinner,
)
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData, accuracies, accuracy_lines
from tasks.measuring import in_network as insitu
from tasks.measuring.settings import RepeatedTimingSettings
from tasks.measuring.subnets import LeasedDevice, Subject, SubNetMeter
from tasks.search import read_front
from tasks.search.baselines.subnets import Trained, by_macs, frozen, random, uniform
from tasks.search.problem import Codes, Values
from tasks.search.settings import MACS, RANDOM, UNIFORM, BaselineSettings
from tasks.search.settings import Settings as SearchSettings
from tasks.search.stage import SearchedSuperNet


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
    ours, others = picks(winners), {name: picks(points) for name, points in baselines.items()}
    reference_ms = max(budgets_ms)
    reference_accuracy = min(point.true for chosen in (ours, *others.values()) for point in chosen)

    def volume(chosen: Sequence[Point]) -> float:
        latency_ms, accuracy = (np.array([point[at] for point in chosen], np.float64) for at in (0, 2))
        return hypervolume(latency_ms, accuracy, reference_cost=reference_ms, reference_gain=reference_accuracy)

    def at_budgets(chosen: Sequence[Point]) -> Values:
        """The accuracy of the pick at each budget; −inf if all are slower."""
        found = (taken(chosen, budget_ms) for budget_ms in budgets_ms)
        return np.array([-np.inf if point is None else point.true for point in found])

    own, rivals = at_budgets(ours), {name: at_budgets(chosen) for name, chosen in others.items()}
    area, areas = volume(ours), {name: volume(chosen) for name, chosen in others.items()}
    return Gains(
        above_every=float(np.mean(np.all([own > other for other in rivals.values()], axis=0))),
        not_below_any=float(np.mean(np.all([own >= other for other in rivals.values()], axis=0))),
        reference_ms=reference_ms,
        reference_accuracy=reference_accuracy,
        hypervolume=area,
        baselines={
            name: Against(
                points=len(baselines[name]),
                picks=len(chosen),
                above=float(np.mean(own > rivals[name])),
                not_below=float(np.mean(own >= rivals[name])),
                hypervolume_ratio=area / areas[name] if areas[name] > 0 else None,
                **_accuracy_gain(own, rivals[name]),
                **_latency_gain(ours, chosen),
            )
            for name, chosen in others.items()
        },
        budgets=tuple(
            AtBudget(
                budget_ms=budget_ms,
                winners=_known(accuracy),
                baselines={name: _known(values[at]) for name, values in rivals.items()},
            )
            for at, (budget_ms, accuracy) in enumerate(zip(budgets_ms, own, strict=True))
        ),
    )


def _known(accuracy: float) -> float | None:
    return float(accuracy) if np.isfinite(accuracy) else None


def _accuracy_gain(own: Values, other: Values) -> dict[str, Any]:
    """Mean difference [percentage points] over the budgets within which both have a network; the number of these budgets."""
    both = np.isfinite(own) & np.isfinite(other)
    gain = float(np.mean(100 * (own[both] - other[both]))) if both.any() else None
    return {"accuracy_gain_points": gain, "budgets_of_both": int(both.sum())}


def _latency_gain(ours: Sequence[Point], chosen: Sequence[Point]) -> dict[str, Any]:
    """Geometric mean of ratios: latency of a baseline's pick over the latency of the fastest winner at least as accurate.

    Picks are left out if a faster pick of the baseline is as accurate. not_reached: the number of remaining picks whose
    accuracy no winner reaches.
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
    return {"latency_gain": mean, "not_reached": asked - len(ratios)}


TIMED_FILE = "timed.jsonl"
IN_SITU_FILE = "in_situ_{}.jsonl"
EVALUATED_FILE = "evaluated_{}.jsonl"
NETWORKS_FOLDER = "networks"
SUPERNET = "supernet"
KNOWN, TRUE = "validation", "test"
"""The splits by which networks are chosen and judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRequest:
    """The baselines of a SuperNet. search: how SubNets with few MACs are found. networks: those that are no SubNets.

    data: with the validation images of `searched`. fronts: `front.json` by device.
    """

    settings: BaselineSettings
    search: SearchSettings
    searched: SearchedSuperNet
    data: DataSettings
    networks: Sequence[Trained]
    fronts: Mapping[str, Path]


def choose(request: BaselineRequest, out: Path, progress: Progress) -> StageResult:
    """Find the baselines, evaluate them and the winners of all devices; writes and returns `baselines.json`.

    `rows` has a row for each network of each baseline, with its SubNet's config or the folder of its separate network in `out`;
    `winners` has the winners of each device. Accuracies are measured on the validation and the test images, with BatchNorm
    recalibrated, or taken from the store. A second call in the same folder resumes.
    """
    searched, store = request.searched, request.searched.store
    net = tailor_ir.load(searched.supernet)
    splits = load_splits(request.data)
    images = {KNOWN: searched.images, TRUE: searched.images.of(splits["test"], limited=False)}
    winners = {device: read_front(front).winners for device, front in request.fronts.items()}
    count = max(map(len, winners.values()))
    codes: dict[str, Codes] = {}
    if request.settings.uniform:
        codes[UNIFORM] = uniform(net.space)
    if request.settings.random:
        codes[RANDOM] = random(net.space, request.settings.random, np.random.default_rng(request.settings.seed))
    if request.settings.macs:
        codes[MACS] = by_macs(net, searched.accuracy, request.search, count, progress)
    subnets = [(name, net.space.decode(code)) for name, rows in codes.items() for code in rows]
    every = [*(config for _, config in subnets), *(row.config for rows in winners.values() for row in rows)]
    found = _evaluated(net, searched.supernet, every, images, out, progress, store)
    networks = [
        BaselineNetwork(baseline=name, network=None, **found[net.space.digest(config)].to_json())
        for name, config in subnets
    ]
    for number, network in enumerate(request.networks):
        folder = out / NETWORKS_FOLDER / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        own = frozen(network, splits["train"], folder / SUPERNET)
        (row,) = _evaluated(own, folder / SUPERNET, [{}], images, folder, progress, store).values()
        described = row.to_json() | {"name": network.name, "digest": digest_of(folder / SUPERNET)}
        place = f"{NETWORKS_FOLDER}/{number}/{SUPERNET}"
        networks.append(BaselineNetwork(baseline=network.baseline, network=place, **described))
    chosen = {
        device: tuple(
            EvaluatedWinner(
                budget_ms=row.budget_ms, chosen_ms=row.measured_ms, **found[net.space.digest(row.config)].to_json()
            )
            for row in rows
        )
        for device, rows in winners.items()
    }
    return Baselines(rows=tuple(networks), winners=chosen).write(out / BASELINES_FILE)


def _evaluated(
    net: SuperNet,
    supernet: Path,
    configs: Sequence[Config],
    images: Mapping[str, EvaluationData],
    out: Path,
    progress: Progress,
    store: SubNetStore,
) -> dict[str, Evaluated]:
    """SubNets by digest, with their accuracy on each split."""
    net.elastic.to(images[KNOWN].device)
    by_digest = {net.space.digest(config): dict(config) for config in configs}
    shares: dict[str, dict[str, float]] = {digest: {} for digest in by_digest}
    for split, data in images.items():
        lines = accuracy_lines(store, supernet, split, data, out / EVALUATED_FILE.format(split), progress)
        measured = accuracies(net, list(by_digest.values()), data, lines, progress, f"evaluate baselines, {split}")
        for digest, one in zip(by_digest, measured, strict=True):
            shares[digest][split] = one.share
    return {
        digest: Evaluated(
            name=digest,
            digest=digest,
            config=config,
            macs=int(net.macs(config)),
            parameters=int(net.parameters(config)),
            accuracy=shares[digest],
        )
        for digest, config in by_digest.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """Baselines to be timed beside winners. baselines: the folder of `choose`. store: gets the latencies.

    in_situ: how the layers of networks that are no SubNets are timed, to choose implementations of their operators; None: these
    have the runtime's own choices.
    """

    supernet: Path
    baselines: Path
    timing: RepeatedTimingSettings
    in_situ: MeasureSettings | None = None
    store: SubNetStore = NO_STORE


def compare_on(device: LeasedDevice, request: ComparisonRequest, out: Path, progress: Progress) -> StageResult:
    """Time the baselines and the winners of one device on it; writes and returns `compared.json`.

    Both sides are always timed here, side by side. A second call in the same folder resumes. The SuperNet's operators have the
    device's implementations; those of other networks are chosen here. UserError when no winner can be measured.
    """
    net, timing, in_situ = tailor_ir.load(request.supernet, batch=device.batch), request.timing, request.in_situ
    chosen = Baselines.read(request.baselines / BASELINES_FILE)
    rows, winners = chosen.rows, chosen.winners[device.name]

    def own(row: BaselineNetwork) -> Subject:
        """A network that is no SubNet, with the implementations that are fastest within it."""
        other = tailor_ir.load(request.baselines / str(row.network), batch=device.batch)
        if in_situ is None:
            return Subject(row.digest, other, row.config, OWN_CHOICES)
        lines = out / IN_SITU_FILE.format(row.digest)
        bench = insitu.Bench(device.client, in_situ, "", timing.limits, lines, progress)
        return Subject(row.digest, other, row.config, insitu.chosen_in(other, bench))

    subjects = {net.space.digest(net.max_config): Subject(net.space.digest(net.max_config), net, net.max_config)}
    subnets = [*winners, *(row for row in rows if not row.network)]
    subjects |= {row.digest: Subject(row.digest, net, row.config) for row in subnets}
    subjects |= {row.digest: own(row) for row in rows if row.network}
    meter = SubNetMeter(net, device.client, timing.measure, timing.limits, timing.rounds, device.implementations)
    lines = meter.lines(request.store, request.supernet, out / TIMED_FILE, progress, anew=True)
    measured = meter.measure_all(list(subjects.values()), lines, progress, "measure baselines")
    timed = {one.key: one for one in measured}

    def state(row: BaselineNetwork | EvaluatedWinner) -> dict[str, Any]:
        one = timed[row.digest]
        return {**row.to_json(), "measured_ms": one.p50_ms, "reason": one.reason}

    timed_rows = tuple(TimedNetwork(**state(row)) for row in rows)
    timed_winners = tuple(TimedWinner(**state(row), within_budget=_keeps(timed[row.digest], row)) for row in winners)
    if not any(row.measured_ms for row in timed_winners):
        raise UserError("baselines", f"no winner can be measured on '{device.name}': {timed_winners[0].reason}")
    return _compared(device.name, timed_rows, timed_winners).write(out / COMPARED_FILE)


def _keeps(measured: Measurement, row: EvaluatedWinner) -> bool:
    return measured.p50_ms is not None and measured.p50_ms <= row.budget_ms


def _compared(device: str, rows: tuple[TimedNetwork, ...], winners: tuple[TimedWinner, ...]) -> Compared:
    """The gain of the winners over the networks of each baseline."""
    names = dict.fromkeys(row.baseline for row in rows)
    points = {name: _points([row for row in rows if row.baseline == name]) for name in names}
    gains = compare(_points(winners), points, sorted({row.budget_ms for row in winners}))
    when_chosen = [row.chosen_ms <= row.budget_ms for row in winners if row.chosen_ms is not None]
    return Compared(
        **gains.to_json(),
        device=device,
        within_budget=float(np.mean([row.within_budget for row in winners])),
        within_budget_when_chosen=float(np.mean(when_chosen)) if when_chosen else None,
        rows=rows,
        winners=winners,
    )


def _points(rows: Sequence[TimedNetwork | TimedWinner]) -> list[Point]:
    return [
        Point(row.measured_ms, row.accuracy[KNOWN], row.accuracy[TRUE]) for row in rows if row.measured_ms is not None
    ]
