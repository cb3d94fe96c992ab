"""The search stage: for every latency budget the SubNet with the best predicted accuracy."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tailor_ir
from tailor_ir import Space
from tasks.artifacts import write_json
from tasks.errors import UserError
from tasks.predict.accuracy import AccuracyPredictor
from tasks.predict.latency import LatencyPredictor
from tasks.progress import Progress
from tasks.search.baseline import uniform_codes
from tasks.search.front import hypervolume, pareto_mask
from tasks.search.genetic import Winner
from tasks.search.methods import Exact, Genetic, Method
from tasks.search.problem import AccuracyModel, Codes, LatencyModel, Problem, Scores
from tasks.search.settings import Settings
from tasks.search.terms import chain_of

FRONT_FILE = "front.json"


def find_winners(
    problem: Problem, method: Method, settings: Settings, progress: Progress, *, device: str
) -> tuple[list[float], list[Winner]]:
    """Budgets [ms] ascending, and their winners.

    UserError when a budget is below the fastest SubNet, before anything is searched.
    """
    if settings.budgets_ms is not None:
        _refuse_infeasible(settings.budgets_ms, problem.evaluate(method.quickest[None]).latency_ms[0], device)
        budgets_ms = sorted(set(settings.budgets_ms))
    else:
        largest = problem.space.canonical_codes(problem.largest[None])[0]
        ends = np.stack([method.quickest, method.best(), largest])
        fastest_ms, best_ms, largest_ms = problem.evaluate(ends).latency_ms
        budgets_ms = _ladder(fastest_ms, best_ms, largest_ms, settings.budget_count)
    winners: list[Winner] = []
    with progress.bar(f"search {device}", len(budgets_ms)) as bar:
        for budget_ms in budgets_ms:
            winners.append(method.winner(budget_ms))
            bar.note(f"{budget_ms:g} ms, {winners[-1].stopped}")
            bar.advance()
    return budgets_ms, winners


def method_of(problem: Problem, space: Space, settings: Settings) -> Method:
    """How to search. UserError when predictors that are no sums are to be searched exactly."""
    latency, accuracy = problem.latency, problem.accuracy
    if settings.method == "genetic":
        return Genetic(problem, settings, np.random.default_rng(settings.seed))
    if isinstance(latency, LatencyPredictor) and isinstance(accuracy, AccuracyPredictor):
        return Exact(problem, chain_of(space, accuracy, latency), settings.tolerance)
    raise UserError(
        "search.method=exact",
        f"{type(latency).__name__} and {type(accuracy).__name__} are no sums over few variables each",
        next_step="use search.method=genetic",
    )


def _refuse_infeasible(budgets_ms: Sequence[float], fastest_ms: float, device: str) -> None:
    if min(budgets_ms) < fastest_ms:
        raise UserError(
            "search.budgets_ms",
            f"{min(budgets_ms):g} ms is below the fastest SubNet, predicted {fastest_ms:.4g} ms on '{device}'",
            allowed=f"{fastest_ms:.4g} ms and more",
            next_step="raise the budget or give the space smaller choices",
        )


def _ladder(fastest_ms: float, best_ms: float, largest_ms: float, count: int) -> list[float]:
    """Budgets [ms] at equal ratios from the fastest SubNet to the best one: more time than that buys nothing.

    To the largest instead where the best is nearer to the fastest, as with an untrained network.
    """
    top_ms = best_ms if best_ms**2 > fastest_ms * largest_ms else max(fastest_ms, largest_ms)
    return [_round_up(budget_ms) for budget_ms in np.geomspace(fastest_ms, top_ms, count).tolist()]


def _round_up(value: float, digits: int = 4) -> float:
    """The next number with `digits` significant digits, never below the value."""
    scale = digits - 1 - math.floor(math.log10(value))
    return max(value, round(math.ceil(value * 10**scale) / 10**scale, scale))


def run(
    supernet: Path,
    latency: LatencyModel,
    accuracy: AccuracyModel,
    settings: Settings,
    out: Path,
    progress: Progress,
    *,
    device: str,
) -> dict[str, Any]:
    """Search all budgets of one device; writes `front.json` into `out` and returns its content.

    UserError when a budget cannot be kept, or predictors that are no sums are to be searched exactly.
    """
    net = tailor_ir.load(supernet)
    problem = Problem(net.space, latency, accuracy)
    method = method_of(problem, net.space, settings)
    budgets_ms, winners = find_winners(problem, method, settings, progress, device=device)
    codes = np.stack([winner.code for winner in winners])
    scores = problem.evaluate(codes)
    rows = [
        {"budget_ms": budget_ms, **row, "generations": winner.generations, "stopped": winner.stopped}
        for budget_ms, winner, row in zip(budgets_ms, winners, describe(net, codes, scores), strict=True)
    ]
    ends = np.stack([method.quickest, problem.space.canonical_codes(problem.largest[None])[0]])
    fastest_row, largest_row = describe(net, ends, problem.evaluate(ends))
    result = {
        "device": device,
        "winners": rows,
        "front": [rows[i]["digest"] for i in np.flatnonzero(pareto_mask(scores.latency_ms, scores.score))],
        "fastest": fastest_row,
        "largest": largest_row,
        "baseline": _baseline(net, problem),
        "hypervolume": _hypervolume(scores, fastest_row, largest_row),
        "evaluations": problem.evaluations,
        "settings": settings.model_dump(mode="json"),
    }
    write_json(out / FRONT_FILE, result)
    return result


def describe(net: Any, codes: Codes, scores: Scores) -> list[dict[str, Any]]:
    """One JSON row per code: config, predictions, size."""
    configs = [net.space.decode(code) for code in codes]
    return [
        {
            "digest": net.space.digest(config),
            "config": config,
            "predicted_ms": float(scores.latency_ms[row]),
            "predicted_accuracy": float(scores.accuracy[row]),
            "predicted_score": float(scores.score[row]),
            "macs": int(net.macs(config)),
            "parameters": int(net.parameters(config)),
        }
        for row, config in enumerate(configs)
    ]


def _baseline(net: Any, problem: Problem) -> list[dict[str, Any]]:
    """Uniformly shrunk SubNets, with and without the resolution, predicted like the winners."""
    is_resolution = np.array([variable.kind == "resolution" for variable in net.space.variables])
    scaled: Sequence[tuple[str, NDArray[np.bool_]]] = (
        ("all variables", np.ones_like(is_resolution)),
        ("all but the resolution", ~is_resolution),
    )
    rows = []
    for name, mask in scaled:
        codes = uniform_codes(problem.space, mask)
        rows += [{"scaled": name, **row} for row in describe(net, codes, problem.evaluate(codes))]
    return rows


def _hypervolume(scores: Scores, fastest_row: dict[str, Any], largest_row: dict[str, Any]) -> dict[str, float]:
    """Area under the front; reference corner: the largest SubNet's latency, the fastest SubNet's accuracy."""
    corner = {
        "reference_ms": largest_row["predicted_ms"],
        "reference_accuracy": fastest_row["predicted_accuracy"],
    }
    return {"value": hypervolume(scores.latency_ms, scores.accuracy, **corner), **corner}
