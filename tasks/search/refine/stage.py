"""The first half of a refinement: candidates are found, and timed on the device, or on all devices of one search.

Every measured SubNet is a candidate for every budget that it keeps. The candidates of a budget are the best SubNets by
prediction around the search's winner (`candidates`). Candidates are measured in rounds. From the second round on, the earlier
measurements guide the search for candidates: predicted latencies are multiplied by their measured error, which near a winner is
one factor, and accuracies are learned (`learned`). A budget that no candidate keeps gets more candidates.

Among many candidates, the luckiest measurement would win. A winner must therefore keep its budget by its own
measurement and by its latency smoothed over similar SubNets. It is measured again before it counts; if it then misses the
budget, the next best candidate is the winner. Budgets that the search made are moved if they are useless (`budgets`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import tailor_ir
from profiling_agents.client import AgentClient
from profiling_agents.messages import Measurement
from tailor_ir import SuperNet
from tasks.base.artifacts import NO_STORE, SubNetLines, SubNetStore, append_line, read_lines
from tasks.base.progress import Progress
from tasks.base.schemas.candidates import MEASURED_FILE, Asked, Candidate, Candidates, Proposal
from tasks.base.schemas.front import FRONT_FILE, Front
from tasks.base.schemas.operators import OWN_CHOICES, ChosenImplementations
from tasks.base.schemas.stored import Config
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracies
from tasks.measuring.settings import RepeatedTimingSettings
from tasks.measuring.subnets import SubNetMeter
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.search import read_front
from tasks.search.refine.budgets import settled
from tasks.search.refine.known import Known, Latencies, evaluated_lines, known_ms, winners, worth_evaluating
from tasks.search.refine.pool import Budget, Pool, budgets_of
from tasks.search.refine.settings import Settings
from tasks.search.stage import Target

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


@dataclass(frozen=True, slots=True)
class _Timer:
    """Times SubNets on one device, into a file of `folder`; SubNets in that file or in the store are not timed again."""

    device: SearchedDevice
    supernet: Path
    net: SuperNet
    timing: RepeatedTimingSettings
    folder: Path
    store: SubNetStore
    progress: Progress

    def time(self, configs: Sequence[Config], name: str, *, longer: bool = False) -> dict[str, Measurement]:
        """Measurements by digest. longer: with twice as many rounds."""
        rounds = self.timing.rounds * (2 if longer else 1)
        with self.device.agent() as client:
            chosen = self.device.implementations
            meter = SubNetMeter(self.net, client, self.timing.measure, self.timing.limits, rounds, chosen)
            lines = meter.lines(self.store, self.supernet, self.folder / TIMED_FILE, self.progress)
            found = meter.measure([self.net.max_config, *configs], lines, self.progress, name)
        return {one.key: one for one in found[1:]}


@dataclass(frozen=True, slots=True)
class _Bench:
    """Times and evaluates the SubNets of a pool. SubNets in `evaluated` are not evaluated again."""

    pool: Pool
    timers: Sequence[_Timer]
    plain: SuperNet
    images: EvaluationData
    fronts: Sequence[Front]
    budgets_ms: Sequence[Latencies]
    out: Path
    evaluated: SubNetLines
    progress: Progress

    def time(self, name: str) -> Timed:
        """Time all SubNets."""
        return self._time(list(self.pool.configs), name)

    def time_longer(self, digests: Sequence[str]) -> None:
        """Time some SubNets with twice as many rounds."""
        self._time(digests, "measure winners again", longer=True)

    def _time(self, digests: Sequence[str], name: str, *, longer: bool = False) -> Timed:
        """Time SubNets on one device after the other, since devices of one machine share it."""
        configs = [self.pool.configs[digest] for digest in digests]
        return [
            timer.time(configs, name if len(self.timers) == 1 else f"{name}, {timer.device.target.name}", longer=longer)
            for timer in self.timers
        ]

    def evaluate(self, timed_ms: Mapping[str, Latencies], name: str) -> dict[str, Accuracy]:
        """Evaluate the SubNets within some budget; accuracies by digest."""
        worth = worth_evaluating(timed_ms, self.budgets_ms)
        configs = [self.pool.configs[digest] for digest in worth]
        found = accuracies(self.plain, configs, self.images, self.evaluated, self.progress, name)
        return dict(zip(worth, found, strict=True))


def measure(
    settings: Settings,
    timing: RepeatedTimingSettings,
    supernet: Path,
    devices: Sequence[SearchedDevice],
    accuracy: AccuracyPredictor,
    images: EvaluationData,
    out: Path,
    progress: Progress,
    store: SubNetStore = NO_STORE,
) -> None:
    """Time the candidates of every budget on each device; writes `measured.json`, for several devices into a folder of each.

    devices: those of one search. images: for evaluating candidates; the next round learns from them. A second call in the same
    folder resumes. Measurements of candidates in the store are used.
    """
    plain = tailor_ir.load(supernet)
    plain.elastic.to(images.device)
    folders = folders_of(out, [device.target.name for device in devices])
    fronts = [read_front(device.search / FRONT_FILE) for device in devices]
    pool = Pool(plain, [device.target for device in devices], accuracy, fronts)
    budgets = budgets_of(pool, fronts, settings.margin)
    timers = [
        _Timer(device, supernet, tailor_ir.load(supernet, batch=device.batch), timing, folder, store, progress)
        for device, folder in zip(devices, folders, strict=True)
    ]
    evaluated = evaluated_lines(store, supernet, images, out, progress)
    asked_ms = [budget.budgets_ms for budget in budgets]
    bench = _Bench(pool, timers, plain, images, fronts, asked_ms, out, evaluated, progress)
    timed, smoothed_ms = _confirmed(settings, bench, _rounds(settings, bench, budgets))
    for number, (found, folder) in enumerate(zip(timed, folders, strict=True)):
        candidates = (
            Candidate(
                **row.to_json(),
                smoothed_ms=smoothed_ms[row.digest][number] if row.digest in smoothed_ms else None,
                latency=found[row.digest],
                accuracy=None,
                loss=None,
            )
            for row in pool.rows(number)
        )
        asked = (Asked(budget_ms=budget.budgets_ms[number], own=tuple(budget.own)) for budget in budgets)
        Candidates(candidates=tuple(candidates), budgets=tuple(asked), likely=pool.likely).write(folder / MEASURED_FILE)


def folders_of(out: Path, devices: Sequence[str]) -> list[Path]:
    """The folder of each device's files: `out`, or a folder inside for each of several devices."""
    folders = [out / name for name in devices] if len(devices) > 1 else [out]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return folders


def _rounds(settings: Settings, bench: _Bench, budgets: Sequence[Budget]) -> Timed:
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
            pool.learn(bench.evaluate(timed_ms, f"evaluate, round {turn}"))
        for number in asking:
            if (turn, number) not in chosen:
                limits_ms = budgets[number].predicted_limits_ms(timed_ms)
                chosen[turn, number] = pool.more(budgets[number], limits_ms, wanted)
                own = [one.to_json() for one in chosen[turn, number]]
                append_line(bench.out / CANDIDATES_FILE, {"round": turn, "budget": number, "own": own})
            pool.add(budgets[number], chosen[turn, number])
        if len(pool.configs) > len(timed[0]):
            timed = bench.time(f"measure candidates, round {turn + 1}")
    return timed


def _confirmed(settings: Settings, bench: _Bench, timed: Timed) -> tuple[Timed, dict[str, Latencies]]:
    """Time winners again, up to `CONFIRMATIONS` times; all measurements, and smoothed latencies [ms], by digest."""
    confirmed: set[str] = set()
    for turn in range(CONFIRMATIONS + 1):
        timed_ms = known_ms(timed)
        smoothed_ms = bench.pool.smoothed_ms(timed_ms)
        if turn == CONFIRMATIONS:
            break
        found = bench.evaluate(timed_ms, "evaluate candidates")
        known = [Known(digest, timed_ms[digest], smoothed_ms[digest], one) for digest, one in found.items()]
        budgets_ms = settled(bench.fronts, known, bench.budgets_ms, settings.margin)
        chosen = {one.digest for one in winners(known, budgets_ms, settings.margin)} if known else set()
        if chosen <= confirmed:
            break
        bench.time_longer(sorted(chosen - confirmed))
        confirmed |= chosen
        timed = bench.time("measure candidates again")
    return timed, smoothed_ms


def _shares(settings: Settings) -> list[int]:
    """The number of candidates in each round; the winners of the search are in the first round."""
    rounds = min(settings.rounds, settings.candidates)
    ends = [settings.candidates * turn // rounds for turn in range(rounds + 1)]
    return [last - first - (first == 0) for first, last in pairwise(ends)]
