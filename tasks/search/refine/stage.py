"""The stage of refinement: candidates are found, timed on the device and evaluated; measurements choose winners.

One search may have several devices. Every measured SubNet is a candidate for every budget that it keeps. The candidates
of a budget are the best SubNets by prediction around the search's winner (`candidates`). Candidates are measured in
rounds. From the second round on, the earlier measurements guide the search for candidates: predicted latencies are
multiplied by their measured error, which near a winner is one factor, and accuracies are learned (`candidates`). A
budget that no candidate keeps gets more candidates.

Among many candidates, the luckiest measurement would win. A winner must therefore keep its budget by its own
measurement and by its latency smoothed over similar SubNets. It is measured again before it counts; if it then misses
the budget, the next best candidate is the winner. Budgets that the search made are moved if they are useless (`known`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import tailor_ir
from profiling_agents.client import AgentClient
from profiling_agents.messages import Measurement
from solvers.front import pareto_mask
from tailor_ir import SuperNet
from tasks.base.artifacts import append_line, read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.placed import OWN_CHOICES, ChosenImplementations
from tasks.base.schemas.stored import Config, StageResult
from tasks.base.schemas.winners import (
    FRONT_FILE,
    MEASURED_FILE,
    Asked,
    Candidate,
    Candidates,
    Front,
    Learned,
    Likely,
    Proposal,
    Refinement,
    Replaced,
    Winner,
)
from tasks.evaluation.subnets import Accuracy, accuracies, accuracy_lines
from tasks.evaluation.uncertainty import errors_in_points, kendall_tau
from tasks.measuring.settings import RepeatedTimingSettings
from tasks.measuring.subnets import SubNetMeter
from tasks.prediction.accuracy import AccuracyPredictor, validate
from tasks.prediction.latency import errors
from tasks.search import read_front
from tasks.search.refine.candidates import Budget, Pool, budgets_of
from tasks.search.refine.known import EVALUATED_FILE, Known, Latencies, known_ms, settled, winners, worth_evaluating
from tasks.search.settings import RefineSettings
from tasks.search.stage import SearchedSuperNet, Target

CANDIDATES_FILE = "candidates.jsonl"
TIMED_FILE = "timed.jsonl"
MORE_ROUNDS = 3
"""Additional rounds for budgets that no candidate keeps."""
CONFIRMATIONS = 4
"""Largest number of rounds in which new winners are measured again."""

Timed = list[dict[str, Measurement]]
"""The measurements of SubNets by digest, for each device."""


@dataclass(frozen=True, slots=True)
class SearchedDevice:
    """A device with its predictors, as in the search, and the folder of its `front.json`.

    agent: the device's client with its lease, for as long as SubNets are timed. batch: samples of one run. implementations:
    implementations of operators on the device.
    """

    target: Target
    search: Path
    agent: Callable[[], AbstractContextManager[AgentClient]]
    batch: int = 1
    implementations: ChosenImplementations = OWN_CHOICES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluator:
    """Evaluates SubNets on validation images; those in the stage's file or in the store are not evaluated again."""

    searched: SearchedSuperNet
    net: SuperNet
    budgets_ms: Sequence[Latencies]
    out: Path
    progress: Progress

    def evaluate(
        self, timed_ms: Mapping[str, Latencies], configs: Mapping[str, Config], name: str
    ) -> dict[str, Accuracy]:
        """Evaluate the SubNets within some budget; accuracies by digest."""
        worth, images = worth_evaluating(timed_ms, self.budgets_ms), self.searched.images
        lines = accuracy_lines(
            self.searched.store, self.searched.supernet, "validation", images, self.out / EVALUATED_FILE, self.progress
        )
        found = accuracies(self.net, [configs[digest] for digest in worth], images, lines, self.progress, name)
        return dict(zip(worth, found, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench(_Evaluator):
    """Times and evaluates the SubNets of a pool. devices: each with its SuperNet and the folder of its measurements."""

    pool: Pool
    timing: RepeatedTimingSettings
    devices: Sequence[tuple[SearchedDevice, SuperNet, Path]]
    fronts: Sequence[Front]

    def time(self, digests: Iterable[str], name: str, *, longer: bool = False) -> Timed:
        """Time SubNets on one device after the other, since devices of one machine share it. longer: twice as many rounds."""
        configs = [self.pool.configs[digest] for digest in digests]
        timing, rounds, found = self.timing, self.timing.rounds * (2 if longer else 1), []
        for device, net, folder in self.devices:
            own = name if len(self.devices) == 1 else f"{name}, {device.target.name}"
            with device.agent() as client:
                meter = SubNetMeter(net, client, timing.measure, timing.limits, rounds, device.implementations)
                lines = meter.lines(self.searched.store, self.searched.supernet, folder / TIMED_FILE, self.progress)
                measured = meter.measure([net.max_config, *configs], lines, self.progress, own)
            found.append({one.key: one for one in measured[1:]})
        return found


def measure(
    settings: RefineSettings,
    timing: RepeatedTimingSettings,
    searched: SearchedSuperNet,
    devices: Sequence[SearchedDevice],
    out: Path,
    progress: Progress,
) -> None:
    """Time the candidates of every budget on each device; writes `measured.json`, for several devices into a folder of each.

    devices: those of one search. Candidates are evaluated, too; the next round learns from their accuracies. A second call in
    the same folder resumes. Measurements of candidates in the store are used.
    """
    plain = tailor_ir.load(searched.supernet)
    plain.elastic.to(searched.images.device)
    folders = folders_of(out, [device.target.name for device in devices])
    nets = [tailor_ir.load(searched.supernet, batch=device.batch) for device in devices]
    fronts = [read_front(device.search / FRONT_FILE) for device in devices]
    pool = Pool(plain, [device.target for device in devices], searched.accuracy, fronts)
    budgets = budgets_of(pool, fronts, settings.margin)
    bench = _Bench(
        searched=searched, net=plain, budgets_ms=pool.budgets_ms, out=out, progress=progress, pool=pool, timing=timing,
        devices=list(zip(devices, nets, folders, strict=True)), fronts=fronts,
    )  # fmt: skip
    timed, smoothed_ms = _confirmed(settings, bench, _rounds(settings, bench, budgets))
    unmeasured = (None,) * len(devices)
    for number, (found, folder) in enumerate(zip(timed, folders, strict=True)):
        candidates = (
            Candidate(
                **row, smoothed_ms=smoothed_ms.get(row["digest"], unmeasured)[number], latency=found[row["digest"]],
                accuracy=None, loss=None,
            )
            for row in pool.rows(number)
        )  # fmt: skip
        asked = (Asked(budget_ms=budget.budgets_ms[number], own=tuple(budget.own)) for budget in budgets)
        file = Candidates(candidates=tuple(candidates), budgets=tuple(asked), likely=pool.likely)
        file.write(folder / MEASURED_FILE)


def folders_of(out: Path, devices: Sequence[str]) -> list[Path]:
    """The folder of each device's files: `out`, or a folder inside for each of several devices."""
    folders = [out / name for name in devices] if len(devices) > 1 else [out]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return folders


def _rounds(settings: RefineSettings, bench: _Bench, budgets: Sequence[Budget]) -> Timed:
    """Find the candidates of each budget and time them."""
    pool = bench.pool
    chosen = {
        (line["round"], line["budget"]): [Proposal.model_validate(own) for own in line["own"]]
        for line in read_lines(bench.out / CANDIDATES_FILE)
    }
    timed: Timed = [{}]
    shares = _shares(settings)
    for turn in range(len(shares) + MORE_ROUNDS):
        timed_ms = known_ms(timed)
        wanted = shares[turn] if turn < len(shares) else math.ceil(settings.candidates / 2)
        asking = [
            number
            for number, budget in enumerate(budgets)
            if turn < len(shares) or (turn, number) in chosen or budget.is_missed_by(timed_ms)
        ]
        if turn and any((turn, number) not in chosen for number in asking):
            pool.learn(bench.evaluate(timed_ms, pool.configs, f"evaluate, round {turn}"))
        for number in asking:
            if (turn, number) not in chosen:
                limits_ms = budgets[number].predicted_limits_ms(timed_ms)
                chosen[turn, number] = pool.more(budgets[number], limits_ms, wanted)
                own = [one.to_json() for one in chosen[turn, number]]
                append_line(bench.out / CANDIDATES_FILE, {"round": turn, "budget": number, "own": own})
            pool.add(budgets[number], chosen[turn, number])
        if len(pool.configs) > len(timed[0]):
            timed = bench.time(pool.configs, f"measure candidates, round {turn + 1}")
    return timed


def _confirmed(settings: RefineSettings, bench: _Bench, timed: Timed) -> tuple[Timed, dict[str, Latencies]]:
    """Time winners again, up to `CONFIRMATIONS` times; all measurements, and smoothed latencies [ms], by digest."""
    confirmed: set[str] = set()
    for turn in range(CONFIRMATIONS + 1):
        timed_ms = known_ms(timed)
        smoothed_ms = bench.pool.smoothed_ms(timed_ms)
        if turn == CONFIRMATIONS:
            break
        found = bench.evaluate(timed_ms, bench.pool.configs, "evaluate candidates")
        known = [Known(digest, timed_ms[digest], smoothed_ms[digest], one) for digest, one in found.items()]
        budgets_ms = settled(bench.fronts, known, bench.budgets_ms, settings.margin)
        chosen = {one.digest for one in winners(known, budgets_ms, settings.margin)} if known else set()
        if chosen <= confirmed:
            break
        bench.time(sorted(chosen - confirmed), "measure winners again", longer=True)
        confirmed |= chosen
        timed = bench.time(bench.pool.configs, "measure candidates again")
    return timed, smoothed_ms


def _shares(settings: RefineSettings) -> list[int]:
    """The number of candidates in each round; the winners of the search are in the first round."""
    rounds = min(settings.rounds, settings.candidates)
    ends = [settings.candidates * turn // rounds for turn in range(rounds + 1)]
    return [last - first - (first == 0) for first, last in pairwise(ends)]


OF_THE_SEARCH = {"stopped", "generations"}
"""The fields of a winner that describe how the search found it."""


def choose(
    settings: RefineSettings, searched: SearchedSuperNet, searches: Mapping[str, Path], out: Path, progress: Progress
) -> dict[str, StageResult]:
    """Evaluate the SubNets that `measure` timed, and take the most accurate one within each budget; `front.json` by device.

    searches: the folders of the search's fronts by device, in the order of `measure`. Budgets that the search made for one
    device are moved if they are useless (`known`). Each winner has `measured_ms` and `measured_accuracy`, and under `replaces`
    the measurements of the search's winner. The winner of a budget that no SubNet keeps is the fastest SubNet (on several
    devices the nearest to the budgets), and `within_budget` is false. A second call resumes. UserError when no SubNet could be
    measured.
    """
    net = tailor_ir.load(searched.supernet)
    net.elastic.to(searched.images.device)
    folders, fronts = folders_of(out, list(searches)), [read_front(one / FRONT_FILE) for one in searches.values()]
    tables = [Candidates.read(folder / MEASURED_FILE) for folder in folders]
    timed_ms = known_ms([{row.digest: row.latency for row in table.candidates} for table in tables])
    if not timed_ms:
        reason = next(row.latency.reason for table in tables for row in table.candidates if row.latency.p50_ms is None)
        where = "the device" if len(searches) == 1 else f"each of {', '.join(searches)}"
        got = f"no SubNet can be measured on {where}: {reason}"
        raise UserError("refine", got, next_step="refine.candidates=1")
    budgets_ms = [tuple(row.budget_ms for row in rows) for rows in zip(*(one.winners for one in fronts), strict=True)]
    configs = {row.digest: row.config for row in tables[0].candidates}
    evaluator = _Evaluator(searched=searched, net=net, budgets_ms=budgets_ms, out=out, progress=progress)
    found = evaluator.evaluate(timed_ms, configs, "evaluate candidates")
    known = _known(tables, timed_ms, found)
    asked = {ms: number for number, ms in enumerate(budgets_ms)}
    budgets_ms = settled(fronts, known, budgets_ms, settings.margin)
    best = winners(known, budgets_ms, settings.margin)
    moved = sum(ms not in asked for ms in budgets_ms)
    shares = {digest: {"accuracy": one.share, "loss": one.loss} for digest, one in found.items()}
    refined: dict[str, StageResult] = {}
    for device, (name, folder, front, table) in enumerate(zip(searches, folders, fronts, tables, strict=True)):
        candidates = tuple(row.model_copy(update=shares.get(row.digest)) for row in table.candidates)
        described = table.model_copy(update={"candidates": candidates})
        described.write(folder / MEASURED_FILE)
        rows = tuple(
            _winner(ms[device], front.winners[asked[ms]] if ms in asked else None, one.digest, described)
            for ms, one in zip(budgets_ms, best, strict=True)
        )
        refinement = _refinement(settings, net, described, rows, searched.accuracy, found, moved)
        changed = {"winners": rows, "front": _front(rows), "refinement": refinement}
        refined[name] = front.model_copy(update=changed).write(folder / FRONT_FILE)
    return refined


def _known(
    tables: Sequence[Candidates], timed_ms: Mapping[str, Latencies], found: Mapping[str, Accuracy]
) -> list[Known]:
    """The evaluated candidates. found: accuracies by digest."""
    smoothed_ms = [{row.digest: row.smoothed_ms for row in table.candidates} for table in tables]
    known = []
    for digest, accuracy in found.items():
        smoothed = tuple(ms for one in smoothed_ms if (ms := one[digest]) is not None)
        assert len(smoothed) == len(tables), "a measured latency is smoothed"
        known.append(Known(digest, timed_ms[digest], smoothed, accuracy))
    return known


def _refinement(
    settings: RefineSettings,
    net: SuperNet,
    table: Candidates,
    winners: Sequence[Winner],
    accuracy: AccuracyPredictor,
    found: Mapping[str, Accuracy],
    moved: int,
) -> Refinement:
    """The effect of measuring the candidates on one device. found: accuracies by digest. moved: number of moved budgets."""
    rows = [row for row in table.candidates if row.digest in found]
    codes = net.space.canonical_codes(net.space.encode([row.config for row in rows]))
    return Refinement(
        measured=len(table.candidates),
        failed=sum(row.latency.p50_ms is None for row in table.candidates),
        evaluated=len(rows),
        replaced=sum(row.replaces is not None for row in winners),
        moved=moved,
        missed_ms=tuple(row.budget_ms for row in winners if not row.within_budget),
        latency=errors(
            np.array([row.predicted_ms for row in rows]), np.array([row.latency.p50_ms for row in rows], np.float64)
        ),
        accuracy=validate(accuracy, codes, [found[row.digest] for row in rows]).errors,
        learned=_learned(table.likely, {row.digest: found[row.digest].share for row in rows}),
        settings=settings.model_dump(mode="json"),
    )


def _learned(likely: Mapping[str, Likely], measured: Mapping[str, float]) -> Learned | None:
    """The learned accuracies of candidates against their measured accuracies; None if no accuracy was learned."""
    rows = [(likely[digest], accuracy) for digest, accuracy in measured.items() if digest in likely]
    if not rows:
        return None
    said, accuracy = np.array([row.accuracy for row, _ in rows]), np.array([found for _, found in rows])
    return Learned(
        n=len(rows),
        deviation_points=100 * float(np.mean([row.deviation for row, _ in rows])),
        **errors_in_points(said, accuracy),
        kendall_tau=kendall_tau(said, accuracy),
    )


def _winner(budget_ms: float, row: Winner | None, digest: str, table: Candidates) -> Winner:
    """The measured winner of a budget on one device, and the measurements of the search's, `row` (None: the budget moved)."""
    candidates = {one.digest: one for one in table.candidates}
    chosen = candidates[digest]
    measured_ms = chosen.latency.p50_ms
    assert measured_ms is not None, "a winner is measured"
    replaces: Replaced | None = None
    of_the_search: Mapping[str, Any] = {"budget_ms": budget_ms}
    if row is not None:
        stays, before = row.digest == digest, candidates.get(row.digest)
        of_the_search = row.model_dump(exclude_unset=True, exclude=None if stays else OF_THE_SEARCH)
        if not stays:
            replaces = Replaced(
                digest=row.digest,
                measured_ms=before and before.latency.p50_ms,
                measured_accuracy=before and before.accuracy,
            )
    measured = {
        "measured_ms": measured_ms,
        "measured_accuracy": chosen.accuracy,
        "within_budget": measured_ms <= budget_ms,
        "replaces": replaces,
    }
    of_candidate = chosen.model_dump(exclude_unset=True, exclude={"latency", "accuracy", "loss"})
    return Winner.model_validate({**of_the_search, **of_candidate, **measured})


def _front(winners: Sequence[Winner]) -> tuple[str, ...]:
    """Digests of the winners that no other winner dominates by measurement."""
    measured_ms, accuracy = np.array([row.measured_ms for row in winners]), np.array([row.accuracy for row in winners])
    kept = np.flatnonzero(pareto_mask(measured_ms, accuracy)).tolist()
    return tuple(dict.fromkeys(winners[index].digest for index in kept))
