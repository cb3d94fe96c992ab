"""What the search stage writes of SubNets: rows of JSON with their predictions, and the table of the whole front."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from tailor_ir import Space, SuperNet
from tasks.artifacts import read_json
from tasks.errors import UserError
from tasks.search.baseline import uniform_codes
from tasks.search.feasible import LATENCY, Cost
from tasks.search.front import hypervolume, pareto_mask
from tasks.search.genetic import Winner
from tasks.search.measured import Measured
from tasks.search.problem import Codes, Problem, Values
from tasks.search.whole import Points

FRONT_FILE = "front.json"
WHOLE_FRONT_FILE = "whole_front.parquet"


def read_front(file: Path) -> dict[str, Any]:
    """What a search, or a refinement, wrote. UserError when there is no winner."""
    front: dict[str, Any] = read_json(file)
    if not front["winners"]:
        raise UserError(f"front '{file}'", "has no winner", next_step="search again: autotailor search …")
    return front


@dataclass(frozen=True, slots=True)
class Found:
    """Winners of budgets [ms], a row of one for each device; the fastest SubNet's code (V,); what was measured of winners."""

    budgets: Sequence[tuple[float, ...]]
    winners: Sequence[Winner]
    fastest: Codes
    measured: Measured | None


def front_of(net: SuperNet, problem: Problem, costs: Sequence[Cost], found: Found, column: int) -> dict[str, Any]:
    """What `front.json` of the device of one column says, but for the settings and the whole front."""
    budgets, winners, measured = found.budgets, found.winners, found.measured
    own = partial(rows_of, net, problem, costs, column=column)
    codes = np.stack([winner.code for winner in winners])
    scores = problem.evaluate(codes)
    rows = [
        {"budget_ms": row[column], **described, "generations": winner.generations, "stopped": winner.stopped}
        for row, winner, described in zip(budgets, winners, own(codes), strict=True)
    ]
    if problem.timed > 1:
        for row, budget in zip(rows, budgets, strict=True):
            row["budgets_ms"] = {cost.device: budget_ms for cost, budget_ms in zip(costs, budget, strict=False)}
    if measured is not None:
        for row, accuracy in zip(rows, measured.accuracy.tolist(), strict=True):
            row["measured_accuracy"] = accuracy
    ends = np.stack([found.fastest, problem.space.canonical_codes(problem.largest[None])[0]])
    fastest_row, largest_row = own(ends)
    latency_ms, ranked = scores.costs[:, column], scores.score if measured is None else measured.accuracy
    return {
        "device": costs[column].device,
        "winners": rows,
        "front": [rows[i]["digest"] for i in np.flatnonzero(pareto_mask(latency_ms, ranked))],
        "fastest": fastest_row,
        "largest": largest_row,
        "baseline": _baseline(net, problem, own),
        "hypervolume": _hypervolume(latency_ms, problem.accuracy.predict(codes), fastest_row, largest_row),
        "evaluations": problem.evaluations,
        "evaluated": 0 if measured is None else measured.evaluated,
    }


def rows_of(
    net: SuperNet, problem: Problem, costs: Sequence[Cost], codes: Codes, column: int = 0
) -> list[dict[str, Any]]:
    """Rows of `_plain_rows`, and with what is limited: of the column's device, else of the first."""
    scores = problem.evaluate(codes)
    rows = _plain_rows(net, codes, problem, column)
    limited = {cost.name: other for other, cost in reversed(list(enumerate(costs)))}
    limited |= {cost.name: other for other, cost in enumerate(costs) if cost.device == costs[column].device}
    for name, other in limited.items():
        if name not in (LATENCY, "parameters", "macs"):
            for row, value in zip(rows, scores.costs[:, other].tolist(), strict=True):
                row[f"predicted_{name}"] = value
    return rows


def _plain_rows(net: SuperNet, codes: Codes, problem: Problem, column: int) -> list[dict[str, Any]]:
    """One JSON row per code: config, predictions, size. column: the cost that is the latency [ms]."""
    scores, accuracies = problem.evaluate(codes), problem.accuracy.predict(codes)
    configs = [net.space.decode(code) for code in codes]
    return [
        {
            "digest": net.space.digest(config),
            "config": config,
            "predicted_ms": float(scores.costs[row, column]),
            "predicted_accuracy": float(accuracies[row]),
            "predicted_score": float(scores.score[row]),
            "macs": int(net.macs(config)),
            "parameters": int(net.parameters(config)),
        }
        for row, config in enumerate(configs)
    ]


def _baseline(
    net: SuperNet, problem: Problem, described: Callable[[Codes], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Uniformly shrunk SubNets, with and without the resolution, predicted like the winners."""
    is_resolution = np.array([variable.kind == "resolution" for variable in net.space.variables])
    scaled: Sequence[tuple[str, NDArray[np.bool_]]] = (
        ("all variables", np.ones_like(is_resolution)),
        ("all but the resolution", ~is_resolution),
    )
    rows = []
    for name, mask in scaled:
        rows += [{"scaled": name, **row} for row in described(uniform_codes(problem.space, mask))]
    return rows


def _hypervolume(
    latency_ms: Values, accuracy: Values, fastest_row: dict[str, Any], largest_row: dict[str, Any]
) -> dict[str, float]:
    """Area under the front; reference corner: the largest SubNet's latency, the fastest SubNet's accuracy."""
    corner = {
        "reference_ms": largest_row["predicted_ms"],
        "reference_accuracy": fastest_row["predicted_accuracy"],
    }
    return {"value": hypervolume(latency_ms, accuracy, **corner), **corner}


def whole_front_of(problem: Problem, whole: Points) -> dict[str, Any]:
    """Its SubNets by ascending latency, and the share of a budget that it may miss."""
    return {
        "error": whole.error,
        "predicted_ms": whole.cost.tolist(),
        "predicted_accuracy": problem.accuracy.predict(whole.codes).tolist(),
    }


def write_table(space: Space, codes: Codes, whole: dict[str, Any], file: Path) -> None:
    """A row for each SubNet of the whole front: digest, predictions, and each variable's choice, null in skipped blocks.

    codes: (n, V). whole: what `whole_front_of` says of them.
    """
    configs = [space.decode(code) for code in codes]
    columns: dict[str, Any] = {"digest": [space.digest(config) for config in configs]}
    columns |= {name: values for name, values in whole.items() if name != "error"}
    columns |= {variable.name: [config.get(variable.name) for config in configs] for variable in space.variables}
    parquet.write_table(pa.table(columns), file)
