"""Files of the search stage: rows of JSON with SubNets and their predictions, and the table of the whole front."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from solvers.front import Points, hypervolume, pareto_mask
from tailor_ir import KINDS, Config, Space, SuperNet
from tasks.base.errors import UserError
from tasks.base.schemas.winners import Front
from tasks.search.feasibility import Cost
from tasks.search.genetic import BestCode
from tasks.search.methods import MeasuredWinners
from tasks.search.problem import Codes, Problem, Values, uniform_codes


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


class SubNetRow(TypedDict):
    """A SubNet with its predictions, in the form that `Predicted` reads. `predicted_…`: costs with a limit."""

    digest: str
    config: Config
    predicted_ms: float
    predicted_accuracy: float
    predicted_score: float
    macs: int
    parameters: int
    predicted_energy_mj: NotRequired[float]
    predicted_memory_mib: NotRequired[float]


class WinnerRow(SubNetRow):
    """A winner, in the form that `Winner` reads. `budgets_ms`: on all devices, if several were searched together."""

    budget_ms: float
    generations: int
    stopped: str
    budgets_ms: NotRequired[dict[str, float]]
    measured_accuracy: NotRequired[float]


class UniformRow(SubNetRow):
    """A uniformly shrunk SubNet; `scaled`: the variables that share one level."""

    scaled: str


class FrontFields(TypedDict):
    """The content of `front.json`, in the form that `Front` reads, without the settings and the whole front."""

    device: str
    winners: list[WinnerRow]
    front: list[str]
    fastest: SubNetRow
    largest: SubNetRow
    baseline: list[UniformRow]
    hypervolume: dict[str, float]
    evaluations: int
    evaluated: int


class WholeFrontColumns(TypedDict):
    """The SubNets of the whole front by rising latency. `error`: the share of a budget that the front may miss."""

    error: float
    predicted_ms: list[float]
    predicted_accuracy: list[float]


def front_of(net: SuperNet, problem: Problem, costs: Sequence[Cost], found: SearchResult, column: int) -> FrontFields:
    """The content of `front.json` for the device of one column, without the settings and the whole front."""
    budgets, winners, measured = found.budgets, found.winners, found.measured
    own = partial(rows_of, net, problem, costs, column=column)
    codes = np.stack([winner.code for winner in winners])
    scores = problem.evaluate(codes)
    rows: list[WinnerRow] = [
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


def rows_of(net: SuperNet, problem: Problem, costs: Sequence[Cost], codes: Codes, column: int = 0) -> list[SubNetRow]:
    """Rows of `_plain_rows`, with the predicted value of each limited cost: on the column's device, else on the first one."""
    rows = _plain_rows(net, codes, problem, column)
    limited = {cost.name: other for other, cost in reversed(list(enumerate(costs)))}
    limited |= {cost.name: other for other, cost in enumerate(costs) if cost.device == costs[column].device}
    if "energy_mj" in limited:
        for row, value in zip(rows, costs[limited["energy_mj"]].predict(codes).tolist(), strict=True):
            row["predicted_energy_mj"] = value
    if "memory_mib" in limited:
        for row, value in zip(rows, costs[limited["memory_mib"]].predict(codes).tolist(), strict=True):
            row["predicted_memory_mib"] = value
    return rows


def _plain_rows(net: SuperNet, codes: Codes, problem: Problem, column: int) -> list[SubNetRow]:
    """A row for each code. column: the cost that is the latency [ms]."""
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


def _baseline(net: SuperNet, problem: Problem, described: Callable[[Codes], list[SubNetRow]]) -> list[UniformRow]:
    """Uniformly shrunk SubNets, with and without the resolution, predicted like the winners."""
    is_resolution = np.array([KINDS[variable.kind].uniform == "resolution" for variable in net.space.variables])
    scaled: Sequence[tuple[str, NDArray[np.bool_]]] = (
        ("all variables", np.ones_like(is_resolution)),
        ("all but the resolution", ~is_resolution),
    )
    rows: list[UniformRow] = []
    for name, mask in scaled:
        rows += [{"scaled": name, **row} for row in described(uniform_codes(problem.space, mask))]
    return rows


def _hypervolume(
    latency_ms: Values, accuracy: Values, fastest_row: SubNetRow, largest_row: SubNetRow
) -> dict[str, float]:
    """Area under the front; reference corner: the largest SubNet's latency, the fastest SubNet's accuracy."""
    slowest_ms, lowest = largest_row["predicted_ms"], fastest_row["predicted_accuracy"]
    area = hypervolume(latency_ms, accuracy, reference_cost=slowest_ms, reference_gain=lowest)
    return {"value": area, "reference_ms": slowest_ms, "reference_accuracy": lowest}


def whole_front_of(problem: Problem, whole: Points) -> WholeFrontColumns:
    """The SubNets of the whole front by ascending latency, and the share of a budget that the front may miss."""
    return {
        "error": whole.error,
        "predicted_ms": whole.cost.tolist(),
        "predicted_accuracy": problem.accuracy.predict(whole.codes).tolist(),
    }


def write_table(space: Space, codes: Codes, whole: WholeFrontColumns, file: Path) -> None:
    """Write a row for each SubNet of the whole front: digest, predictions, each variable's choice (null in skipped blocks).

    codes: (n, V). whole: the result of `whole_front_of`.
    """
    configs = [space.decode(code) for code in codes]
    columns: dict[str, Any] = {"digest": [space.digest(config) for config in configs]}
    columns |= {name: values for name, values in whole.items() if name != "error"}
    columns |= {variable.name: [config.get(variable.name) for config in configs] for variable in space.variables}
    parquet.write_table(pa.table(columns), file)
