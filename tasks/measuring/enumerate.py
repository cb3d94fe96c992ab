"""Stage "enumerate": every operator of any SubNet of a SuperNet, once, with one SubNet that has it."""

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import tailor_ir
from tailor_ir import Choice, OperatorFeature
from tasks.base.progress import Progress
from tasks.base.schemas.operators import OPERATORS_FILE, Operators, UniqueOperator
from tasks.base.schemas.results import EnumerateResult
from tasks.base.schemas.stored import StageResult


def run(net_folder: Path, out_folder: Path, progress: Progress, batch: int = 1) -> StageResult:
    """Write `operators.json` from a folder of `SuperNet.save`, for a batch of samples; returns the summary."""
    net = tailor_ir.load(net_folder, batch=batch)
    start = time.perf_counter()
    witnesses = net.unique_operators()
    enumerate_s = time.perf_counter() - start
    default = net.space.max_config
    told = {f: {n: c for n, c in config.items() if c != default[n]} for f, config in witnesses.items()}
    write_operators(out_folder / OPERATORS_FILE, told)
    progress.metrics({"unique_operators": len(witnesses), "enumerate_s": enumerate_s}, step=0)
    space = net.space
    return EnumerateResult(
        variables=len(space.variables),
        modifications=space.modifications,
        codes=space.codes,
        distinct=space.distinct,
        unique_operators=len(witnesses),
        operators=dict(Counter(feature.operator for feature in witnesses).most_common()),
        enumerate_s=round(enumerate_s, 6),
    ).to_json()


def write_operators(path: Path, witnesses: Mapping[OperatorFeature, Mapping[str, Choice]]) -> None:
    """Write every operator with its digest and its witness: the difference of a config that has it from the largest
    SubNet's.
    """
    rows = (
        UniqueOperator(digest=feature.digest, feature=feature.to_json(), witness=dict(config))
        for feature, config in witnesses.items()
    )
    Operators(operators=tuple(sorted(rows, key=lambda row: row.digest))).write(path)


class OperatorListing(TypedDict):
    """The sizes of a space, the time of enumeration [s], and every unique operator (`UniqueOperator`)."""

    modifications: int
    codes: int
    distinct: int
    unique_operators: int
    enumerate_s: float
    operators: list[dict[str, Any]]


def listing(folder: Path, result: Mapping[str, Any]) -> OperatorListing:
    """The operators in the output of `enumerate --json`, beside the stages."""
    operators = Operators.read(folder / OPERATORS_FILE).to_json()["operators"]
    return {
        "modifications": result["modifications"],
        "codes": result["codes"],
        "distinct": result["distinct"],
        "unique_operators": result["unique_operators"],
        "enumerate_s": result["enumerate_s"],
        "operators": operators,
    }


def read_operators(folder: Path) -> dict[str, OperatorFeature]:
    """Digest -> operator, from the folder of this stage."""
    rows = Operators.read(folder / OPERATORS_FILE).operators
    return {row.digest: OperatorFeature.from_json(row.feature) for row in rows}
