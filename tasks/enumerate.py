"""Stage "enumerate": every operator that any SubNet of a SuperNet has, once, with one SubNet that has it."""

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tailor_ir
from tailor_ir import OperatorFeature
from tasks.artifacts import read_json, write_json
from tasks.progress import Progress

OPERATORS_FILE = "operators.json"
COUNTS = ("modifications", "codes", "distinct", "unique_operators", "enumerate_s")


def run(net_folder: Path, out_folder: Path, progress: Progress, batch: int = 1) -> dict[str, Any]:
    """Write `operators.json` from a folder of `SuperNet.save`, of a batch of samples; returns the summary."""
    net = tailor_ir.load(net_folder, batch=batch)
    start = time.perf_counter()
    witnesses = net.unique_operators()
    enumerate_s = time.perf_counter() - start
    default = net.space.max_config
    told = {f: {n: c for n, c in config.items() if c != default[n]} for f, config in witnesses.items()}
    write_operators(out_folder / OPERATORS_FILE, told)
    progress.metrics({"unique_operators": len(witnesses), "enumerate_s": enumerate_s}, step=0)
    space = net.space
    return {
        "variables": len(space.variables),
        "modifications": space.modifications,
        "codes": space.codes,
        "distinct": space.distinct,
        "unique_operators": len(witnesses),
        "operators": dict(Counter(feature.operator for feature in witnesses).most_common()),
        "enumerate_s": round(enumerate_s, 6),
    }


def write_operators(path: Path, witnesses: Mapping[OperatorFeature, Mapping[str, float]]) -> None:
    """Every operator with its digest and its witness: where a config that has it differs from the largest SubNet's."""
    rows = [
        {"digest": feature.digest, "feature": feature.to_json(), "witness": dict(config)}
        for feature, config in witnesses.items()
    ]
    write_json(path, sorted(rows, key=lambda row: str(row["digest"])))


def listing(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """What `enumerate --json` writes beside its stages: the counts, and every operator with its witness."""
    return {**{name: result[name] for name in COUNTS}, "operators": read_json(folder / OPERATORS_FILE)}


def read_operators(folder: Path) -> dict[str, OperatorFeature]:
    """Digest -> operator, from the folder of this stage."""
    rows = read_json(folder / OPERATORS_FILE)
    return {row["digest"]: OperatorFeature.from_json(row["feature"]) for row in rows}
