"""From the folders of finished stages to one JSON-able report."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tailor_ir
from tasks.artifacts import RESULT_FILE, read_json, read_lines
from tasks.export import EXPORTS_FILE
from tasks.layers import Layers
from tasks.lut import Lut
from tasks.predict import sensitivity
from tasks.predict.accuracy import AccuracyPredictor, standard_error
from tasks.predict.correction import Correction
from tasks.predict.validate import VALIDATION_FILE as LATENCY_VALIDATION_FILE
from tasks.profile import LUT_FOLDER
from tasks.report.baselines import against
from tasks.report.breakdown import breakdown
from tasks.report.exported import files_of
from tasks.report.headline import headline
from tasks.report.refined import refinement
from tasks.report.settings import Settings
from tasks.report.sources import DeviceSources, Sources
from tasks.search import FRONT_FILE
from tasks.search.front import pareto_mask

Row = dict[str, Any]
HISTORY_FILE = "history.jsonl"


def gather(sources: Sources, settings: Settings) -> Row:
    """The report as data; the page and the terminal's table show nothing that is not in it."""
    net = tailor_ir.load(sources.supernet)
    base = _result(sources.base)
    finetune = _result(sources.finetune)
    report: Row = {
        "model": sources.model,
        "data": sources.data,
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "supernet": _supernet(net, _result(sources.enumerate)),
        "accuracies": _accuracies(base, finetune),
        "devices": [_device(device, net, base, sources) for device in sources.devices],
        "sensitivities": _sensitivities(sources.sensitivities),
        "training": _training(sources),
        "stages": [
            {"stage": row["stage"], "seconds": row["seconds"], "cached": row["cached"]} for row in sources.stages
        ],
        "config": dict(sources.config),
        "versions": dict(sources.versions),
        "settings": settings.model_dump(mode="json"),
    }
    report["headline"] = headline(report, settings.accuracy_points)
    return report


def _result(folder: Path | None) -> Row:
    result: Row = read_json(folder / RESULT_FILE) if folder else {}
    return result


def _supernet(net: Any, enumerated: Row) -> Row:
    space = net.space
    return {
        "variables": [
            {"name": v.name, "kind": v.kind, "scope": v.scope, "choices": list(v.choices), "default": v.default}
            for v in space.variables
        ],
        "modifications": space.modifications,
        "codes": str(space.codes),  # beyond what JSON readers keep exact
        "distinct": str(space.distinct),
        "unique_operators": enumerated["unique_operators"],
    }


def _accuracies(base: Row, finetune: Row) -> dict[str, float]:
    named = {"base model": base, "largest SubNet": finetune, "smallest SubNet": finetune}
    keys = {"base model": "", "largest SubNet": "largest_", "smallest SubNet": "smallest_"}
    return {
        f"{name}, {split}": result[key]
        for name, result in named.items()
        for split in ("validation", "test")
        if (key := f"{keys[name]}{split}_accuracy") in result
    }


def _device(device: DeviceSources, net: Any, base: Row, sources: Sources) -> Row:
    front = read_json(device.search / FRONT_FILE)
    exports = read_json(device.export / EXPORTS_FILE)
    validation = read_json(device.latency / LATENCY_VALIDATION_FILE)
    largest_ms = exports["largest"]["latency"]["p50_ms"]  # beside the winners
    if largest_ms is None:
        largest_ms = next(row["measured_ms"] for row in validation["subnets"] if row["kind"] == "largest")
    lut = Lut.open(device.profile / LUT_FOLDER)
    batched = net if device.batch == 1 else tailor_ir.load(sources.supernet, batch=device.batch)
    row = {
        "name": device.name,
        "batch": device.batch,
        "runtime": exports["device"],
        "base": {
            "digest": net.space.digest(net.max_config),
            **_size(net, net.max_config),
            "config": net.max_config,
            "measured_ms": largest_ms,  # of the same shapes; latency does not depend on weights
            "accuracy": base.get("test_accuracy"),
        },
        "winners": _winners(net, front, exports),
        "searched": dict(Counter(row["stopped"] for row in front["winners"] if "stopped" in row)),
        "baseline": _baseline(net, front, exports),
        "random": _random(validation, sources.sensitivities),
        "latency_validation": validation["held_out"],
        "latency_correction": validation["correction"],
        "lut": _lut(lut),
        "hypervolume": front["hypervolume"],
        "whole_front": front["whole_front"],
        "refinement": refinement(device.search, front),
        "exported": files_of(exports),
    }
    shown = (row["base"], *row["winners"], *row["baseline"], *row["random"])
    layers = Layers(batched, lut, Correction.model_validate(validation["correction"]))
    return {
        **row,
        "baselines": against(device.compared, layers),
        "breakdown": breakdown(layers, {one["digest"]: one["config"] for one in shown}),
    }


def _size(net: Any, config: Row) -> Row:
    return {
        "macs": int(net.macs(config)),
        "parameters": int(net.parameters(config)),
        "resolution": int(net.input_shape(config)[-1]),
    }


def _winners(net: Any, front: Row, exports: Row) -> list[Row]:
    cards = {card["digest"]: card for card in exports["subnets"]}
    rows = []
    for chosen, exported in zip(front["winners"], exports["winners"], strict=True):
        formats = cards[chosen["digest"]]["files"]
        files = formats.values()
        failures = [f"{name}: {file['reason']}" for name, file in formats.items() if file["state"] == "failed"]
        latency = cards[chosen["digest"]]["latency"]
        if exported["measured_ms"] is None:
            failures.append(f"not measured: {latency['reason']}")
        differences = [d for file in files if (d := file.get("relative_difference")) is not None]
        rows.append(
            {
                **chosen,
                **_size(net, chosen["config"]),
                "measured_ms": exported["measured_ms"],
                "within_budget": None if exported["measured_ms"] is None else exported["within_budget"],
                "accuracy": exported["accuracy"].get("test"),
                "files": [name for file in files for name in file.get("sha256", ())],
                "reason": "; ".join(failures) or None,
                "max_difference": max(differences, default=None),
            }
        )
    front_digests = _measured_front(rows)
    for row in rows:
        row["on_front"] = row["digest"] in front_digests
    return rows


def _measured_front(rows: list[Row]) -> set[str]:
    """Digests of the winners that no other dominates in measured latency and test accuracy."""
    known = [row for row in rows if row["measured_ms"] is not None and row["accuracy"] is not None]
    latency_ms, accuracy = (np.array([row[key] for row in known]) for key in ("measured_ms", "accuracy"))
    kept = np.flatnonzero(pareto_mask(latency_ms, accuracy))
    return {known[index]["digest"] for index in kept}


def _baseline(net: Any, front: Row, exports: Row) -> list[Row]:
    """Uniformly shrunk SubNets: predicted by the search, measured by the export stage."""
    measured = {row["digest"]: row for row in exports["baseline"]}
    return [
        {
            **row,
            **_size(net, row["config"]),
            "measured_ms": measured[row["digest"]]["measured_ms"],
            "accuracy": measured[row["digest"]]["accuracy"].get("test"),
        }
        for row in front["baseline"]
    ]


def _random(validation: Row, sensitivities: Path) -> list[Row]:
    """SubNets that both predictors were checked on; `accuracy` is that of the validation split."""
    known = {row["digest"]: row for row in read_json(sensitivities / sensitivity.VALIDATION_FILE)["rows"]}
    return [
        {
            **row,
            "accuracy": known[row["digest"]]["accuracy"] if row["digest"] in known else None,
            "predicted_accuracy": known[row["digest"]]["predicted_accuracy"] if row["digest"] in known else None,
        }
        for row in validation["subnets"]
    ]


def _lut(lut: Lut) -> Row:
    """Per operator type: how many, how many failed, the sum of their latencies and the median spread."""
    types: dict[str, list[Any]] = {}
    for entry in lut.entries():
        types.setdefault(entry.operator, []).append(entry)
    rows = []
    for operator, entries in types.items():
        ok = [entry for entry in entries if entry.state == "ok"]
        spreads = [entry.spread for entry in ok if entry.spread is not None]
        rows.append(
            {
                "operator": operator,
                "count": len(entries),
                "ok": len(ok),
                "failed": len(entries) - len(ok),
                "total_ms": sum(entry.p50_ms for entry in ok) if ok else None,
                "median_spread": median(spreads) if spreads else None,
            }
        )
    return {**lut.summary(), "operators": sorted(rows, key=lambda row: -row["count"])}


def _sensitivities(folder: Path) -> Row:
    table = AccuracyPredictor.load(folder / sensitivity.SENSITIVITIES_FILE).table
    largest_error = standard_error(table.largest.accuracy, table.samples)
    rows = [
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
    validation = read_json(folder / sensitivity.VALIDATION_FILE)
    return {
        "samples": table.samples,
        "accuracy": table.largest.accuracy,
        "rows": rows,
        "validation": validation,
    }


def _training(sources: Sources) -> dict[str, list[Row]]:
    folders = {"base network": sources.base, "fine-tuning": sources.finetune}
    histories = {name: read_lines(folder / HISTORY_FILE) for name, folder in folders.items() if folder}
    return {name: rows for name, rows in histories.items() if rows}
