"""Views of look-up tables: the content of a store, the ratios of two devices, all entries as CSV."""

import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyarrow import csv

from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.measuring.lut.choice import TimedImplementation, position_of_chosen
from tasks.measuring.lut.entry import SCHEMA, ProfilingMethod, Row, complaint, device_of

SAMPLES_FIRST = {
    *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"),
    *("GlobalLpPool", "BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN"),
    *("DepthToSpace", "SpaceToDepth"),
}
"""Operators whose first axis is the sample axis, by ONNX' definition; other operators' first axis may be windows or tokens."""
RECURRENT = {"GRU", "LSTM", "RNN"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter of entries; an empty tuple accepts all. `devices`: parts of the names of tables."""

    devices: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    methods: tuple[ProfilingMethod, ...] = ()

    def apply(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that pass the filter. UserError when a filter value matches no row, or no row passes all filters."""
        names, types = sorted({_name(row) for row in rows}), sorted({row["operator"] for row in rows})
        unknown = [("devices", wish, names) for wish in self.devices if not any(wish in name for name in names)]
        unknown += [("operators", wish, types) for wish in self.operators if wish not in types]
        for where, wish, allowed in unknown:
            raise UserError(where, f"'{wish}' is in no table", allowed=", ".join(allowed))
        found = [
            row
            for row in rows
            if (not self.devices or any(wish in _name(row) for wish in self.devices))
            and (not self.operators or row["operator"] in self.operators)
            and (not self.methods or row["method"] in self.methods)
        ]
        if not found:
            raise UserError("look-up tables", "no entry is of these devices, operators and methods together")
        return found


def _name(row: Row) -> str:
    return device_of(row).name


def show(rows: Sequence[Row]) -> list[Row]:
    """One listing per device and method: measured operators, times of measurement, failures, noise and cost.

    oldest, newest: UTC, ISO 8601. operators: counts by type. invalid: a message for each invalid entry. median_spread: over
    successful entries; None if there are none.
    """
    groups = _grouped(_current(rows), lambda row: (_name(row), row["method"]))
    settings = _grouped(rows, lambda row: (_name(row), row["method"]))
    return [
        {
            "device": name,
            **device_of(entries[0]).identity(),
            "description": entries[0]["description"],
            "method": method,
            "batches": sorted({batch for row in entries if (batch := batch_of(json.loads(row["feature"])))}),
            **_counts(entries),
            "settings": len({row["settings"] for row in settings[name, method]}),
            "oldest": min(row["measured_at"] for row in entries),
            "newest": max(row["measured_at"] for row in entries),
            "cost_s": round(sum(row["cost_ms"] or 0.0 for row in entries) / 1e3, 3),
            "operators": {
                operator: _counts(own) for operator, own in _grouped(entries, lambda row: row["operator"]).items()
            },
            "invalid": [text for row in entries if (text := complaint(row))],
            "failures": [
                {"operator": row["operator"], "digest": row["digest"], "reason": row["reason"]}
                for row in entries
                if row["state"] == "failed"
            ],
        }
        for (name, method), entries in sorted(groups.items())
    ]


def batch_of(feature: Mapping[str, Any]) -> int | None:
    """The batch size of an operator (its JSON); None if its shapes do not determine it."""
    first, *_ = feature.get("steps") or [{"op": "", "inputs": []}]
    shapes = {f"in{number}": shape for number, shape in enumerate(feature.get("input_shapes", ()))}
    shape = shapes.get(next(iter(first["inputs"]), ""))
    if not shape:
        return None
    if first["op"] in RECURRENT:
        return int(shape[0 if first["attributes"].get("layout") else 1])
    return int(shape[0]) if first["op"] in SAMPLES_FIRST else None


def _counts(entries: Sequence[Row]) -> Row:
    ok = [row for row in entries if row["state"] == "ok"]
    spreads = [row["spread"] for row in ok if row["spread"] is not None]
    return {
        "entries": len(entries),
        "ok": len(ok),
        "failed": sum(row["state"] == "failed" for row in entries),
        "noisy": sum(row["noisy"] for row in ok),
        "with_energy": sum(row["energy_mj"] is not None for row in ok),
        "median_spread": median(spreads) if spreads else None,
    }


def diff(first: Sequence[Row], second: Sequence[Row]) -> Row:
    """Latency of the second device relative to the first, for each operator type; and operators that only one device has.

    The ratio compares p50 of the same operator, measured by the same method. `worst`: the ratio farthest from 1. `only_…`,
    `failed_…`: numbers of operators by type, on one device alone. UserError when no operator succeeded on both devices.
    """
    a, b = ({(row["digest"], row["method"]): row for row in _current(rows)} for rows in (first, second))
    shared = [(a[key], b[key]) for key in a if key in b]
    measured = [(x, y) for x, y in shared if x["state"] == y["state"] == "ok"]
    if not measured:
        raise UserError("lut diff", f"'{_name(first[0])}' and '{_name(second[0])}' have no measured operator in common")
    types = _grouped(measured, lambda pair: pair[0]["operator"])
    return {
        "devices": [_name(first[0]), _name(second[0])],
        "all": _ratios(measured),
        "operators": {operator: _ratios(types[operator]) for operator in sorted(types)},
        "only_first": _types(row for key, row in a.items() if key not in b),
        "only_second": _types(row for key, row in b.items() if key not in a),
        "failed_first": _types(x for x, y in shared if x["state"] == "failed" != y["state"]),
        "failed_second": _types(y for x, y in shared if y["state"] == "failed" != x["state"]),
    }


def _ratios(pairs: Sequence[tuple[Row, Row]]) -> Row:
    ratios = [y["p50_ms"] / x["p50_ms"] for x, y in pairs]
    worst = max(range(len(pairs)), key=lambda index: abs(math.log(ratios[index])))
    x, y = pairs[worst]
    return {
        "shared": len(pairs),
        "median_ratio": median(ratios),
        "lowest_ratio": min(ratios),
        "highest_ratio": max(ratios),
        "worst": {
            "ratio": ratios[worst],
            "operator": x["operator"],
            "digest": x["digest"],
            "input_shapes": json.loads(x["feature"]).get("input_shapes"),
            "method": x["method"],
            "p50_ms": [x["p50_ms"], y["p50_ms"]],
        },
    }


def _types(rows: Iterable[Row]) -> dict[str, int]:
    return dict(Counter(row["operator"] for row in rows).most_common())


def export(rows: Sequence[Row], file: Path) -> None:
    """Write all columns as CSV, one line per entry. UserError when the file cannot be written."""
    order = ("operator", "digest", "method", "settings", "implementation")
    ordered = sorted(rows, key=lambda row: (_name(row), *(row[name] for name in order)))
    stream = io.BytesIO()
    csv.write_csv(pa.Table.from_pylist(ordered, schema=SCHEMA), stream)
    try:
        write_bytes(file, stream.getvalue())
    except OSError as error:
        raise UserError("lut export", f"'{file}' cannot be written ({error.strerror})") from error


def _current(rows: Iterable[Row]) -> list[Row]:
    """The latest entry of each device, operator and method, with any settings and the chosen implementation."""
    latest: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: str(row["measured_at"])):
        latest.setdefault((device_of(row), row["digest"], row["method"]), {})[row["implementation"]] = row
    chosen = []
    for rows in (list(found.values()) for found in latest.values()):
        timed = []
        for row in rows:
            latency_ms = 0.0 if row["state"] == "fused" else row["p50_ms"]
            timed.append(TimedImplementation(row["implementation"], latency_ms, row["spread"] or 0.0, row["n"]))
        chosen.append(rows[position_of_chosen(timed)])
    return chosen


def _grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
