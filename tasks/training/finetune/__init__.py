"""Fine-tune a SuperNet under torchrun with DistributedDataParallel."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import tailor_ir
from tasks.base.artifacts import read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Progress, Silent
from tasks.base.schemas.results import FinetuneResult
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings, load, load_splits
from tasks.training.finetune.job import GENTLE, split_epochs
from tasks.training.finetune.settings import AUTO, FROZEN, OF_BLOCKS, OF_EXITS, RangeSettings, Settings, TrainSettings

if TYPE_CHECKING:
    from tailor_ir import Reference, Space, SuperNet
    from tasks.data.dataset import Dataset
    from tasks.evaluation.subnets import EvaluationData
    from tasks.training.finetune.job import Job

FEW, MANY, MORE_S = 5, 60, 4.0
"""Steps of a trial, in each of its phases; steps of a longer one, if they take less than these seconds."""


def run(settings: Settings, data: DataSettings, supernet: Path, folder: Path, progress: Progress) -> StageResult:
    """Train the SuperNet in folder `supernet`; returns the accuracies of its largest and smallest SubNets.

    Writes `supernet/` and `history.jsonl` into `folder`, and `ranges.json` with `range_accuracies.jsonl` if the accuracy of
    SubNets was followed during training. The SuperNet stores the BatchNorm statistics of its largest SubNet, and of each
    alternative that stands alone in it. If fine-tuning made the largest SubNet worse, a message says so, and the better weights
    are kept.
    A second call goes on from the last checkpoint. Raises UserError when a worker dies.
    """
    from tasks.evaluation.subnets import EvaluationData, EvaluationResources
    from tasks.evaluation.subnets.evaluations import accuracies_of_ends, ends_on
    from tasks.evaluation.subnets.images import pick_device
    from tasks.training.finetune import ranges
    from tasks.training.finetune.checkpoint import BeforeWeights
    from tasks.training.finetune.launcher import launch

    splits = load_splits(data)
    settings = _chosen(settings, (net := tailor_ir.load(supernet)).space, progress)
    if (unroll := splits["train"].source.unroll) > 1:
        progress.say(f"SubNets keep their own states over {unroll} samples (data.unroll)")
    before = net.answers() if FROZEN.issuperset(settings.strategies) else None
    job = _job(settings, splits["train"], net, supernet, folder)
    ranges.prepare(job, net)
    job = launch(job, "fine-tuning", progress)
    images, here = settings.recalibration_images, EvaluationResources(device=pick_device(settings.device))
    net.elastic.to(here.device)
    validation = EvaluationData(splits["validation"], splits["train"], recalibration_images=images, resources=here)
    given = BeforeWeights.of(net, validation) if before is None else None
    _take(net, job, validation)
    after = ends_on(net, validation)
    validated, described = (after, None) if given is None else given.better(after, progress.say)
    result = FinetuneResult(
        strategy=settings.strategy,
        steps=len(read_lines(job.history)),
        micro_batch=job.settings.micro_batch,
        before=described,
        **accuracies_of_ends(net, validation, splits["test"], validated),
    )
    _keep(net, before, job, splits["train"])
    return result.to_json()


def _job(settings: Settings, train: Dataset, net: SuperNet, supernet: Path, folder: Path) -> Job:
    from tasks.training.finetune.job import Job

    settings = settings.for_samples(len(train), train.source.unroll)
    planned = train.planned(settings.batch_size, settings.micro_batches)
    return Job(
        folder=folder,
        data=train.settings,
        finetune=settings,
        supernet=supernet,
        steps_per_epoch=planned.steps,
        last_batch=planned.last,
        total_steps=settings.steps_of(planned.steps),
        exits=exits_of(net.space),
    )


class TrainingTimes(NamedTuple):
    """Seconds until a training begins, seconds of one step, and steps of an epoch."""

    start_s: float
    step_s: float
    steps_per_epoch: int


def trial(settings: Settings, data: DataSettings, supernet: Path, folder: Path) -> TrainingTimes:
    """The times of a training of few steps in each phase, in proportion to the phases; its weights stay in `folder`.

    Short steps vary more, so that more of them follow.
    """
    net, train = tailor_ir.load(supernet), load(data, "train")
    chosen = _chosen(settings, net.space, Silent())
    shares = chosen.phase_shares or (1.0,) * len(chosen.strategies)
    phases = round(sum(shares) / min(shares))
    chosen = chosen.model_copy(update={"ranges": RangeSettings(subnets=0)})
    whole = _job(chosen, train, net, supernet, folder)
    start_s, steps_s = _timed(whole, phases * FEW if phases > 1 else FEW, phases)
    if phases == 1 and (MANY - FEW) * steps_s[-1] < MORE_S:
        _, steps_s = _timed(whole, MANY, phases)
        steps_s = steps_s[FEW:]
    return TrainingTimes(start_s, fmean(steps_s[1:]), whole.steps_per_epoch)


def _timed(job: Job, steps: int, phases: int) -> tuple[float, list[float]]:
    """Train up to a step; the seconds before the first step, and those of each step. phases: epochs that they are in."""
    from tasks.training.finetune.launcher import launch

    of_epoch = min(job.steps_per_epoch, math.ceil(steps / phases))
    epochs = phases if phases > 1 else math.ceil(steps / of_epoch)
    steps = min(steps, epochs * of_epoch)
    shorter = job.with_settings(epochs=epochs).model_copy(update={"total_steps": steps, "steps_per_epoch": of_epoch})
    began_s = time.monotonic()
    launch(shorter, "trial", Silent())
    whole_s = time.monotonic() - began_s
    steps_s = [job.settings.batch_size / line["images_per_s"] for line in read_lines(job.history)]
    return max(0.0, whole_s - sum(steps_s)), steps_s


def _take(net: SuperNet, job: Job, data: EvaluationData) -> None:
    """Load the checkpoint's weights into the SuperNet, and set the statistics of its largest SubNet and its alternatives."""
    from tasks.evaluation.subnets import set_own_statistics
    from tasks.training.finetune import checkpoint

    assert job.finetune is not None
    checkpoint.load_model(job.checkpoint, net.elastic, average=job.settings.average > 0)
    frozen = job.finetune.strategies[-1] in FROZEN  # the network is the user's, or has its statistics
    set_own_statistics(net, data, largest=not frozen)


def _keep(net: SuperNet, before: Reference | None, job: Job, train: Dataset) -> None:
    """Save the trained SuperNet after checking it. before: answers that the largest SubNet must still give."""
    from tasks.data.dataset import remember
    from tasks.data.teacher import carry_teacher
    from tasks.evaluation.models import carry_origin

    net.elastic.to("cpu")
    if before is not None:
        net.check_against(before, "stage finetune, alternatives alone trained")
    net.check_forms(where="stage finetune")
    assert job.supernet is not None
    net.save(job.folder / "supernet")
    remember(train, job.folder / "supernet")
    carry_origin(job.supernet, job.folder / "supernet")
    carry_teacher(job.supernet, job.folder / "supernet")
    job.checkpoint.unlink()


def exits_of(space: Space) -> tuple[str, ...]:
    """The exits of a space in order of depth; the last is the whole network. None if the space has no exits."""
    return tuple(str(choice) for one in space.variables if one.kind == "exit" for choice in one.choices)


def _check_exits(settings: Settings, exits: Sequence[str]) -> None:
    """Raise UserError if exit settings do not match the number of exits, or if a stage gets less than one epoch."""
    lengths = {"weights": (len(exits),), "target": (1, len(exits)), "shares": (len(exits),)}
    for option, allowed in lengths.items() if OF_EXITS.intersection(settings.strategies) else ():
        given = getattr(settings.exits, option)
        if given is not None and len(given) not in allowed:
            raise UserError(
                f"finetune.exits.{option}={list(given)}",
                f"the space has the exits {', '.join(exits)}",
                allowed="a number for each" + (", or one for all" if 1 in allowed else ""),
            )
    shares = settings.phase_shares or (1.0,) * len(settings.strategies)
    for strategy, epochs in zip(settings.strategies, split_epochs(settings.epochs, shares), strict=True):
        if strategy == "staged" and epochs < len(exits):
            raise UserError(
                f"finetune.epochs={settings.epochs}",
                f"{epochs} of them for the {len(exits)} stages of staged, {', '.join(exits)}",
                allowed="an epoch or more for each",
            )


def _chosen(settings: Settings, space: Space, progress: Progress) -> Settings:
    """The settings with a strategy, reported if it was left open. UserError if the space does not fit the strategy."""
    kinds = {variable.kind for variable in space.variables}
    chosen = settings.resolved(kinds)
    for strategies, kind, what, example in (
        (OF_BLOCKS, "block", "alternatives to blocks", "space.alternatives=[merged,low_rank]"),
        (OF_EXITS, "exit", "exits", "space.exits=auto"),
    ):
        own = [strategy for strategy in chosen.strategies if strategy in strategies]
        if own and kind not in kinds:
            raise UserError(
                "finetune.strategy",
                f"{own[0]} trains {what}, and the space has none",
                next_step=f"ask for some, as {example}, or take another strategy",
            )
    _check_exits(chosen, exits_of(space))
    if chosen.gentle and chosen.phase_rates is None and not FROZEN.issuperset(chosen.strategies):
        progress.say(
            f"fine-tuning: the network comes trained: its own weights have a learning rate of "
            f"{GENTLE * chosen.learning_rate:g} (finetune.learning_rate=… sets another)"
        )
    if settings.strategy == AUTO and FROZEN.issuperset(chosen.strategies):
        heads = " and heads of exits" if "heads" in chosen.strategies else ""
        progress.say(
            f"fine-tuning: {chosen.strategy}: alternatives{heads} alone are trained, the network stays as it is"
        )
        trained = {"block", "exit"} if heads else {"block"}
        if untrained := sorted(kinds - trained):
            progress.say(
                f"fine-tuning: {', '.join(untrained)}: not trained; finetune.strategy=[sandwich,branches,tune] trains sizes "
                "first, and with them the network"
            )
    return chosen
