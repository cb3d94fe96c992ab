"""Baselines in two steps: `choose` finds and evaluates them once for all devices, `compare_on` times them on one device.

Winners of the search are evaluated and timed again beside the baselines, so that both sides have the same images and the
same load on the device.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

import tailor_ir
from profiling_agents.client import AgentClient
from profiling_agents.messages import Measurement, MeasureSettings
from tailor_ir import SuperNet
from tasks.base.artifacts import NO_STORE, SubNetStore, digest_of
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.baselines import (
    BASELINES_FILE,
    COMPARED_FILE,
    BaselineNetwork,
    Baselines,
    Compared,
    Evaluated,
    EvaluatedWinner,
    TimedNetwork,
    TimedWinner,
)
from tasks.base.schemas.front import Winner
from tasks.base.schemas.operators import OWN_CHOICES, ChosenImplementations
from tasks.base.schemas.stored import StageResult
from tasks.data import Dataset, DataSettings, load_splits
from tasks.evaluation.settings import EvaluationSettings
from tasks.evaluation.subnets import EvaluationData, EvaluationWorkers, OtherPrecision, accuracies, accuracy_lines
from tasks.measuring.in_network import measure as insitu
from tasks.measuring.settings import RepeatedTimingSettings
from tasks.measuring.subnets import Subject, SubNetMeter
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.sensitivity import images_of
from tasks.search import read_front
from tasks.search.baselines.compare import Point, compare
from tasks.search.baselines.networks import Trained, frozen
from tasks.search.baselines.settings import MACS, RANDOM, UNIFORM, Settings
from tasks.search.baselines.subnets import by_macs, random, uniform
from tasks.search.problem import Codes
from tasks.search.settings import Settings as SearchSettings

TIMED_FILE = "timed.jsonl"
IN_SITU_FILE = "in_situ_{}.jsonl"
EVALUATED_FILE = "evaluated_{}.jsonl"
NETWORKS_FOLDER = "networks"
SUPERNET = "supernet"
KNOWN, TRUE = "validation", "test"
"""The splits by which networks are chosen and judged."""


def choose(
    settings: Settings,
    search: SearchSettings,
    evaluation: EvaluationSettings,
    supernet: Path,
    accuracy: AccuracyPredictor,
    data: DataSettings,
    networks: Sequence[Trained],
    fronts: Mapping[str, Path],
    out: Path,
    progress: Progress,
    store: SubNetStore = NO_STORE,
    precision: OtherPrecision | None = None,
    workers: EvaluationWorkers | None = None,
) -> StageResult:
    """Find the baselines, evaluate them and the winners of all devices; writes and returns `baselines.json`.

    fronts: `front.json` by device. precision: precision of these devices; None: torch's precision. `rows` has a row for each
    network of each baseline, with its SubNet's config or the folder of its separate network in `out`; `winners` has the winners
    of each device. Accuracies are measured on the validation and the test images, with BatchNorm recalibrated, or taken from
    the store. A second call in the same folder resumes.
    """
    net = tailor_ir.load(supernet)
    splits = load_splits(data)
    validation = images_of(evaluation, data, workers).in_precision(precision)
    images = {KNOWN: validation, TRUE: validation.of(splits["test"], limited=False)}
    winners = {device: read_front(front).winners for device, front in fronts.items()}
    count = max(map(len, winners.values()))
    codes = _codes(net, settings, accuracy, search, count, progress)
    configs = {name: [net.space.decode(code) for code in rows] for name, rows in codes.items()}
    every = [config for rows in configs.values() for config in rows]
    every += [row.config for rows in winners.values() for row in rows]
    found = _evaluated(net, supernet, every, images, out, progress, store)
    subnets = [
        BaselineNetwork(baseline=name, network=None, **_subnet(net, config, found).to_json())
        for name, rows in configs.items()
        for config in rows
    ]
    others = [
        _own(network, splits["train"], images, out, f"{NETWORKS_FOLDER}/{number}", progress, store)
        for number, network in enumerate(networks)
    ]
    return Baselines(
        rows=(*subnets, *others),
        winners={
            device: tuple(_winner(row, _subnet(net, row.config, found)) for row in rows)
            for device, rows in winners.items()
        },
    ).write(out / BASELINES_FILE)


def _own(
    network: Trained,
    train: Dataset,
    images: Mapping[str, EvaluationData],
    out: Path,
    place: str,
    progress: Progress,
    store: SubNetStore,
) -> BaselineNetwork:
    """A network that is no SubNet, saved in the folder `place` of `out` and evaluated like SubNets."""
    folder = out / place
    folder.mkdir(parents=True, exist_ok=True)
    net = frozen(network, train, folder / SUPERNET)
    row = _subnet(net, {}, _evaluated(net, folder / SUPERNET, [{}], images, folder, progress, store)).to_json()
    row |= {"name": network.name, "digest": digest_of(folder / SUPERNET)}
    return BaselineNetwork(baseline=network.baseline, network=f"{place}/{SUPERNET}", **row)


def _codes(
    net: SuperNet,
    settings: Settings,
    accuracy: AccuracyPredictor,
    search: SearchSettings,
    count: int,
    progress: Progress,
) -> dict[str, Codes]:
    """The SubNets of each baseline."""
    found: dict[str, Codes] = {}
    if settings.uniform:
        found[UNIFORM] = uniform(net.space)
    if settings.random:
        found[RANDOM] = random(net.space, settings.random, np.random.default_rng(settings.seed))
    if settings.macs:
        found[MACS] = by_macs(net, accuracy, search, count, progress)
    return found


def _evaluated(
    net: SuperNet,
    supernet: Path,
    configs: Sequence[Mapping[str, Any]],
    images: Mapping[str, EvaluationData],
    out: Path,
    progress: Progress,
    store: SubNetStore,
) -> dict[str, dict[str, float]]:
    """Accuracies of SubNets by digest and split."""
    net.elastic.to(images[KNOWN].device)
    by_digest = {net.space.digest(config): dict(config) for config in configs}
    found: dict[str, dict[str, float]] = {digest: {} for digest in by_digest}
    for split, data in images.items():
        lines = accuracy_lines(store, supernet, split, data, out / EVALUATED_FILE.format(split), progress)
        measured = accuracies(net, list(by_digest.values()), data, lines, progress, f"evaluate baselines, {split}")
        for digest, one in zip(by_digest, measured, strict=True):
            found[digest][split] = one.share
    return found


def _subnet(net: SuperNet, config: Mapping[str, Any], found: Mapping[str, Mapping[str, float]]) -> Evaluated:
    digest = net.space.digest(config)
    return Evaluated(
        name=digest,
        digest=digest,
        config=dict(config),
        macs=int(net.macs(config)),
        parameters=int(net.parameters(config)),
        accuracy=dict(found[digest]),
    )


def _winner(row: Winner, described: Evaluated) -> EvaluatedWinner:
    return EvaluatedWinner(budget_ms=row.budget_ms, chosen_ms=row.measured_ms, **described.to_json())


def compare_on(
    device: str,
    timing: RepeatedTimingSettings,
    supernet: Path,
    baselines: Path,
    client: AgentClient,
    out: Path,
    progress: Progress,
    batch: int = 1,
    store: SubNetStore = NO_STORE,
    implementations: ChosenImplementations = OWN_CHOICES,
    in_situ: MeasureSettings | None = None,
) -> StageResult:
    """Time the baselines and the winners of one device on it; writes and returns `compared.json`. The caller holds the lease.

    baselines: the folder of `choose`. Both sides are always timed here, side by side; the store gets their latencies. A second
    call in the same folder resumes. implementations: implementations of the SuperNet's operators on the device; those of other
    networks are chosen here, by timing their layers with `in_situ` (None: the runtime's own choices). UserError when no winner
    can be measured.
    """
    net = tailor_ir.load(supernet, batch=batch)
    chosen = Baselines.read(baselines / BASELINES_FILE)
    rows, winners = chosen.rows, chosen.winners[device]

    def own(row: BaselineNetwork) -> Subject:
        """A network that is no SubNet, with the implementations that are fastest within it."""
        other = tailor_ir.load(baselines / str(row.network), batch=batch)
        if in_situ is None:
            return Subject(row.digest, other, row.config, OWN_CHOICES)
        bench = insitu.Bench(client, in_situ, "", timing.limits, out / IN_SITU_FILE.format(row.digest), progress)
        return Subject(row.digest, other, row.config, insitu.chosen_in(other, bench))

    subjects = {net.space.digest(net.max_config): Subject(net.space.digest(net.max_config), net, net.max_config)}
    subnets = [*winners, *(row for row in rows if not row.network)]
    subjects |= {row.digest: Subject(row.digest, net, row.config) for row in subnets}
    subjects |= {row.digest: own(row) for row in rows if row.network}
    meter = SubNetMeter(net, client, timing.measure, timing.limits, timing.rounds, implementations)
    lines = meter.lines(store, supernet, out / TIMED_FILE, progress, anew=True)
    measured = meter.measure_all(list(subjects.values()), lines, progress, "measure baselines")
    timed = {one.key: one for one in measured}
    timed_rows = tuple(TimedNetwork(**row.to_json(), **_timed(timed[row.digest])) for row in rows)
    timed_winners = tuple(_timed_winner(row, timed[row.digest]) for row in winners)
    if not any(row.measured_ms for row in timed_winners):
        raise UserError("baselines", f"no winner can be measured on '{device}': {timed_winners[0].reason}")
    return _compared(device, timed_rows, timed_winners).write(out / COMPARED_FILE)


def _compared(device: str, rows: tuple[TimedNetwork, ...], winners: tuple[TimedWinner, ...]) -> Compared:
    """The gain of the winners over the networks of each baseline."""
    names = dict.fromkeys(row.baseline for row in rows)
    points = {name: _points([row for row in rows if row.baseline == name]) for name in names}
    gains = compare(_points(winners), points, sorted({row.budget_ms for row in winners}))
    return Compared(
        **gains.to_json(),
        device=device,
        within_budget=float(np.mean([row.within_budget for row in winners])),
        within_budget_when_chosen=_within_when_chosen(winners),
        rows=rows,
        winners=winners,
    )


class _Timed(TypedDict):
    measured_ms: float | None
    reason: str | None


def _timed(measured: Measurement) -> _Timed:
    return {"measured_ms": measured.p50_ms, "reason": measured.reason}


def _timed_winner(row: EvaluatedWinner, measured: Measurement) -> TimedWinner:
    within = measured.p50_ms is not None and measured.p50_ms <= row.budget_ms
    return TimedWinner(**row.to_json(), **_timed(measured), within_budget=within)


def _points(rows: Sequence[TimedNetwork | TimedWinner]) -> list[Point]:
    return [
        Point(row.measured_ms, row.accuracy[KNOWN], row.accuracy[TRUE]) for row in rows if row.measured_ms is not None
    ]


def _within_when_chosen(winners: Sequence[TimedWinner]) -> float | None:
    known = [row.chosen_ms <= row.budget_ms for row in winners if row.chosen_ms is not None]
    return float(np.mean(known)) if known else None
