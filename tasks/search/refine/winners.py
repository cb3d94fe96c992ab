"""The second half of a refinement: the timed candidates are evaluated, and measurements choose the winners."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tailor_ir
from solvers.front import pareto_mask
from tailor_ir import SuperNet
from tasks.base.artifacts import NO_STORE, SubNetStore
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.candidates import MEASURED_FILE, Candidates, Likely
from tasks.base.schemas.front import FRONT_FILE, Learned, Refinement, Replaced, Winner
from tasks.base.schemas.stored import StageResult
from tasks.evaluation.agreement import errors_in_points, kendall_tau
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracies
from tasks.prediction.accuracy import AccuracyPredictor, validate
from tasks.prediction.validate import errors
from tasks.search import read_front
from tasks.search.refine.budgets import settled
from tasks.search.refine.known import Known, Latencies, evaluated_lines, known_ms, winners, worth_evaluating
from tasks.search.refine.settings import Settings
from tasks.search.refine.stage import folders_of

OF_THE_SEARCH = {"stopped", "generations"}
"""The fields of a winner that describe how the search found it."""


def choose(
    settings: Settings,
    supernet: Path,
    searches: Mapping[str, Path],
    accuracy: AccuracyPredictor,
    images: EvaluationData,
    out: Path,
    progress: Progress,
    store: SubNetStore = NO_STORE,
) -> dict[str, StageResult]:
    """Evaluate the SubNets that `measure` timed, and take the most accurate one within each budget; the `front.json` of each
    device.

    searches: the folders of the search's fronts by device, in the order of `measure`. Budgets that the search made for one
    device are moved if they are useless (`budgets`). The files have the form of the search's `front.json`. Each winner has
    `measured_ms` and `measured_accuracy`, and under `replaces` the measurements of the search's winner. The winner of a budget
    that no SubNet keeps is the fastest SubNet (on several devices the nearest to the budgets), and `within_budget` is false. A
    second call resumes. UserError when no SubNet could be measured.
    """
    net = tailor_ir.load(supernet)
    net.elastic.to(images.device)
    folders, fronts = folders_of(out, list(searches)), [read_front(one / FRONT_FILE) for one in searches.values()]
    tables = [Candidates.read(folder / MEASURED_FILE) for folder in folders]
    timed_ms = known_ms([{row.digest: row.latency for row in table.candidates} for table in tables])
    if not timed_ms:
        raise _nothing_measured(searches, tables)
    budgets_ms = [tuple(row.budget_ms for row in rows) for rows in zip(*(one.winners for one in fronts), strict=True)]
    configs = {row.digest: row.config for row in tables[0].candidates}
    worth = worth_evaluating(timed_ms, budgets_ms)
    lines = evaluated_lines(store, supernet, images, out, progress)
    evaluated = accuracies(net, [configs[one] for one in worth], images, lines, progress, "evaluate candidates")
    found = dict(zip(worth, evaluated, strict=True))
    known = _known(tables, timed_ms, found)
    asked = {ms: number for number, ms in enumerate(budgets_ms)}
    budgets_ms = settled(fronts, known, budgets_ms, settings.margin)
    best = winners(known, budgets_ms, settings.margin)
    chosen = [(ms, one.digest) for ms, one in zip(budgets_ms, best, strict=True)]
    refined: dict[str, StageResult] = {}
    for device, (name, folder, front, table) in enumerate(zip(searches, folders, fronts, tables, strict=True)):
        told = _with_accuracies(table, found)
        told.write(folder / MEASURED_FILE)
        rows = tuple(
            _winner(ms[device], front.winners[asked[ms]] if ms in asked else None, digest, told)
            for ms, digest in chosen
        )
        refinement = _refinement(settings, net, told, rows, accuracy, found, sum(ms not in asked for ms in budgets_ms))
        changed = {"winners": rows, "front": _front(rows), "refinement": refinement}
        refined[name] = front.model_copy(update=changed).write(folder / FRONT_FILE)
    return refined


def _nothing_measured(devices: Collection[str], tables: Sequence[Candidates]) -> UserError:
    reason = next(row.latency.reason for table in tables for row in table.candidates if row.latency.p50_ms is None)
    where = "the device" if len(devices) == 1 else f"each of {', '.join(devices)}"
    return UserError("refine", f"no SubNet can be measured on {where}: {reason}", next_step="refine.candidates=1")


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


def _with_accuracies(table: Candidates, found: Mapping[str, Accuracy]) -> Candidates:
    rows = [
        row.model_copy(update={"accuracy": found[row.digest].share, "loss": found[row.digest].loss})
        if row.digest in found
        else row
        for row in table.candidates
    ]
    return table.model_copy(update={"candidates": tuple(rows)})


def _refinement(
    settings: Settings,
    net: SuperNet,
    table: Candidates,
    winners: Sequence[Winner],
    accuracy: AccuracyPredictor,
    found: Mapping[str, Accuracy],
    moved: int,
) -> Refinement:
    """The effect of measuring the candidates on one device. found: accuracies of the evaluated candidates, by digest.
    moved: number of moved budgets.
    """
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
    """The measured winner of a budget on one device; if it differs from the search's, `row`, with the measurements of `row`.
    row: None: the budget was moved.
    """
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
