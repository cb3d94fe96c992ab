"""The base network: trained here if it has no weights, else used unchanged; evaluated either way."""

from pathlib import Path
from typing import NamedTuple

from safetensors.torch import save_model
from torch import nn

from tailor_ir import Reference
from tasks.base.progress import Progress
from tasks.base.schemas.results import WEIGHTS_FILE, BaseResult
from tasks.base.schemas.stored import StageResult
from tasks.data import Dataset, DataSettings, load_splits
from tasks.data.batches import rows, tensors
from tasks.data.samples import Size
from tasks.evaluation.models import ModelSettings, create, load_part, load_weights, needs_training
from tasks.evaluation.subnets import EvaluationData, EvaluationResources, recalibrate_module, tallied
from tasks.evaluation.subnets.images import pick_device
from tasks.evaluation.subnets.record import BASE, CONFUSIONS_FILE, append_confusions, confusion_of, exchanged, graded
from tasks.training.finetune import checkpoint
from tasks.training.finetune.job import Job
from tasks.training.finetune.launcher import launch
from tasks.training.finetune.settings import BaseSettings as Settings
from tasks.training.finetune.settings import TrainSettings

BATCHES = (1, 3)
"""Batch sizes for comparing the network before and after its weights are written."""


class Pretrained(NamedTuple):
    """A part of the network that was trained on other data: the path of its module, and the file with its tensors."""

    part: str
    weights: Path


def run(
    settings: Settings,
    model: ModelSettings,
    data: DataSettings,
    folder: Path,
    progress: Progress,
    name: str = "training the base network",
    pretrained: Pretrained | None = None,
) -> StageResult:
    """Write `weights.safetensors` and, after training, `history.jsonl` into `folder`; for a classifier also `confusions.jsonl`.

    Returns validation and test accuracy. For networks made in Python (timm, callable); an .onnx file carries its weights and
    needs no base stage. pretrained: initial weights of a part if the network is trained here; everything else starts at random.
    A second call in the same folder continues from the last checkpoint. Raises UserError when a worker dies, and TailorError if
    the network answers differently with the written weights.
    """
    splits = load_splits(data)
    train = splits["train"]
    module = create(model, train.classes, train.form, seed=settings.seed, problem=train.problem)
    assert isinstance(module, nn.Module), "an .onnx file has no base stage"
    device = pick_device(settings.device)
    trained = settings.epochs > 0 and needs_training(model, train.classes)
    if trained and pretrained is not None:
        load_part(module, pretrained.weights, pretrained.part)
    micro_batch = _train(module, model, train, settings, folder, name, progress) if trained else None
    module.to(device).eval()
    count, resources = settings.recalibration_images, EvaluationResources(device=device)
    images = {
        split: EvaluationData(splits[split], train, recalibration_images=count, resources=resources)
        for split in ("validation", "test")
    }
    size = train.form.size
    if trained:
        recalibrate_module(module, images["test"].calibration(size))
    found = {split: tallied(module, one.batches(size), one.problem) for split, one in images.items()}
    append_confusions(folder / CONFUSIONS_FILE, BASE, train.class_names, confusion_of(found["test"]))
    _save(module.to("cpu"), images["validation"], size, folder / WEIGHTS_FILE)
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    return BaseResult(
        trained=trained,
        micro_batch=micro_batch,
        validation_accuracy=found["validation"].score,
        test_accuracy=found["test"].score,
        validation_samples=len(found["validation"].each_N),
        test_samples=len(found["test"].each_N),
        **graded(found["test"].each_N),
        **({} if trained else exchanged(found, train.class_names, data.class_order, progress)),
    ).to_json()


def _save(module: nn.Module, images: EvaluationData, size: Size, path: Path) -> None:
    """Write the weights, and compare the network before and after it reads them, with batches of one and three images."""
    x, _ = next(iter(images.batches(size)))
    reference = Reference.of(module, [tensors(rows(x, 0, count)) for count in BATCHES])
    save_model(module, str(path))
    load_weights(module, path)
    subject = "the network with the weights that were written"
    reference.check(lambda given: module(*given), "stage base", "before", subject)


def _train(
    module: nn.Module,
    model: ModelSettings,
    train: Dataset,
    settings: Settings,
    folder: Path,
    name: str,
    progress: Progress,
) -> int:
    """Train a network in worker processes and copy the result into it; returns the final size of the micro-batches.

    module: with its first weights. name: of the work, on the bar.
    """
    settings = settings.for_samples(len(train))
    planned = train.planned(settings.batch_size, settings.micro_batches)
    initial = folder / "initial.safetensors"
    partial = initial.with_name(f".{initial.name}.tmp")
    save_model(module, str(partial))
    partial.replace(initial)
    job = Job(
        folder=folder,
        data=train.settings,
        train=TrainSettings(**settings.model_dump()),
        model=model,
        initial=initial,
        steps_per_epoch=planned.steps,
        last_batch=planned.last,
        total_steps=settings.steps_of(planned.steps),
    )
    job = launch(job, name, progress)
    checkpoint.load_model(job.checkpoint, module, average=settings.average > 0)
    initial.unlink()
    return job.settings.micro_batch
