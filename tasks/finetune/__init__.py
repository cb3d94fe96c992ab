"""Fine-tune a SuperNet under torchrun with DistributedDataParallel."""

from pathlib import Path
from typing import Any

import tailor_ir
from tasks.data import DataSettings, load_splits
from tasks.evaluate import EvaluationData, accuracy, statistics_of
from tasks.finetune import checkpoint
from tasks.finetune.device import pick_device
from tasks.finetune.job import Job
from tasks.finetune.launcher import launch
from tasks.finetune.settings import Settings, TrainSettings
from tasks.progress import Progress

__all__ = ["Settings", "TrainSettings", "run"]


def run(settings: Settings, data: DataSettings, supernet: Path, folder: Path, progress: Progress) -> dict[str, Any]:
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
    result: dict[str, Any] = {"steps": job.total_steps, "micro_batch": job.settings.micro_batch}
    validation = EvaluationData(
        splits["validation"], splits["train"], device=device, recalibration_images=settings.recalibration_images
    )
    net.set_statistics(statistics_of(net, net.max_config, validation))
    for split, images in (("validation", validation), ("test", validation.of(splits["test"]))):
        for name, config in (("largest", net.max_config), ("smallest", net.min_config)):
            result[f"{name}_{split}_accuracy"] = accuracy(net, config, images).share
    net.elastic.to("cpu")
    net.save(folder / "supernet")
    job.checkpoint.unlink()
    return result
