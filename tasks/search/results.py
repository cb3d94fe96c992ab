"""Files of the search stage: rows of JSON with SubNets and their predictions, and the table of the whole front."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from solvers.front import Points, hypervolume, pareto_mask
from tailor_ir import KINDS, Space, SuperNet
from tasks.base.errors import UserError
from tasks.base.schemas.winners import Front, WholeFront
from tasks.search.feasibility import Cost
from tasks.search.genetic import BestCode
from tasks.search.methods import MeasuredWinners
from tasks.search.problem import Codes, Problem, uniform_codes

Row = dict[str, Any]


def read_front(file: Path) -> Front:
    """The front that a search or a refinement wrote. UserError if it has no winner."""
    front = Front.read(file)
    if not front.winners:
        raise UserError(f"front '{file}'", "has no winner", next_step="search again: autotailor search …")
    return front


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search. budgets: rows [ms], one column for each device. fastest: code (V,) of the fastest SubNet.

    measured: the winners by measured accuracy, if the search measured it.
    """

    budgets: Sequence[tuple[float, ...]]
    winners: Sequence[BestCode]
    fastest: Codes
    measured: MeasuredWinners | None


def front_of(net: SuperNet, problem: Problem, costs: Sequence[Cost], found: SearchResult, column: int) -> Row:
    """The content of `front.json` for the device of one column, without the settings and the whole front.

    Its baseline are uniformly shrunk SubNets, with and without the resolution, predicted like the winners.
    """
    own = partial(rows_of, net, problem, costs, column=column)
    codes, measured = np.stack([winner.code for winner in found.winners]), found.measured
    rows = [
        {"budget_ms": row[column], **described, "generations": winner.generations, "stopped": winner.stopped}
        for row, winner, described in zip(found.budgets, found.winners, own(codes), strict=True)
    ]
    if problem.timed > 1:
        for row, budget in zip(rows, found.budgets, strict=True):
            row["budgets_ms"] = {cost.device: budget_ms for cost, budget_ms in zip(costs, budget, strict=False)}
    if measured is not None:
        for row, accuracy in zip(rows, measured.accuracy.tolist(), strict=True):
            row["measured_accuracy"] = accuracy
    fastest, largest = own(np.stack([found.fastest, problem.space.canonical_codes(problem.largest[None])[0]]))
    scores, slowest_ms, lowest = problem.evaluate(codes), largest["predicted_ms"], fastest["predicted_accuracy"]
    latency_ms, ranked = scores.costs[:, column], scores.score if measured is None else measured.accuracy
    accuracies = problem.accuracy.predict(codes)
    area = hypervolume(latency_ms, accuracies, reference_cost=slowest_ms, reference_gain=lowest)
    is_resolution = np.array([KINDS[variable.kind].uniform == "resolution" for variable in net.space.variables])
    scaled = {"all variables": np.ones_like(is_resolution), "all but the resolution": ~is_resolution}
    baseline = [
        {"scaled": name, **row} for name, mask in scaled.items() for row in own(uniform_codes(problem.space, mask))
    ]
    return {
        "device": costs[column].device,
        "winners": rows,
        "front": [rows[i]["digest"] for i in np.flatnonzero(pareto_mask(latency_ms, ranked))],
        "fastest": fastest,
        "largest": largest,
        "baseline": baseline,
        "hypervolume": {"value": area, "reference_ms": slowest_ms, "reference_accuracy": lowest},
        "evaluations": problem.evaluations,
        "evaluated": 0 if measured is None else measured.evaluated,
    }


def rows_of(net: SuperNet, problem: Problem, costs: Sequence[Cost], codes: Codes, column: int = 0) -> list[Row]:
    """SubNets with their predictions, in the form that `Predicted` reads. column: the cost that is the latency [ms].

    Limited costs are those of the column's device, else of the first device.
    """
    scores, accuracies = problem.evaluate(codes), problem.accuracy.predict(codes)
    configs = [net.space.decode(code) for code in codes]
    rows: list[Row] = [
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
    limited = {cost.name: cost for cost in reversed(costs)}
    limited |= {cost.name: cost for cost in costs if cost.device == costs[column].device}
    for name in ("energy_mj", "memory_mib"):
        values = limited[name].predict(codes).tolist() if name in limited else ()
        for row, value in zip(rows, values, strict=False):
            row[f"predicted_{name}"] = value
    return rows


def write_whole_front(space: Space, problem: Problem, found: Points, file: Path) -> WholeFront:
    """Write a row for each SubNet of the whole front: digest, predictions, each variable's choice (null in skipped blocks)."""
    configs = [space.decode(code) for code in found.codes]
    accuracies = problem.accuracy.predict(found.codes).tolist()
    columns: Row = {"digest": [space.digest(config) for config in configs]}
    columns |= {"predicted_ms": found.cost, "predicted_accuracy": accuracies}
    columns |= {variable.name: [config.get(variable.name) for config in configs] for variable in space.variables}
    parquet.write_table(pa.table(columns), file)
    return WholeFront(error=found.error, predicted_ms=tuple(found.cost.tolist()), predicted_accuracy=tuple(accuracies))
