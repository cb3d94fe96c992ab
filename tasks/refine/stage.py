"""The refinement of one device: `measure` times candidates there, `choose` evaluates them and takes the best.

Every SubNet that was measured is a candidate for every budget that it keeps. A budget's own are the best by prediction
around the search's winner (`candidates`). The second half of them are sought with predicted latencies times what they were
wrong by on the first half, since near a winner that is one factor. A budget that none keeps gets more of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tailor_ir
from profiling_agents.client import AgentClient
from profiling_agents.messages import Measurement
from tasks.artifacts import append_line, read_json, read_lines, write_json
from tasks.convert import Limits
from tasks.errors import UserError
from tasks.evaluate import Accuracy, EvaluationData, accuracies
from tasks.predict.accuracy import AccuracyPredictor, validate
from tasks.predict.measure import SubNetMeter
from tasks.predict.settings import Settings as PredictSettings
from tasks.predict.validate import errors
from tasks.progress import Progress
from tasks.refine.pool import Budget, Pool
from tasks.refine.settings import Settings
from tasks.search import FRONT_FILE, read_front
from tasks.search.front import pareto_mask
from tasks.search.stage import Target

CANDIDATES_FILE = "candidates.jsonl"
TIMED_FILE = "timed.jsonl"
EVALUATED_FILE = "evaluated.jsonl"
MEASURED_FILE = "measured.json"
MOST_ROUNDS = 5

Row = dict[str, Any]


def measure(
    settings: Settings,
    predict: PredictSettings,
    supernet: Path,
    search: Path,
    target: Target,
    accuracy: AccuracyPredictor,
    client: AgentClient,
    out: Path,
    progress: Progress,
    batch: int = 1,
) -> None:
    """Time the candidates of every budget on the device, whose lease the caller holds; writes `measured.json`.

    target: as it was searched for.
    A second call in the same folder goes on.
    """
    net = tailor_ir.load(supernet, batch=batch)
    limits = Limits(wall_s=predict.conversion_wall_s, memory_mib=predict.conversion_memory_mib)
    meter = SubNetMeter(net, client, predict.measure, limits, predict.rounds)
    pool = Pool(tailor_ir.load(supernet), target, accuracy, read_front(search / FRONT_FILE))
    budgets = [
        Budget(row["budget_ms"], (1 - settings.margin) * row["budget_ms"], code, {row["digest"]: row["predicted_ms"]})
        for row, code in zip(pool.winners, pool.around.winners, strict=True)
    ]
    chosen = {(line["round"], line["budget"]): line["own"] for line in read_lines(out / CANDIDATES_FILE)}
    timed: dict[str, Measurement] = {}
    first = math.ceil(settings.candidates / 2)
    for turn in range(MOST_ROUNDS):
        wanted = (first - 1, settings.candidates - first)[turn] if turn < 2 else first
        timed_ms = {digest: found.p50_ms for digest, found in timed.items() if found.p50_ms is not None}
        for number, budget in enumerate(budgets):
            own = chosen.get((turn, number))
            if own is None and (turn < 2 or min(timed_ms.values(), default=math.inf) > budget.limit_ms):
                own = pool.more(budget, budget.predicted_limit_ms(turn, timed_ms), wanted)
                append_line(out / CANDIDATES_FILE, {"round": turn, "budget": number, "own": own})
            pool.add(budget, own or ())
        if len(pool.configs) > len(timed):
            subnets = [net.max_config, *pool.configs.values()]
            found = meter.measure(subnets, out / TIMED_FILE, progress, f"measure candidates, round {turn + 1}")
            timed = {one.key: one for one in found[1:]}
    measured = {
        "candidates": [{**row, "latency": timed[row["digest"]].model_dump(mode="json")} for row in pool.rows()],
        "budgets": [{"budget_ms": budget.budget_ms, "own": list(budget.own)} for budget in budgets],
    }
    write_json(out / MEASURED_FILE, measured)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A row of `measured.json`, its latency [ms] and its accuracy."""

    row: Row
    ms: float
    accuracy: Accuracy

    @property
    def rank(self) -> tuple[float, float, float]:
        """Larger is better."""
        return self.accuracy.share, -self.accuracy.loss, -self.ms


def choose(
    settings: Settings,
    supernet: Path,
    search: Path,
    accuracy: AccuracyPredictor,
    images: EvaluationData,
    out: Path,
    progress: Progress,
) -> Row:
    """Evaluate what `measure` timed and take the most accurate SubNet within each budget; writes and returns `front.json`.

    It has the form of the search's, with `measured_ms` and `measured_accuracy` of each winner, and what was measured of the
    one that it `replaces`. A budget that no SubNet keeps has the fastest one, and `within_budget` is false. A second call
    goes on. UserError when nothing could be measured.
    """
    net = tailor_ir.load(supernet)
    net.elastic.to(images.device)
    front, measured = read_front(search / FRONT_FILE), read_json(out / MEASURED_FILE)
    timed = {row["digest"]: row for row in measured["candidates"] if row["latency"]["p50_ms"] is not None}
    if not timed:
        reason = measured["candidates"][0]["latency"]["reason"]
        raise UserError("refine", f"no SubNet can be measured on the device: {reason}", next_step="refine.candidates=1")
    budgets_ms = [row["budget_ms"] for row in front["winners"]]
    most_ms = max(*budgets_ms, min(row["latency"]["p50_ms"] for row in timed.values()))
    rows = [row for row in timed.values() if row["latency"]["p50_ms"] <= most_ms]
    configs = [row["config"] for row in rows]
    found = accuracies(net, configs, images, out / EVALUATED_FILE, progress, "evaluate candidates")
    known = {
        row["digest"]: _Candidate(row, row["latency"]["p50_ms"], one) for row, one in zip(rows, found, strict=True)
    }
    winners = [_winner(row, timed, known, settings.margin) for row in front["winners"]]
    codes = net.space.canonical_codes(net.space.encode(configs))
    predicted_ms, measured_ms = (
        np.array(column) for column in zip(*((one.row["predicted_ms"], one.ms) for one in known.values()), strict=True)
    )
    checked = validate(accuracy, codes, found)
    result = {
        **front,
        "winners": winners,
        "front": _front(winners),
        "refinement": {
            "measured": len(measured["candidates"]),
            "failed": len(measured["candidates"]) - len(timed),
            "evaluated": len(known),
            "replaced": sum(row["replaces"] is not None for row in winners),
            "missed_ms": [row["budget_ms"] for row in winners if not row["within_budget"]],
            "latency": errors(predicted_ms, measured_ms),
            "accuracy": {name: value for name, value in checked.items() if name != "rows"},
            "settings": settings.model_dump(mode="json"),
        },
    }
    write_json(out / FRONT_FILE, result)
    return result


def _winner(row: Row, timed: Mapping[str, Row], known: Mapping[str, _Candidate], margin: float) -> Row:
    """The measured winner of a budget in the place of the search's; what became of that one where it is another.

    Within the budget less the margin; else within the budget; else the fastest.
    """
    budget_ms, own = row["budget_ms"], row["digest"]
    limits_ms = ((1 - margin) * budget_ms, budget_ms, min(one.ms for one in known.values()))
    within = next(filter(None, ([one for one in known.values() if one.ms <= most] for most in limits_ms)))
    best = max(within, key=lambda one: one.rank)
    replaced = {
        "digest": own,
        "measured_ms": timed[own]["latency"]["p50_ms"] if own in timed else None,
        "measured_accuracy": known[own].accuracy.share if own in known else None,
    }
    return {
        **row,
        **{key: value for key, value in best.row.items() if key != "latency"},
        "measured_ms": best.ms,
        "measured_accuracy": best.accuracy.share,
        "within_budget": best.ms <= budget_ms,
        "replaces": None if own == best.row["digest"] else replaced,
    }


def _front(winners: Sequence[Row]) -> list[str]:
    """Digests of those that no other one dominates by measurement."""
    columns = (np.array([row[key] for row in winners]) for key in ("measured_ms", "measured_accuracy"))
    return list(dict.fromkeys(winners[index]["digest"] for index in np.flatnonzero(pareto_mask(*columns)).tolist()))
