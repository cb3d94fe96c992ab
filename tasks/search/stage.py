"""The search stage: for every latency budget the SubNet with the best predicted accuracy, on one device or on several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import tailor_ir
from solvers.front import Points, hypervolume, pareto_mask
from tailor_ir import KINDS, Space, SuperNet
from tailor_ir.memory import ONNXRUNTIME, Rules
from tasks.base.artifacts import NO_STORE, SubNetStore
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.predictions import Uncertainty
from tasks.base.schemas.stored import StageResult
from tasks.base.schemas.winners import FRONT_FILE, WHOLE_FRONT_FILE, Front, WholeFront
from tasks.evaluation.subnets import EvaluationData
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.resources import MemoryPredictor
from tasks.prediction.sums import mac_sums, parameter_sums
from tasks.search.feasibility import LATENCY, Cost, refusal, round_up
from tasks.search.genetic import BestCode
from tasks.search.methods import Exact, Genetic, MeasuredWinners, Method, PredictedWinners, measured_winners
from tasks.search.problem import AccuracyModel, Codes, CostModel, Problem, Values, additive, chain_of, uniform_codes
from tasks.search.settings import Settings, WinnerLimits

Row = dict[str, Any]

SIZES = {"parameters": parameter_sums, "macs": mac_sums}

UNKNOWN = Uncertainty()

LEAST_BUDGET = 1.05
"""The lowest budget, relative to the predicted latency of the fastest SubNet, if no budgets are given."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device with the predictor of its latency. energy: for limits of energy. rules: of its runtime, for limits of memory."""

    name: str
    latency: CostModel
    energy: CostModel | None = None
    rules: Rules = ONNXRUNTIME


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A search on one device, or on several together. accuracy: predictor of the SubNets' accuracies.

    images: for `settings.accuracy=measured`. uncertainty, given_accuracy: for `front.json`.
    """

    supernet: Path
    targets: Sequence[Target]
    accuracy: AccuracyModel
    settings: Settings
    images: EvaluationData | None = None
    uncertainty: Uncertainty = UNKNOWN
    given_accuracy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedSuperNet:
    """A SuperNet whose SubNets are measured after a search. accuracy: predictor of their accuracies.

    images: for evaluating SubNets. store: has earlier measurements of SubNets, and gets new ones.
    """

    supernet: Path
    accuracy: AccuracyPredictor
    images: EvaluationData
    store: SubNetStore = NO_STORE


def run(request: SearchRequest, out: Path, progress: Progress) -> dict[str, StageResult]:
    """Search all budgets of the request's devices; returns the content of `front.json` for each.

    The files are written into `out`; for several devices, into a folder for each. UserError if the budgets or the limits cannot
    be kept, or if an exact search is requested with predictors that are no sums.
    """
    net, targets, settings = tailor_ir.load(request.supernet), request.targets, request.settings
    costs = costs_of(net, targets, settings)
    latency, *others = (cost.model for cost in costs)
    problem = Problem(net.space, latency, request.accuracy, tuple(others), timed=len(targets))
    limits = np.array([cost.limit for cost in costs])
    method = method_of(problem, net.space, settings, limits)
    budgets, winners = find_winners(problem, method, settings, progress, costs)
    measured = None
    if settings.accuracy == "measured":
        assert request.images is not None, "measured accuracy comes with images"
        rows = [_bounds(row, costs) for row in budgets]
        predicted = PredictedWinners(problem=problem, budgets=rows, winners=winners, fastest=method.quickest())
        measured = measured_winners(net, predicted, settings, request.images, out, progress)
        winners = measured.winners
    found = SearchResult(budgets, winners, method.quickest(), measured)
    whole = None
    if settings.lists_whole_front([target.name for target in targets]):
        assert isinstance(method, Exact), "the exact search alone lists whole fronts"
        points = method.whole_front(progress, targets[0].name)
        whole = write_whole_front(net.space, problem, points, out / WHOLE_FRONT_FILE)
    fronts: dict[str, StageResult] = {}
    for column, target in enumerate(targets):
        row = front_of(net, problem, costs, found, column)
        described = {"settings": settings.model_dump(mode="json"), "uncertainty": request.uncertainty}
        if request.given_accuracy is not None:
            described["given_accuracy"] = request.given_accuracy
        front = Front.model_validate({**row, "whole_front": whole, **described})
        folder = out / target.name if len(targets) > 1 else out
        folder.mkdir(parents=True, exist_ok=True)
        fronts[target.name] = front.write(folder / FRONT_FILE)
    return fronts


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


def costs_of(net: SuperNet, targets: Sequence[Target], settings: Settings) -> list[Cost]:
    """The latency on each device, then each cost with a limit, of a device or of the SubNet.

    A cost that is the same on several devices has the strictest of their limits.
    """
    costs = [Cost(LATENCY, target.name, target.latency) for target in targets]
    limits = [(target, settings.limits_of(target.name).given) for target in targets]
    for name in WinnerLimits.model_fields:
        limited = sorted(((own[name], target) for target, own in limits if name in own), key=lambda one: one[0])
        if name == "energy_mj":
            for limit, target in limited:
                assert target.energy is not None, "a limit of energy comes with its predictor"
                costs.append(Cost(name, target.name, target.energy, limit))
        elif name == "memory_mib":
            strictest = {target.rules: (limit, target.name) for limit, target in reversed(limited)}
            for rules, (limit, device) in strictest.items():
                costs.append(Cost(name, device, MemoryPredictor.compile(net, rules).within(limit), limit))
        elif limited:
            limit, target = limited[0]
            costs.append(Cost(name, target.name, SIZES[name](net), limit))
    return costs


def _bounds(budgets_ms: Sequence[float], costs: Sequence[Cost]) -> Values:
    """Budgets (K,) of all costs: latency budgets, one for each device, then the limits."""
    return np.array([*budgets_ms, *(cost.limit for cost in costs[len(budgets_ms) :])])


def find_winners(
    problem: Problem, method: Method, settings: Settings, progress: Progress, costs: Sequence[Cost]
) -> tuple[list[tuple[float, ...]], list[BestCode]]:
    """Latency budgets [ms], ascending, one for each device, and their winners. costs: the problem's, (K,).

    UserError, before any search, if the limits are contradictory, or if no SubNet within them keeps a budget.
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
        for budgets in (_bounds(row, costs) for row in rows):
            if not problem.evaluate(quickest[None]).within(budgets)[0]:
                _refuse_infeasible(problem, method, costs, budgets, rng)
    else:
        rows = _ladder(problem, method, settings.budget_count, limited=bool(np.isfinite(limits).any()))
    winners: list[BestCode] = []
    name = " and ".join(cost.device for cost in timed)
    with progress.bar(f"search {name}", len(rows)) as bar:
        for row in rows:
            winners.append(method.winner(_bounds(row, costs)))
            bar.note(f"{', '.join(f'{budget_ms:g}' for budget_ms in row)} ms, {winners[-1].stopped}")
            bar.advance()
    return rows, winners


def _refuse_infeasible(
    problem: Problem, method: Method, costs: Sequence[Cost], budgets: Values, rng: np.random.Generator
) -> None:
    scores = problem.evaluate(np.stack([method.quickest(), method.quickest(budgets)]))
    if scores.within(budgets)[1]:
        return
    if problem.timed > 1:
        raise refusal(problem, costs, budgets, rng)
    fastest_ms = scores.latency_ms[scores.within(_bounds([math.inf], costs))].min()
    within = " within search.limits" if len(costs) > 1 else ""
    raise UserError(
        f"search.{LATENCY}",
        f"{budgets[0]:g} ms is below the fastest SubNet{within}, predicted {fastest_ms:.4g} ms on '{costs[0].device}'",
        allowed=f"{round_up(fastest_ms):.10g} ms and more",
        next_step="raise the budget or give the space smaller choices",
    )


def _ladder(problem: Problem, method: Method, count: int, *, limited: bool) -> list[tuple[float, ...]]:
    """Budgets [ms] of each device at equal ratios, from just above the fastest SubNet to the best; more time gains nothing.

    The fastest SubNet is as likely slower as faster than predicted, and no other SubNet would keep a budget of its latency. If
    the best SubNet is nearer to it than to the largest, as in an untrained network, the last budget is that of the largest.
    There is one budget if all SubNets are about as fast.
    """
    best = method.best()
    largest = best if limited else problem.space.canonical_codes(problem.largest[None])[0]
    ends = problem.evaluate(np.stack([method.quickest(), best, largest])).costs[:, : problem.timed]
    rungs = []
    for fastest_ms, best_ms, largest_ms in ends.T.tolist():
        top_ms = best_ms if best_ms**2 > fastest_ms * largest_ms else max(fastest_ms, largest_ms)
        least_ms = LEAST_BUDGET * fastest_ms
        budgets_ms = np.geomspace(least_ms, max(least_ms, top_ms), count).tolist()
        rungs.append(map(round_up, budgets_ms))
    return list(dict.fromkeys(zip(*rungs, strict=True)))


def method_of(problem: Problem, space: Space, settings: Settings, limits: Values | None = None) -> Method:
    """The method of a search. limits: (K,), inf: none. UserError for an exact search with predictors that are no sums."""
    accuracy = problem.accuracy
    costs = [found for cost in problem.costs if (found := additive(cost)) is not None]
    summed = len(costs) == len(problem.costs) and isinstance(accuracy, AccuracyPredictor)

    def exact() -> Exact:
        assert isinstance(accuracy, AccuracyPredictor)
        chain = chain_of(space, accuracy, *(row for cost in costs for row in cost.rows))
        return Exact(problem, chain, settings, costs, limits)

    asked = exact if summed else None
    if settings.method == "genetic":
        return Genetic(problem, settings, np.random.default_rng(settings.seed), limits, asked)
    if settings.method == "nsga2":
        from tasks.search.nsga2 import Nsga2  # pymoo takes a while

        return Nsga2(problem, settings, limits, asked)
    if summed:
        return exact()
    names = [type(model).__name__ for model in (*problem.costs, accuracy)]
    raise UserError(
        "search.method=exact",
        f"{', '.join(names[:-1])} and {names[-1]} are no sums over few variables each",
        next_step="use search=genetic or search=nsga2",
    )
