"""Fine-tune a SuperNet under torchrun with DistributedDataParallel."""

from pathlib import Path

import tailor_ir
from tailor_ir import Space
from tasks.data import DataSettings, load_splits
from tasks.data.description import remember
from tasks.errors import UserError
from tasks.evaluation.ends import accuracies_of_ends
from tasks.evaluation.subnets import EvaluationData, statistics_of
from tasks.finetune import checkpoint, ranges
from tasks.finetune.device import pick_device
from tasks.finetune.job import Job
from tasks.finetune.launcher import launch
from tasks.finetune.networks.supernet import input_size
from tasks.finetune.settings import AUTO, FROZEN, Settings, TrainSettings
from tasks.models import carry_origin
from tasks.progress import Progress
from tasks.schemas.results import FinetuneResult
from tasks.schemas.stored import StageResult

__all__ = ["Settings", "TrainSettings", "run"]


def run(settings: Settings, data: DataSettings, supernet: Path, folder: Path, progress: Progress) -> StageResult:
    """Train the SuperNet of folder `supernet`; returns accuracies of the largest and smallest SubNets.

    Leaves `supernet/` and `history.jsonl` in `folder`, and `ranges.json` with `range_accuracies.jsonl` where the training was
    followed by the accuracy of SubNets. The SuperNet stores the BatchNorm statistics of the largest SubNet, and of each
    alternative that stands alone in it.
    A second call in the same folder goes on from the last checkpoint. Raises UserError when a worker dies.
    """
    splits = load_splits(data)
    net = tailor_ir.load(supernet)
    settings = _chosen(settings, net.space, progress)
    steps = splits["train"].steps(settings.batch_size)
    job = Job(
        folder=folder,
        data=data,
        finetune=settings,
        supernet=supernet,
        steps_per_epoch=steps,
        total_steps=steps * settings.epochs,
    )
    ranges.prepare(job, net)
    job = launch(job, "fine-tuning", progress)
    checkpoint.load_model(job.checkpoint, net.elastic, average=settings.average > 0)
    device = pick_device(settings.device)
    net.elastic.to(device)
    validation = EvaluationData(
        splits["validation"], splits["train"], device=device, recalibration_images=settings.recalibration_images
    )
    if settings.strategies[-1] not in FROZEN:  # else the network is the user's, or was left with its statistics
        net.set_statistics(statistics_of(net, net.max_config, validation))
    net.set_statistics(net.recalibrate_alternatives(validation.calibration(input_size(net, net.max_config))))
    result = FinetuneResult(
        strategy=settings.strategy,
        steps=job.total_steps,
        micro_batch=job.settings.micro_batch,
        **accuracies_of_ends(net, validation, splits["test"]),
    )
    net.elastic.to("cpu")
    net.save(folder / "supernet")
    remember(splits["train"], folder / "supernet")
    carry_origin(supernet, folder / "supernet")
    job.checkpoint.unlink()
    return result.to_json()


def _chosen(settings: Settings, space: Space, progress: Progress) -> Settings:
    """The settings with a strategy, which is told where it was left open. UserError for one that this space has nothing for."""
    kinds = {variable.kind for variable in space.variables}
    chosen = settings.resolved(alternatives="block" in kinds)
    frozen = [strategy for strategy in chosen.strategies if strategy in FROZEN]
    if frozen and "block" not in kinds:
        raise UserError(
            "finetune.strategy",
            f"{frozen[0]} trains alternatives to blocks, and the space has none",
            next_step="ask for some, as space.alternatives=[merged,low_rank], or take another strategy",
        )
    if settings.strategy == AUTO and frozen:
        progress.say(f"fine-tuning: {chosen.strategy}: alternatives alone are trained, the network stays as it is")
        if untrained := sorted(kinds - {"block"}):
            progress.say(
                f"fine-tuning: {', '.join(untrained)}: not trained; finetune.strategy=[sandwich,branches,tune] trains sizes "
                "first, and with them the network"
            )
    return chosen
