"""Fine-tune a SuperNet under torchrun with DistributedDataParallel."""

from pathlib import Path

import tailor_ir
from tasks.data import DataSettings, load_splits
from tasks.data.description import remember
from tasks.evaluation.ends import accuracies_of_ends
from tasks.evaluation.subnets import EvaluationData, statistics_of
from tasks.finetune import checkpoint
from tasks.finetune.device import pick_device
from tasks.finetune.job import Job
from tasks.finetune.launcher import launch
from tasks.finetune.settings import Settings, TrainSettings
from tasks.models import carry_origin
from tasks.progress import Progress
from tasks.schemas.results import FinetuneResult
from tasks.schemas.stored import StageResult

__all__ = ["Settings", "TrainSettings", "run"]


def run(settings: Settings, data: DataSettings, supernet: Path, folder: Path, progress: Progress) -> StageResult:
    """Train the SuperNet of folder `supernet`; returns accuracies of the largest and smallest SubNets.

    Leaves `supernet/` (it stores the largest SubNet's BatchNorm statistics) and `history.jsonl` in `folder`.
    A second call in the same folder goes on from the last checkpoint. Raises UserError when a worker dies.
    """
    splits = load_splits(data)
    steps = splits["train"].steps(settings.batch_size)
    job = Job(
        folder=folder,
        data=data,
        finetune=settings,
        supernet=supernet,
        steps_per_epoch=steps,
        total_steps=steps * settings.epochs,
    )
    job = launch(job, "fine-tuning", progress)
    net = tailor_ir.load(supernet)
    checkpoint.load_model(job.checkpoint, net.elastic, average=settings.average > 0)
    device = pick_device(settings.device)
    net.elastic.to(device)
    validation = EvaluationData(
        splits["validation"], splits["train"], device=device, recalibration_images=settings.recalibration_images
    )
    net.set_statistics(statistics_of(net, net.max_config, validation))
    result = FinetuneResult(
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
