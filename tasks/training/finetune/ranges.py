"""Latency-range accuracy: accuracies of SubNets of all sizes during the training of a SuperNet.

Latencies are unknown in training, so the ranges are of multiply-accumulates (MACs); the report groups the same SubNets by the
latencies of its devices. Source: AdaptiveNet (MobiCom 2023) §4.2.
"""

import math
from collections.abc import Callable

import numpy as np
from torch import distributed

from tailor_ir import Config, SuperNet
from tailor_ir.subnets.prefixes import groups
from tasks.base.artifacts import append_line
from tasks.base.schemas.results import RANGE_ACCURACIES_FILE, RANGES_FILE, RangeLine, WatchedSubNet, WatchedSubNets
from tasks.data import Dataset
from tasks.evaluation.subnets import EvaluationData, EvaluationResources, evaluate_together
from tasks.training.finetune.checkpoint import rewind
from tasks.training.finetune.job import Job, TrainingPhase
from tasks.training.finetune.settings import Settings

RANGES = 4
POOL = 512
"""Random SubNets from which the watched ones are taken."""
MOST_COST = 0.05
"""Largest share of the training time for the evaluations, estimated from their number of images."""
PASSES_OF_TRAINING = 3
"""Cost of a forward and a backward pass together, in forward passes."""
SHARED = 0.5
"""Cost of SubNets evaluated together, as a share of as many largest ones: they share layers and are smaller."""


def choose(net: SuperNet, count: int, seed: int) -> WatchedSubNets:
    """At most `count` random SubNets, up to `count / RANGES` in each of `RANGES` equal ranges of MACs.

    Draws lean to small or large choices by different amounts, so that ranges at both ends are hit, too.
    """
    space, rng = net.space, np.random.default_rng(seed)
    ends = {space.digest(config) for config in (net.max_config, net.min_config)}
    leaning = rng.random((POOL, len(space.variables))) ** np.exp(rng.normal(0, 1, (POOL, 1)))
    codes = space.canonical_codes((leaning * space.cardinalities).astype(np.int64))
    drawn = {space.digest(config): config for config in map(space.decode, codes)}
    macs = {digest: net.macs(config) for digest, config in drawn.items() if digest not in ends}
    reached = [*macs.values(), net.macs(net.max_config), net.macs(net.min_config)]
    bounds = np.linspace(min(reached), max(reached), RANGES + 1)
    rows: list[WatchedSubNet] = []
    for number in range(RANGES):
        inside = [digest for digest in macs if _range_of(macs[digest], bounds) == number]
        rows += [
            WatchedSubNet(config=drawn[digest], digest=digest, macs=macs[digest], range=number)
            for digest in inside[: count // RANGES]
        ]
    return WatchedSubNets(bounds_macs=tuple(bounds.tolist()), subnets=tuple(rows))


def _range_of(macs: int, bounds: np.ndarray) -> int:
    return min(int(np.searchsorted(bounds, macs, side="right")), RANGES) - 1


def period(settings: Settings, phase: TrainingPhase, steps_per_epoch: int) -> int | None:
    """Epochs of a phase between two evaluations of the SubNets; None: no evaluation, since it would take too long."""
    ranges = settings.ranges
    if ranges.subnets < RANGES or phase.strategy is None:
        return None
    if ranges.every_epochs is not None:
        return ranges.every_epochs
    at_once = settings.random_subnets + 2 if phase.strategy in ("sandwich", "compound") else settings.random_subnets
    trained = steps_per_epoch * settings.batch_size * max(1, at_once) * PASSES_OF_TRAINING
    evaluated = SHARED * ranges.subnets * (ranges.images + ranges.recalibration_images)
    epochs = math.ceil(evaluated / (MOST_COST * trained))
    return epochs if epochs * steps_per_epoch <= phase.steps else None


def prepare(job: Job, net: SuperNet) -> None:
    """Write the SubNets into the job's folder if any phase evaluates them."""
    settings = job.finetune
    assert settings is not None
    file = job.folder / RANGES_FILE
    before = file.read_bytes() if file.exists() else None
    if all(period(settings, phase, job.steps_per_epoch) is None for phase in job.phases):
        file.unlink(missing_ok=True)
    else:
        choose(net, settings.ranges.subnets, settings.seed).write(file)
    if before is not None and (not file.exists() or file.read_bytes() != before):  # a resumed run with other settings
        (job.folder / RANGE_ACCURACIES_FILE).unlink(missing_ok=True)


class RangeWatch:
    """Evaluates SubNets at the ends of epochs of a phase; each rank takes some of them."""

    def __init__(self, job: Job, phase: TrainingPhase, net: SuperNet, epochs: int, data: EvaluationData) -> None:
        """epochs: between two evaluations; the last evaluation is at the end of the phase."""
        self._net, self._last = net, phase.last_step
        self._every = epochs * job.steps_per_epoch
        self._watched = WatchedSubNets.read(job.folder / RANGES_FILE)
        self._file = job.folder / RANGE_ACCURACIES_FILE
        self._data = data
        configs: list[Config] = [dict(one.config) for one in self._watched.subnets]
        rank, world = distributed.get_rank(), distributed.get_world_size()
        pieces = groups(net.elastic, configs, math.ceil(len(configs) / world))
        self._own = [[(position, configs[position]) for position in piece] for piece in pieces[rank::world]]

    def rewind(self, step: int) -> None:
        """Remove evaluations after `step`."""
        rewind(self._file, step)

    def is_due(self, step: int) -> bool:
        """Whether the SubNets are evaluated after this step."""
        return (self._last - step) % self._every == 0

    def measure(self, step: int, *, writes: bool, move: Callable[[], None]) -> dict[str, float]:
        """Mean accuracy by range, for the history. All ranks call it. writes: append a line to the file. move: called for each
        batch.
        """
        own: dict[int, tuple[float, int]] = {}
        for piece in self._own:
            found = evaluate_together(self._net, [config for _, config in piece], self._data, move)
            own |= {position: (one.correct, one.total) for (position, _), one in zip(piece, found, strict=True)}
        gathered: list[dict[int, tuple[float, int]]] = [{}] * distributed.get_world_size()
        distributed.all_gather_object(gathered, own)
        counts = {position: count for part in gathered for position, count in part.items()}
        correct = [counts[position][0] for position in range(len(counts))]
        total = counts[0][1]
        if writes:
            append_line(self._file, RangeLine(step=step, correct=correct, total=total))
        return self._by_range(correct, total)

    def _by_range(self, correct: list[float], total: int) -> dict[str, float]:
        shares: dict[int, list[float]] = {}
        for subnet, count in zip(self._watched.subnets, correct, strict=True):
            shares.setdefault(subnet.range, []).append(count / total)
        return {f"accuracy_range_{number + 1}": sum(own) / len(own) for number, own in shares.items()}


def watch_of(
    job: Job,
    phase: TrainingPhase,
    net: SuperNet | None,
    images: tuple[Dataset, Dataset | None],
    resources: EvaluationResources,
) -> RangeWatch | None:
    """The watch of a phase; None if nothing is evaluated. images: for training and validation."""
    settings, (train, validation) = job.finetune, images
    if net is None or settings is None or validation is None or not (job.folder / RANGES_FILE).exists():
        return None
    epochs = period(settings, phase, job.steps_per_epoch)
    if epochs is None:
        return None
    data = EvaluationData(
        validation,
        train,
        batch_size=settings.micro_batch,
        limit=settings.ranges.images,
        recalibration_images=settings.ranges.recalibration_images,
        resources=resources,
    )
    return RangeWatch(job, phase, net, epochs, data)
