"""The content of a report, gathered from the folders of finished stages into one JSON-able record.

It has the predicted latency of each shown SubNet, layer by layer; every different operator is stored once.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tailor_ir
from solvers.front import pareto_mask
from tailor_ir import Config, SuperNet
from tasks.base.artifacts import RESULT_FILE
from tasks.base.pages.text import milliseconds, percent
from tasks.base.schemas import predictions, results
from tasks.base.schemas.exports import AS_GIVEN, EXPORTS_FILE, LABELLED, Card, Exports, Latency, MissedWinner
from tasks.base.schemas.winners import FRONT_FILE, Front
from tasks.data.problems import FIDELITY, LearningProblem, problem_named
from tasks.evaluation.pictures import ANSWERS_FILE
from tasks.evaluation.uncertainty import standard_error
from tasks.measuring.lut import Entry, Lut
from tasks.measuring.profile import LUT_FOLDER
from tasks.prediction.latency import Correction
from tasks.prediction.layers import Layers, SubNetLayer
from tasks.report import parts
from tasks.report.baselines import against
from tasks.report.confusions import confusions
from tasks.report.headline import headline, remarks
from tasks.report.leaving import policies
from tasks.report.levels import levels
from tasks.report.sources import DeviceSources, Settings, Sources
from tasks.report.streams import streams
from tasks.report.training import histories, pretraining, range_accuracies


def breakdown(layers: Layers, configs: Mapping[str, Mapping[str, Any]]) -> parts.Row:
    """SubNets (digest -> config) as pairs of a layer's and an operator's number; predicted_ms of an operator [ms].
    The predicted latency of a SubNet is `offset_ms` plus those of its operators.
    """
    numbers: dict[SubNetLayer, int] = {}
    subnets = {}
    for digest, config in configs.items():
        subnets[digest] = {
            "elsewhere": layers.elsewhere(config),
            "sections": [section.to_json() for section in layers.sections(config)],
            "architecture": layers.architecture(config),
            "layers": [
                [number, numbers.setdefault(operator, len(numbers))] for number, operator in layers.of(config).items()
            ],
        }
    return {
        "offset_ms": layers.offset_ms,
        "layers": [{"place": place.name, "section": place.section} for place in layers.places],
        "operators": [operator.to_json() for operator in numbers],
        "subnets": subnets,
    }


def gather(sources: Sources, settings: Settings) -> parts.Row:
    """The report as data; the page and the terminal's table show only content of this report."""
    net = tailor_ir.load(sources.supernet)
    base, finetune = _network(sources), _ends(sources)
    problem = problem_named(sources.problem, sources.metric)
    report: parts.Row = {
        "model": sources.model,
        "data": sources.data,
        "problem": sources.problem,
        "metric": problem.metric,
        "score": problem.score,
        "outside": problem.outside,
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "supernet": _supernet(net, results.EnumerateResult.read(sources.enumerate / RESULT_FILE)),
        "accuracies": _accuracies(base, finetune),
        "samples": _samples(finetune or base, problem.is_mean),
        "devices": [],
        "partition": None if sources.partition is None else sources.partition.to_json(),
        "sensitivities": _sensitivities(sources.sensitivities),
        "answers": parts.png(answers) if (answers := sources.sensitivities / ANSWERS_FILE).exists() else None,
        "training": histories(sources),
        "pretraining": pretraining(sources.pretraining),
        "ranges": range_accuracies(sources, net),
        "streams": streams(sources.streams),
        "stages": [
            {"stage": row["stage"], "seconds": row["seconds"], "cached": row["cached"]} for row in sources.stages
        ],
        "config": dict(sources.config),
        "versions": dict(sources.versions),
        "settings": settings.model_dump(mode="json"),
    }
    given, tested = _given(base, finetune, problem), {"test_samples": report["samples"]["test"]}
    report["devices"] = [_device(device, net, given, sources) | tested for device in sources.devices]
    report["remarks"] = [*filter(None, (base and base.exchanged,)), *remarks(report, finetune)]
    report["headline"] = headline(report, settings.accuracy_points)
    report["confusions"] = confusions(report, sources.base or sources.given, sources.devices, settings.accuracy_points)
    return report


def _network(sources: Sources) -> results.NetworkAccuracy | None:
    """Accuracies of the network from which the SuperNet was made; None if unknown."""
    if sources.base is not None:
        return results.BaseResult.read(sources.base / RESULT_FILE)
    if sources.given is not None and sources.finetune is not None:
        return results.GivenFile.read(sources.given / RESULT_FILE)
    return None


def _ends(sources: Sources) -> results.EndsAccuracy | None:
    """Accuracies of the SuperNet's largest and smallest SubNets; None if unknown."""
    if sources.finetune is not None:
        return results.FinetuneResult.read(sources.finetune / RESULT_FILE)
    if sources.given is not None and sources.base is None:
        return results.GivenSuperNet.read(sources.given / RESULT_FILE)
    return None


def _supernet(net: SuperNet, enumerated: results.EnumerateResult) -> parts.Row:
    space = net.space
    return {
        "variables": [
            {"name": v.name, "kind": v.kind, "scope": v.scope, "choices": list(v.choices), "default": v.default}
            for v in space.variables
        ],
        "modifications": space.modifications,
        "codes": str(space.codes),  # beyond the integers that JSON readers keep exact
        "distinct": str(space.distinct),
        "unique_operators": enumerated.unique_operators,
    }


def _accuracies(base: results.NetworkAccuracy | None, finetune: results.EndsAccuracy | None) -> dict[str, float]:
    networks = (
        ("base model", "", base),
        ("largest SubNet", "largest_", finetune),
        ("smallest SubNet", "smallest_", finetune),
    )
    return {
        f"{name}, {split}": getattr(found, f"{prefix}{split}_accuracy")
        for name, prefix, found in networks
        if found is not None
        for split in ("validation", "test")
    }


def _samples(found: results.NetworkAccuracy | results.EndsAccuracy | None, is_mean: bool) -> dict[str, int | None]:
    """Number of samples behind accuracies, by split; None if unknown, or if a score is no mean over samples."""
    if found is None or not is_mean:
        return {"validation": None, "test": None}
    return {"validation": found.validation_samples, "test": found.test_samples}


def _given(
    base: results.NetworkAccuracy | None, ends: results.EndsAccuracy | None, problem: LearningProblem
) -> parts.Row:
    """The reference network for the winners: the base model, or the largest SubNet of a SuperNet without a known base model."""
    own = {"spread": 0.0} if problem is FIDELITY else {}  # it answers as itself, by definition
    if base is not None or ends is None:
        return {"name": "base model", "accuracy": None if base is None else base.test_accuracy, **_spread(base), **own}
    return {"name": "largest SubNet", "accuracy": ends.largest_test_accuracy, **_spread(ends)}


def _spread(found: results.NetworkAccuracy | results.EndsAccuracy | Card | None) -> parts.Row:
    """`spread`, if answers are graded."""
    return {"spread": found.spread} if found is not None and found.spread < 1 else {}


def _device(device: DeviceSources, net: SuperNet, given: parts.Row, sources: Sources) -> parts.Row:
    front = Front.read(device.search / FRONT_FILE)
    exports = Exports.read(device.export / EXPORTS_FILE)
    validation = predictions.LatencyValidation.read(device.latency / predictions.LATENCY_VALIDATION_FILE)
    largest_ms = exports.largest.latency.p50_ms  # measured together with the winners
    if largest_ms is None:
        largest_ms = next(row.measured_ms for row in validation.subnets if row.kind == "largest")
    lut = Lut.open(device.profile / LUT_FOLDER)
    decoding_ms = [card.decoding.p50_ms for card in exports.subnets if card.decoding is not None]
    batched = net if device.batch == 1 else tailor_ir.load(sources.supernet, batch=device.batch)
    row: parts.Row = {
        "name": device.name,
        "batch": device.batch,
        "score": problem_named(sources.problem, sources.metric).score,
        "decoding_ms": [min(decoding_ms), max(decoding_ms)] if decoding_ms else None,  # beyond a latency
        "runtime": exports.device.model_dump(mode="json"),
        "engine": parts.chosen_engine(device.engine),
        "base": {
            "digest": net.space.digest(net.max_config),
            **_size(net, net.max_config),
            "config": net.max_config,
            "measured_ms": largest_ms,  # same shapes; latency does not depend on weights
            "own_choices_ms": _p50_ms(exports.largest.own_choices),
            "fp32_ms": _p50_ms(exports.largest.fp32),
            **given,
            **_as_given(exports),
        },
        "winners": _winners(net, front, exports),
        "uncertainty": exports.uncertainty.to_json(),
        "searched": dict(Counter(row.stopped for row in front.winners if row.stopped)),
        "baseline": _baseline(net, front, exports),
        "random": _random(validation, device.sensitivities),
        "int8": _int8(device.sensitivities),
        "latency_validation": validation.held_out.to_json(),
        "latency_correction": validation.correction,
        "lut": _lut(lut),
        "hypervolume": front.hypervolume.to_json(),
        "whole_front": front.whole_front and front.whole_front.to_json(),
        "refinement": parts.refinement(device.search, front),
        "exported": parts.files_of(exports),
        "policies": policies(device.policy),
        "levels": levels(device.levels),
    }
    shown = (row["base"], *row["winners"], *row["baseline"], *row["random"])
    layers = Layers(batched, lut, Correction.model_validate(validation.correction))
    return {
        **row,
        "baselines": against(device.compared, layers),
        "breakdown": breakdown(layers, {one["digest"]: one["config"] for one in shown}),
    }


def _as_given(exports: Exports) -> parts.Row:
    """`row`, the name of the base model's row in tables, and its files, if it was exported as it was given."""
    card = next((card for card in exports.subnets if card.digest == AS_GIVEN), None)
    if card is None:
        return {}
    return {
        "row": "as given",
        "files": [name for file in card.files.values() for name in file.sha256],
        **_true_score(card),
    }


def _true_score(card: Card) -> parts.Row:
    """`true_score`, on `labelled` samples, if there are such."""
    if LABELLED not in card.accuracy:
        return {}
    return {"true_score": card.accuracy[LABELLED], "labelled": card.samples.get(LABELLED)}


def _p50_ms(measured: Latency | None) -> float | None:
    return None if measured is None else measured.p50_ms


def _int8(sensitivities: Path) -> parts.Row | None:
    """The cost of int8 for SubNets, and the errors of predicted accuracies in int8; None on a device in another precision."""
    stated = predictions.AccuracyValidation.read(sensitivities / predictions.ACCURACY_VALIDATION_FILE)
    if stated.int8 is None:
        return None
    errors = {"mean_error_points": stated.mean_error_points, "max_error_points": stated.max_error_points}
    return {**stated.int8.to_json(), **errors}


def _size(net: SuperNet, config: Config) -> parts.Row:
    return {
        "macs": int(net.macs(config)),
        "parameters": int(net.parameters(config)),
        "resolution": (net.input_size(config) or ("",))[-1],
    }


def _winners(net: SuperNet, front: Front, exports: Exports) -> list[parts.Row]:
    cards = {card.digest: card for card in exports.subnets}
    rows = []
    for chosen, exported in zip(front.winners, exports.winners, strict=True):
        card, subnet = cards[exported.digest], exported.subnet
        row = chosen.to_json() if subnet is None else {"budget_ms": chosen.budget_ms, **subnet.to_json()}
        failures = [f"{name}: {file.reason}" for name, file in card.files.items() if file.state == "failed"]
        if exported.measured_ms is None:
            failures.append(f"not measured: {card.latency.reason}")
        files = card.files.values()
        from_torch = (file.relative_difference for file in files if file.int8 is None)
        differences = [difference for difference in from_torch if difference is not None]
        rows.append(
            {
                **row,
                **_size(net, row["config"]),
                "missed": exported.replaces and {**exported.replaces.to_json(), "why": _why(exported.replaces)},
                "measured_ms": exported.measured_ms,
                "within_budget": None if exported.measured_ms is None else exported.within_budget,
                "accuracy": exported.accuracy.get("test"),
                **_true_score(card),
                "files": [name for file in files for name in file.sha256],
                "reason": "; ".join(failures) or None,
                "max_difference": max(differences, default=None),
                "int8": parts.int8_of(card),
                **_spread(card),
            }
        )
    front_digests = _measured_front(rows)
    for row in rows:
        row["on_front"] = row["digest"] in front_digests
    return rows


def _why(before: MissedWinner) -> str:
    """The reason why a SubNet is no longer the winner of its budget."""
    if before.accuracy is not None:
        split, accuracy = next(iter(before.accuracy.items()))
        return f"which keeps it with {percent(accuracy)} on {split} data"
    if before.measured_ms is None:
        return "which could not be measured"
    return f"which takes {milliseconds(before.measured_ms)}"


def _measured_front(rows: list[parts.Row]) -> set[str]:
    """Digests of the winners that no other dominates in measured latency and test accuracy."""
    known = [row for row in rows if row["measured_ms"] is not None and row["accuracy"] is not None]
    latency_ms, accuracy = (np.array([row[key] for row in known]) for key in ("measured_ms", "accuracy"))
    kept = np.flatnonzero(pareto_mask(latency_ms, accuracy))
    return {known[index]["digest"] for index in kept}


def _baseline(net: SuperNet, front: Front, exports: Exports) -> list[parts.Row]:
    """Uniformly shrunk SubNets: predicted by the search, measured by the export stage."""
    measured = {row.digest: row for row in exports.baseline}
    return [
        {
            **row.to_json(),
            **_size(net, row.config),
            "measured_ms": measured[row.digest].measured_ms,
            "accuracy": measured[row.digest].accuracy.get("test"),
        }
        for row in front.baseline
    ]


def _random(validation: predictions.LatencyValidation, sensitivities: Path) -> list[parts.Row]:
    """SubNets on which both predictors were checked; `accuracy` is that of the validation split."""
    known = {
        row.digest: row
        for row in predictions.AccuracyValidation.read(sensitivities / predictions.ACCURACY_VALIDATION_FILE).rows
    }
    return [
        {
            **row.to_json(),
            "accuracy": known[row.digest].accuracy if row.digest in known else None,
            "predicted_accuracy": known[row.digest].predicted_accuracy if row.digest in known else None,
        }
        for row in validation.subnets
    ]


def _lut(lut: Lut) -> parts.Row:
    """Per operator type: the number of operators and of failures, the sum of their latencies and the median spread."""
    types: dict[str, list[Entry]] = {}
    for entry in lut.entries():
        types.setdefault(entry.operator, []).append(entry)
    rows: list[parts.Row] = []
    for operator, entries in types.items():
        ok = [entry for entry in entries if entry.state == "ok"]
        times_ms = [entry.p50_ms for entry in ok if entry.p50_ms is not None]
        spreads = [entry.spread for entry in ok if entry.spread is not None]
        rows.append(
            {
                "operator": operator,
                "count": len(entries),
                "ok": len(ok),
                "fused": sum(entry.state == "fused" for entry in entries),
                "failed": sum(entry.state == "failed" for entry in entries),
                "total_ms": sum(times_ms) if times_ms else None,
                "median_spread": median(spreads) if spreads else None,
            }
        )
    return {**lut.summary(), "operators": sorted(rows, key=lambda row: -row["count"])}


def _sensitivities(folder: Path) -> parts.Row:
    table = predictions.Sensitivities.read(folder / predictions.SENSITIVITIES_FILE)
    largest_error = standard_error(table.largest.accuracy, table.samples)
    rows: list[parts.Row] = [
        {
            "variable": row.variable,
            "choice": choice,
            "delta_points": 100 * (measured.accuracy - table.largest.accuracy),
            "delta_loss": measured.loss - table.largest.loss,
            "standard_error_points": 100
            * (standard_error(measured.accuracy, table.samples) ** 2 + largest_error**2) ** 0.5,
        }
        for row in table.variables
        for choice, measured in list(zip(row.choices, row.measured, strict=True))[:-1]
    ]
    validation = predictions.AccuracyValidation.read(folder / predictions.ACCURACY_VALIDATION_FILE)
    return {
        "samples": table.samples,
        "accuracy": table.largest.accuracy,
        "rows": rows,
        "validation": validation.to_json(),
    }
