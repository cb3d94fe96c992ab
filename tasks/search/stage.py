"""The search stage: for every latency budget the SubNet with the best predicted accuracy."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tailor_ir
from tasks.artifacts import write_json
from tasks.errors import UserError
from tasks.progress import Progress
from tasks.search.baseline import uniform_codes
from tasks.search.descent import beam_descent, fastest
from tasks.search.front import hypervolume, pareto_mask
from tasks.search.genetic import Winner, search
from tasks.search.problem import AccuracyModel, Codes, LatencyModel, Problem, Scores
from tasks.search.settings import Settings

FRONT_FILE = "front.json"


def find_winners(
    problem: Problem, settings: Settings, rng: np.random.Generator, progress: Progress, *, device: str
) -> tuple[list[float], list[Winner], Codes]:
    """Budgets [ms] ascending, their winners, and the code (V,) of the fastest SubNet.

    UserError when a budget is below the fastest SubNet, before anything is searched.
    """
    quickest = fastest(problem, rng)
    if settings.budgets_ms is not None:
        _refuse_infeasible(settings.budgets_ms, problem.evaluate(quickest[None]).latency_ms[0], device)
    starts = beam_descent(problem, settings.beam_width).codes
    if settings.budgets_ms is not None:
        budgets_ms = sorted(set(settings.budgets_ms))
    else:
        largest = problem.space.canonical_codes(problem.largest[None])[0]
        ceiling_ms = problem.evaluate(np.stack([quickest, largest])).latency_ms.max()
        best = search(problem, ceiling_ms, starts, quickest, settings, rng).code
        starts = np.concatenate([starts, best[None]])
        fastest_ms, best_ms, largest_ms = problem.evaluate(np.stack([quickest, best, largest])).latency_ms
        budgets_ms = _ladder(fastest_ms, best_ms, largest_ms, settings.budget_count)
    winners: list[Winner] = []
    with progress.bar(f"search {device}", len(budgets_ms)) as bar:
        for budget_ms in budgets_ms:
            winners.append(search(problem, budget_ms, starts, quickest, settings, rng))
            starts = np.concatenate([starts, winners[-1].code[None]])
            bar.note(f"{budget_ms:g} ms, {winners[-1].stopped}")
            bar.advance()
    return budgets_ms, winners, quickest


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
    """Search all budgets of one device; writes `front.json` into `out` and returns its content."""
    net = tailor_ir.load(supernet)
    problem = Problem(net.space, latency, accuracy)
    budgets_ms, winners, quickest = find_winners(
        problem, settings, np.random.default_rng(settings.seed), progress, device=device
    )
    codes = np.stack([winner.code for winner in winners])
    scores = problem.evaluate(codes)
    rows = [
        {"budget_ms": budget_ms, **row, "generations": winner.generations, "stopped": winner.stopped}
        for budget_ms, winner, row in zip(budgets_ms, winners, _describe(net, codes, scores), strict=True)
    ]
    ends = np.stack([quickest, problem.space.canonical_codes(problem.largest[None])[0]])
    fastest_row, largest_row = _describe(net, ends, problem.evaluate(ends))
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


def _describe(net: Any, codes: Codes, scores: Scores) -> list[dict[str, Any]]:
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
        rows += [{"scaled": name, **row} for row in _describe(net, codes, problem.evaluate(codes))]
    return rows


def _hypervolume(scores: Scores, fastest_row: dict[str, Any], largest_row: dict[str, Any]) -> dict[str, float]:
    """Area under the front; reference corner: the largest SubNet's latency, the fastest SubNet's accuracy."""
    corner = {
        "reference_ms": largest_row["predicted_ms"],
        "reference_accuracy": fastest_row["predicted_accuracy"],
    }
    return {"value": hypervolume(scores.latency_ms, scores.accuracy, **corner), **corner}
