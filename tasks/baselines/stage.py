"""Baselines in two steps: `choose` finds and evaluates them once for all devices, `compare_on` times them on one.

Winners of the search are evaluated and timed again beside them, so that both sides have the same images and the same
calm or busy device.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tailor_ir
from profiling_agents.client import AgentClient
from profiling_agents.messages import Measurement
from tailor_ir import SuperNet
from tasks.artifacts import digest_of, read_json, write_json
from tasks.baselines.compare import Point, compare
from tasks.baselines.networks import Trained, frozen
from tasks.baselines.settings import MACS, RANDOM, UNIFORM, Settings
from tasks.baselines.subnets import by_macs, random, uniform
from tasks.convert import Limits
from tasks.data import DataSettings, load_splits
from tasks.errors import UserError
from tasks.evaluate import EvaluationData, accuracies
from tasks.predict.accuracy import AccuracyPredictor
from tasks.predict.measure import Subject, SubNetMeter
from tasks.predict.sensitivity import images_of
from tasks.predict.settings import Settings as PredictSettings
from tasks.progress import Progress
from tasks.search import read_front
from tasks.search.problem import Codes
from tasks.search.settings import Settings as SearchSettings

BASELINES_FILE = "baselines.json"
COMPARED_FILE = "compared.json"
TIMED_FILE = "timed.jsonl"
EVALUATED_FILE = "evaluated_{}.jsonl"
NETWORKS_FOLDER = "networks"
SUPERNET = "supernet"
KNOWN, TRUE = "validation", "test"
"""The images that networks are chosen by, and those that they are judged by."""

Row = dict[str, Any]


def choose(
    settings: Settings,
    search: SearchSettings,
    predict: PredictSettings,
    supernet: Path,
    accuracy: AccuracyPredictor,
    data: DataSettings,
    networks: Sequence[Trained],
    fronts: Mapping[str, Path],
    out: Path,
    progress: Progress,
) -> Row:
    """Find the baselines and evaluate them, and the winners of all devices; writes and returns `baselines.json`.

    fronts: `front.json` by device. `rows` has a row for each network of each baseline: its SubNet's config, or the folder of
    its own network in `out`; `winners` those of each device. Accuracies are of the validation and the test images, with
    BatchNorm recalibrated. A second call in the same folder goes on.
    """
    net = tailor_ir.load(supernet)
    splits = load_splits(data)
    validation = images_of(predict, data)
    images = {KNOWN: validation, TRUE: validation.of(splits["test"], limited=False)}
    winners: dict[str, list[Row]] = {device: read_front(front)["winners"] for device, front in fronts.items()}
    count = max(map(len, winners.values()))
    codes = _codes(net, settings, accuracy, search, count, progress)
    configs = {name: [net.space.decode(code) for code in rows] for name, rows in codes.items()}
    found = _evaluated(
        net,
        [config for rows in configs.values() for config in rows]
        + [row["config"] for rows in winners.values() for row in rows],
        images,
        out,
        progress,
    )
    subnets = [
        {"baseline": name, "network": None, **_subnet(net, config, found)}
        for name, rows in configs.items()
        for config in rows
    ]
    others = []
    for number, network in enumerate(networks):
        folder = out / NETWORKS_FOLDER / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        own = frozen(network, splits["train"], folder / SUPERNET)
        row = _subnet(own, {}, _evaluated(own, [{}], images, folder, progress))
        place = {"network": str((folder / SUPERNET).relative_to(out)), "digest": digest_of(folder / SUPERNET)}
        others.append({"baseline": network.baseline, **row, "name": network.name, **place})
    result = {
        "rows": subnets + others,
        "winners": {
            device: [_winner(row, _subnet(net, row["config"], found)) for row in rows]
            for device, rows in winners.items()
        },
    }
    write_json(out / BASELINES_FILE, result)
    return result


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
    configs: Sequence[Mapping[str, Any]],
    images: Mapping[str, EvaluationData],
    out: Path,
    progress: Progress,
) -> dict[str, dict[str, float]]:
    """Accuracies of SubNets by digest and split."""
    net.elastic.to(images[KNOWN].device)
    by_digest = {net.space.digest(config): dict(config) for config in configs}
    found: dict[str, dict[str, float]] = {digest: {} for digest in by_digest}
    for split, data in images.items():
        file = out / EVALUATED_FILE.format(split)
        measured = accuracies(net, list(by_digest.values()), data, file, progress, f"evaluate baselines, {split}")
        for digest, one in zip(by_digest, measured, strict=True):
            found[digest][split] = one.share
    return found


def _subnet(net: SuperNet, config: Mapping[str, Any], found: Mapping[str, Mapping[str, float]]) -> Row:
    digest = net.space.digest(config)
    return {
        "name": digest,
        "digest": digest,
        "config": dict(config),
        "macs": int(net.macs(config)),
        "parameters": int(net.parameters(config)),
        "accuracy": dict(found[digest]),
    }


def _winner(row: Row, described: Row) -> Row:
    """`chosen_ms`: what it was measured with when it was chosen; None where predictions chose it."""
    return {"budget_ms": row["budget_ms"], "chosen_ms": row.get("measured_ms"), **described}


def compare_on(
    device: str,
    predict: PredictSettings,
    supernet: Path,
    baselines: Path,
    client: AgentClient,
    out: Path,
    progress: Progress,
    batch: int = 1,
) -> Row:
    """Time the baselines and the winners of one device there, whose lease the caller holds; writes and returns `compared.json`.

    baselines: the folder of `choose`. A second call in the same folder goes on. UserError when no winner can be measured.
    """
    net = tailor_ir.load(supernet, batch=batch)
    chosen = read_json(baselines / BASELINES_FILE)
    rows, winners = chosen["rows"], chosen["winners"][device]
    subjects = {net.space.digest(net.max_config): Subject(net.space.digest(net.max_config), net, net.max_config)}
    for row in (*winners, *rows):
        if row["digest"] not in subjects:
            own = net if row.get("network") is None else tailor_ir.load(baselines / row["network"], batch=batch)
            subjects[row["digest"]] = Subject(row["digest"], own, row["config"])
    limits = Limits(wall_s=predict.conversion_wall_s, memory_mib=predict.conversion_memory_mib)
    meter = SubNetMeter(net, client, predict.measure, limits, predict.rounds)
    measured = meter.measure_all(list(subjects.values()), out / TIMED_FILE, progress, "measure baselines")
    timed = {one.key: one for one in measured}
    rows, winners = ([_timed(row, timed) for row in some] for some in (rows, winners))
    for row in winners:
        row["within_budget"] = row["measured_ms"] is not None and row["measured_ms"] <= row["budget_ms"]
    if not any(row["measured_ms"] for row in winners):
        raise UserError("baselines", f"no winner can be measured on '{device}': {winners[0]['reason']}")
    names = dict.fromkeys(row["baseline"] for row in rows)
    points = {name: _points([row for row in rows if row["baseline"] == name]) for name in names}
    result = {
        "device": device,
        **compare(_points(winners), points, sorted({row["budget_ms"] for row in winners})),
        "within_budget": float(np.mean([row["within_budget"] for row in winners])),
        "within_budget_when_chosen": _within_when_chosen(winners),
        "rows": rows,
        "winners": winners,
    }
    write_json(out / COMPARED_FILE, result)
    return result


def _timed(row: Row, timed: Mapping[str, Measurement]) -> Row:
    found = timed[row["digest"]]
    return {**row, "measured_ms": found.p50_ms, "reason": found.reason}


def _points(rows: Sequence[Row]) -> list[Point]:
    measured = [row for row in rows if row["measured_ms"] is not None]
    return [Point(row["measured_ms"], row["accuracy"][KNOWN], row["accuracy"][TRUE]) for row in measured]


def _within_when_chosen(winners: Sequence[Row]) -> float | None:
    known = [row["chosen_ms"] <= row["budget_ms"] for row in winners if row["chosen_ms"] is not None]
    return float(np.mean(known)) if known else None
