"""The search stage: for every latency budget the SubNet with the best predicted accuracy, on one device or on several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

import tailor_ir
from tailor_ir import Space, SuperNet
from tailor_ir.steps import ONNXRUNTIME, Rules
from tasks.artifacts import write_json
from tasks.errors import UserError
from tasks.evaluate import EvaluationData
from tasks.predict.accuracy import AccuracyPredictor
from tasks.predict.counts import mac_sums, parameter_sums
from tasks.predict.memory import MemoryPredictor
from tasks.progress import Progress
from tasks.search.baseline import uniform_codes
from tasks.search.feasible import LATENCY, Cost, refusal, round_up
from tasks.search.front import hypervolume, pareto_mask
from tasks.search.genetic import Winner
from tasks.search.measured import Measured, measured_winners
from tasks.search.methods import Exact, Genetic, Method, Nsga2
from tasks.search.problem import AccuracyModel, Codes, CostModel, Problem, Values
from tasks.search.settings import Limits, Settings
from tasks.search.terms import additive, chain_of
from tasks.search.whole import Points

FRONT_FILE = "front.json"
WHOLE_FRONT_FILE = "whole_front.parquet"
SIZES = {"parameters": parameter_sums, "macs": mac_sums}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device that is searched for. energy, rules: for limits of energy and memory on it."""

    name: str
    latency: CostModel
    energy: CostModel | None = None
    rules: Rules = ONNXRUNTIME


def run(
    supernet: Path,
    targets: Sequence[Target],
    accuracy: AccuracyModel,
    settings: Settings,
    out: Path,
    progress: Progress,
    images: EvaluationData | None = None,
) -> dict[str, dict[str, Any]]:
    """Search all budgets of one device, or those of several together; returns the content of `front.json` for each device.

    images: what measured accuracy is measured on (`settings.accuracy`), in addition to the predicted one.
    It is written into `out`, for several devices into a folder there for each. UserError when the budgets or the limits
    cannot be kept, or predictors that are no sums are to be searched exactly.
    """
    net = tailor_ir.load(supernet)
    costs = _costs(net, targets, settings.limits)
    latency, *others = (cost.model for cost in costs)
    problem = Problem(net.space, latency, accuracy, tuple(others), timed=len(targets))
    limits = np.array([cost.limit for cost in costs])
    method = method_of(problem, net.space, settings, limits)
    budgets, winners = find_winners(problem, method, settings, progress, costs)
    measured = None
    if settings.accuracy == "measured":
        assert images is not None, "measured accuracy comes with images"
        rows = [np.array([*row, *limits[len(targets) :]]) for row in budgets]
        measured = measured_winners(net, problem, rows, winners, method.quickest(), settings, images, out, progress)
        winners = measured.winners
    fronts = {
        target.name: _front(net, problem, method, settings, costs, column, budgets, winners, measured)
        for column, target in enumerate(targets)
    }
    whole = None
    if settings.lists_whole_front(len(targets)):
        assert isinstance(method, Exact)
        whole = method.whole_front(progress, targets[0].name)
    for name, front in fronts.items():
        front["whole_front"] = None if whole is None else _whole_front(problem, whole)
        folder = out / name if len(targets) > 1 else out
        folder.mkdir(parents=True, exist_ok=True)
        if whole is not None:
            _write_table(net.space, problem, whole, folder / WHOLE_FRONT_FILE)
        write_json(folder / FRONT_FILE, front)
    return fronts


def _whole_front(problem: Problem, whole: Points) -> dict[str, Any]:
    """Its SubNets by ascending latency, and the share of a budget that it may miss."""
    return {
        "error": whole.error,
        "predicted_ms": whole.cost.tolist(),
        "predicted_accuracy": problem.accuracy.predict(whole.codes).tolist(),
    }


def _write_table(space: Space, problem: Problem, whole: Points, file: Path) -> None:
    """A row for each SubNet of the whole front: digest, predictions, and each variable's choice, null in skipped blocks."""
    configs = [space.decode(code) for code in whole.codes]
    columns: dict[str, Any] = {"digest": [space.digest(config) for config in configs]}
    columns |= {name: values for name, values in _whole_front(problem, whole).items() if name != "error"}
    columns |= {variable.name: [config.get(variable.name) for config in configs] for variable in space.variables}
    parquet.write_table(pa.table(columns), file)


def _costs(net: SuperNet, targets: Sequence[Target], limits: Limits) -> list[Cost]:
    """The latency on each device, then what has a limit: of each device, or of the SubNet."""
    costs = [Cost(LATENCY, target.name, target.latency) for target in targets]
    for name, limit in limits.given.items():
        if name in SIZES:
            costs.append(Cost(name, targets[0].name, SIZES[name](net), limit))
        elif name == "memory_mib":
            rules = {target.rules: target.name for target in reversed(targets)}
            costs += [Cost(name, device, MemoryPredictor.compile(net, own), limit) for own, device in rules.items()]
        else:
            for target in targets:
                assert target.energy is not None, "a limit of energy comes with its predictor"
                costs.append(Cost(name, target.name, target.energy, limit))
    return costs


def find_winners(
    problem: Problem, method: Method, settings: Settings, progress: Progress, costs: Sequence[Cost]
) -> tuple[list[tuple[float, ...]], list[Winner]]:
    """Latency budgets [ms], ascending, one for each device, and their winners. costs: the problem's, (K,).

    UserError when the limits are contradictory, or no SubNet within them keeps a budget, before anything is searched.
    """
    limits = np.array([cost.limit for cost in costs])
    timed = costs[: problem.timed]
    rng = np.random.default_rng(settings.seed)
    quickest = method.quickest()
    if not problem.evaluate(quickest[None]).within(limits)[0]:
        raise refusal(problem, costs, limits, rng)
    asked = [settings.budgets_of(cost.device) for cost in timed]
    given = [list(budgets) for budgets in asked if budgets is not None]
    if given:
        rows = sorted(set(zip(*given, strict=True)))
        for row in rows:
            _refuse_infeasible(problem, method, costs, np.array([*row, *limits[len(timed) :]]), rng)
    else:
        rows = _ladder(problem, method, settings.budget_count, limited=bool(np.isfinite(limits).any()))
    winners: list[Winner] = []
    name = " and ".join(cost.device for cost in timed)
    with progress.bar(f"search {name}", len(rows)) as bar:
        for row in rows:
            winners.append(method.winner(np.array([*row, *limits[len(timed) :]])))
            bar.note(f"{', '.join(f'{budget_ms:g}' for budget_ms in row)} ms, {winners[-1].stopped}")
            bar.advance()
    return rows, winners


def _refuse_infeasible(
    problem: Problem, method: Method, costs: Sequence[Cost], budgets: Values, rng: np.random.Generator
) -> None:
    scores = problem.evaluate(method.quickest()[None])
    if scores.within(budgets)[0]:
        return
    if problem.timed > 1:
        if not problem.evaluate(method.quickest(budgets)[None]).within(budgets)[0]:
            raise refusal(problem, costs, budgets, rng)
        return
    fastest_ms = scores.latency_ms[0]
    within = " within search.limits" if len(costs) > 1 else ""
    raise UserError(
        f"search.{LATENCY}",
        f"{budgets[0]:g} ms is below the fastest SubNet{within}, predicted {fastest_ms:.4g} ms on '{costs[0].device}'",
        allowed=f"{round_up(fastest_ms):.10g} ms and more",
        next_step="raise the budget or give the space smaller choices",
    )


def _ladder(problem: Problem, method: Method, count: int, *, limited: bool) -> list[tuple[float, ...]]:
    """Budgets [ms] of each device at equal ratios from the fastest SubNet to the best one: more time than that buys nothing.

    To the largest instead where the best is nearer to the fastest, as with an untrained network.
    """
    best = method.best()
    largest = best if limited else problem.space.canonical_codes(problem.largest[None])[0]
    ends = problem.evaluate(np.stack([method.quickest(), best, largest])).costs[:, : problem.timed]
    rungs = []
    for fastest_ms, best_ms, largest_ms in ends.T.tolist():
        top_ms = best_ms if best_ms**2 > fastest_ms * largest_ms else max(fastest_ms, largest_ms)
        rungs.append([round_up(budget_ms) for budget_ms in np.geomspace(fastest_ms, top_ms, count).tolist()])
    return list(zip(*rungs, strict=True))


def method_of(problem: Problem, space: Space, settings: Settings, limits: Values | None = None) -> Method:
    """How to search. limits: (K,), inf: none. UserError when predictors that are no sums are to be searched exactly."""
    accuracy = problem.accuracy
    costs = [found for cost in problem.costs if (found := additive(cost)) is not None]
    summed = len(costs) == len(problem.costs) and isinstance(accuracy, AccuracyPredictor)

    def exact() -> Exact:
        assert isinstance(accuracy, AccuracyPredictor)
        chain = chain_of(space, accuracy, *(row for cost in costs for row in cost.rows))
        return Exact(problem, chain, settings, costs, limits)

    asked = exact if summed and len(problem.costs) > 1 else None
    if settings.method == "genetic":
        return Genetic(problem, settings, np.random.default_rng(settings.seed), limits, asked)
    if settings.method == "nsga2":
        return Nsga2(problem, settings, limits, asked)
    if summed:
        return exact()
    names = [type(model).__name__ for model in (*problem.costs, accuracy)]
    raise UserError(
        "search.method=exact",
        f"{', '.join(names[:-1])} and {names[-1]} are no sums over few variables each",
        next_step="use search=genetic or search=nsga2",
    )


def _front(
    net: SuperNet,
    problem: Problem,
    method: Method,
    settings: Settings,
    costs: Sequence[Cost],
    column: int,
    budgets: Sequence[tuple[float, ...]],
    winners: Sequence[Winner],
    measured: Measured | None,
) -> dict[str, Any]:
    """What `front.json` of the device of one column says."""
    own = partial(_describe_all, net, problem, costs, column)
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
    ends = np.stack([method.quickest(), problem.space.canonical_codes(problem.largest[None])[0]])
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
        "settings": settings.model_dump(mode="json"),
    }


def _describe_all(
    net: SuperNet, problem: Problem, costs: Sequence[Cost], column: int, codes: Codes
) -> list[dict[str, Any]]:
    """Rows of `describe` with the latency of one column, and with what is limited: of its device, else of the first."""
    scores = problem.evaluate(codes)
    rows = describe(net, codes, problem, column)
    limited = {cost.name: other for other, cost in reversed(list(enumerate(costs)))}
    limited |= {cost.name: other for other, cost in enumerate(costs) if cost.device == costs[column].device}
    for name, other in limited.items():
        if name not in (LATENCY, *SIZES):
            for row, value in zip(rows, scores.costs[:, other].tolist(), strict=True):
                row[f"predicted_{name}"] = value
    return rows


def describe(net: SuperNet, codes: Codes, problem: Problem, column: int = 0) -> list[dict[str, Any]]:
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
