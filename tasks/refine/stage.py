"""The refinement of one device: `measure` times candidates there, `choose` evaluates them and takes the best.

Every SubNet that was measured is a candidate for every budget that it keeps. A budget's own are the best by prediction
around the search's winner (`candidates`). They are measured in rounds. From the second on they are sought with what those
before have taught: predicted latencies times what they were wrong by, since near a winner that is one factor, and accuracies
that are learned (`learned`). A budget that none keeps gets more of them. Of many, those win whose measurements were lucky.
So a winner keeps its budget by its own measurement and by what those of SubNets like it tell, and is measured again before it
is believed; where it then misses the budget the next best is its winner.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import tailor_ir
from profiling_agents.client import AgentClient
from profiling_agents.messages import Measurement
from tailor_ir import SuperNet
from tasks.artifacts import append_line, read_json, read_lines, write_json
from tasks.convert import Limits
from tasks.errors import UserError
from tasks.evaluate import Accuracy, EvaluationData, accuracies
from tasks.predict.accuracy import AccuracyPredictor, validate
from tasks.predict.agreement import errors_in_points, kendall_tau
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
MORE_ROUNDS = 3
"""For budgets that no candidate keeps."""
CONFIRMATIONS = 4
"""At most so many times what became a winner is measured again."""
OF_THE_SEARCH = {"stopped", "generations"}
"""What says how the search found a winner."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Bench:
    """Times and evaluates the SubNets of a pool; what is in the files of `out` is not done again."""

    pool: Pool
    meter: SubNetMeter
    plain: SuperNet
    images: EvaluationData
    budgets_ms: Sequence[float]
    out: Path
    progress: Progress

    def time(self, name: str) -> dict[str, Measurement]:
        """All, by digest."""
        return self._time(self.meter, list(self.pool.configs), name)

    def time_longer(self, digests: Sequence[str]) -> None:
        """Some, for twice as many rounds."""
        self._time(replace(self.meter, rounds=2 * self.meter.rounds), digests, "measure winners again")

    def _time(self, meter: SubNetMeter, digests: Sequence[str], name: str) -> dict[str, Measurement]:
        subnets = [meter.net.max_config, *(self.pool.configs[digest] for digest in digests)]
        return {one.key: one for one in meter.measure(subnets, self.out / TIMED_FILE, self.progress, name)[1:]}

    def evaluate(self, timed_ms: Mapping[str, float], name: str) -> dict[str, Accuracy]:
        """Those that are worth it, by digest."""
        worth = _worth(timed_ms, self.budgets_ms)
        configs = [self.pool.configs[digest] for digest in worth]
        found = accuracies(self.plain, configs, self.images, self.out / EVALUATED_FILE, self.progress, name)
        return dict(zip(worth, found, strict=True))


def measure(
    settings: Settings,
    predict: PredictSettings,
    supernet: Path,
    search: Path,
    target: Target,
    accuracy: AccuracyPredictor,
    images: EvaluationData,
    client: AgentClient,
    out: Path,
    progress: Progress,
    batch: int = 1,
) -> None:
    """Time the candidates of every budget on the device, whose lease the caller holds; writes `measured.json`.

    target: as it was searched for. images: what candidates are evaluated on, for the next round to learn from.
    A second call in the same folder goes on.
    """
    net = tailor_ir.load(supernet, batch=batch)
    limits = Limits(wall_s=predict.conversion_wall_s, memory_mib=predict.conversion_memory_mib)
    plain = tailor_ir.load(supernet)
    plain.elastic.to(images.device)
    pool = Pool(plain, target, accuracy, read_front(search / FRONT_FILE))
    budgets = [
        Budget(row["budget_ms"], (1 - settings.margin) * row["budget_ms"], code, {row["digest"]: row["predicted_ms"]})
        for row, code in zip(pool.winners, pool.around.winners, strict=True)
    ]
    budgets_ms = [budget.budget_ms for budget in budgets]
    meter = SubNetMeter(net, client, predict.measure, limits, predict.rounds)
    bench = _Bench(pool, meter, plain, images, budgets_ms, out, progress)
    timed, smoothed_ms = _confirmed(settings, bench, _rounds(settings, bench, budgets))
    measured = {
        "candidates": [
            {
                **row,
                "smoothed_ms": smoothed_ms.get(row["digest"]),
                "latency": timed[row["digest"]].model_dump(mode="json"),
            }
            for row in pool.rows()
        ],
        "budgets": [{"budget_ms": budget.budget_ms, "own": list(budget.own)} for budget in budgets],
        "likely": pool.likely,
    }
    write_json(out / MEASURED_FILE, measured)


def _rounds(settings: Settings, bench: _Bench, budgets: Sequence[Budget]) -> dict[str, Measurement]:
    """Find the candidates of each budget, and time them, by digest."""
    pool = bench.pool
    chosen = {(line["round"], line["budget"]): line["own"] for line in read_lines(bench.out / CANDIDATES_FILE)}
    timed: dict[str, Measurement] = {}
    shares = _shares(settings)
    for turn in range(len(shares) + MORE_ROUNDS):
        timed_ms = _known_ms(timed)
        wanted = shares[turn] if turn < len(shares) else math.ceil(settings.candidates / 2)
        fastest_ms = min(timed_ms.values(), default=math.inf)
        asking = [n for n, budget in enumerate(budgets) if turn < len(shares) or fastest_ms > budget.limit_ms]
        if turn and any((turn, number) not in chosen for number in asking):
            pool.learn(bench.evaluate(timed_ms, f"evaluate, round {turn}"))
        for number in asking:
            if (turn, number) not in chosen:
                limit_ms = budgets[number].predicted_limit_ms(timed_ms)
                chosen[turn, number] = pool.more(budgets[number], limit_ms, wanted)
                own = chosen[turn, number]
                append_line(bench.out / CANDIDATES_FILE, {"round": turn, "budget": number, "own": own})
            pool.add(budgets[number], chosen[turn, number])
        if len(pool.configs) > len(timed):
            timed = bench.time(f"measure candidates, round {turn + 1}")
    return timed


def _confirmed(
    settings: Settings, bench: _Bench, timed: dict[str, Measurement]
) -> tuple[dict[str, Measurement], dict[str, float]]:
    """What was timed, after winners were timed again until they are old ones; and smoothed latencies [ms]. By digest."""
    confirmed: set[str] = set()
    for turn in range(CONFIRMATIONS + 1):
        timed_ms = _known_ms(timed)
        smoothed_ms = bench.pool.smoothed_ms(timed_ms)
        if turn == CONFIRMATIONS:
            break
        found = bench.evaluate(timed_ms, "evaluate candidates")
        known = [
            _Candidate({"digest": digest}, timed_ms[digest], smoothed_ms[digest], one) for digest, one in found.items()
        ]
        best = {_best(known, ms, settings.margin).row["digest"] for ms in bench.budgets_ms if known}
        if best <= confirmed:
            break
        bench.time_longer(sorted(best - confirmed))
        confirmed |= best
        timed = bench.time("measure candidates again")
    return timed, smoothed_ms


def _known_ms(timed: Mapping[str, Measurement]) -> dict[str, float]:
    """Latencies [ms] of those that could be measured."""
    return {digest: one.p50_ms for digest, one in timed.items() if one.p50_ms is not None}


def _shares(settings: Settings) -> list[int]:
    """How many candidates each round brings; the winners of the search are in the first."""
    rounds = min(settings.rounds, settings.candidates)
    ends = [settings.candidates * turn // rounds for turn in range(rounds + 1)]
    return [last - first - (first == 0) for first, last in pairwise(ends)]


def _worth(timed_ms: Mapping[str, float], budgets_ms: Sequence[float]) -> list[str]:
    """Digests of what some budget allows, else of the fastest: what is evaluated."""
    most_ms = max(*budgets_ms, min(timed_ms.values(), default=0.0))
    return [digest for digest, ms in timed_ms.items() if ms <= most_ms]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A row of `measured.json`, its latency [ms] as measured and as others like it tell, and its accuracy."""

    row: Row
    ms: float
    smoothed_ms: float
    accuracy: Accuracy

    @property
    def sure_ms(self) -> float:
        """The larger of both."""
        return max(self.ms, self.smoothed_ms)

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
    timed_ms = {digest: row["latency"]["p50_ms"] for digest, row in timed.items()}
    rows = [timed[digest] for digest in _worth(timed_ms, [row["budget_ms"] for row in front["winners"]])]
    configs = [row["config"] for row in rows]
    found = accuracies(net, configs, images, out / EVALUATED_FILE, progress, "evaluate candidates")
    known = {
        row["digest"]: _Candidate(row, row["latency"]["p50_ms"], row["smoothed_ms"], one)
        for row, one in zip(rows, found, strict=True)
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
            "learned": _learned(measured["likely"], {digest: one.accuracy.share for digest, one in known.items()}),
            "settings": settings.model_dump(mode="json"),
        },
    }
    write_json(out / FRONT_FILE, result)
    return result


def _learned(likely: Mapping[str, Row], measured: Mapping[str, float]) -> Row | None:
    """What was said of candidates before they were evaluated, against their accuracies; None without any."""
    rows = [(likely[digest], accuracy) for digest, accuracy in measured.items() if digest in likely]
    if not rows:
        return None
    said, accuracy = np.array([row["accuracy"] for row, _ in rows]), np.array([found for _, found in rows])
    return {
        "n": len(rows),
        "deviation_points": 100 * float(np.mean([row["deviation"] for row, _ in rows])),
        **errors_in_points(said, accuracy),
        "kendall_tau": kendall_tau(said, accuracy),
    }


def _best(known: Collection[_Candidate], budget_ms: float, margin: float) -> _Candidate:
    """The best that is sure to be within the budget less the margin; else within the budget; else measured within it.

    Where none is, the fastest.
    """
    careful_ms = (1 - margin) * budget_ms
    ways = (
        [one for one in known if one.sure_ms <= careful_ms],
        [one for one in known if one.sure_ms <= budget_ms],
        [one for one in known if one.ms <= budget_ms],
        [min(known, key=lambda one: one.ms)],
    )
    return max(next(filter(None, ways)), key=lambda one: one.rank)


def _winner(row: Row, timed: Mapping[str, Row], known: Mapping[str, _Candidate], margin: float) -> Row:
    """The measured winner of a budget in the place of the search's; what became of that one where it is another."""
    budget_ms, own = row["budget_ms"], row["digest"]
    best = _best(known.values(), budget_ms, margin)
    replaced = {
        "digest": own,
        "measured_ms": timed[own]["latency"]["p50_ms"] if own in timed else None,
        "measured_accuracy": known[own].accuracy.share if own in known else None,
    }
    searched = row if own == best.row["digest"] else {key: row[key] for key in row if key not in OF_THE_SEARCH}
    return {
        **searched,
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
