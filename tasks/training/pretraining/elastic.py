"""Stage "backbone": the SuperNet of the backbone, with the weights of the whole SuperNet, and a classifier on it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tailor_ir
from tailor_ir import SuperNet
from tasks.base.progress import Progress
from tasks.base.schemas.results import BackboneResult
from tasks.base.schemas.stored import StageResult
from tasks.data import load_splits
from tasks.data.description import remember
from tasks.evaluation.models import ModelSettings, remember_origin
from tasks.evaluation.subnets import EvaluationData, accuracy
from tasks.training.compile import Settings as CompileSettings
from tasks.training.compile import supernet_of
from tasks.training.pretraining.classifier import fit_classifier
from tasks.training.pretraining.settings import Settings


def run(
    settings: Settings,
    compiling: CompileSettings,
    model: ModelSettings,
    space: Mapping[str, Any] | None,
    whole: Path,
    folder: Path,
    progress: Progress,
) -> StageResult:
    """Save the backbone's SuperNet in `folder`/supernet. whole: the folder of the SuperNet of the whole network.

    BatchNorm statistics come from the first data. Raises UserError or TailorError if the backbone's SuperNet cannot be made, or
    does not fit into the whole.
    """
    net, shared = cut_out(settings, compiling, model, space, tailor_ir.load(whole))
    for remark in net.remarks:
        progress.say(remark)
    splits = load_splits(settings.data)
    validation = EvaluationData(
        splits["validation"], splits["train"], recalibration_images=settings.finetune.recalibration_images
    )
    net.set_statistics(net.recalibrate(net.max_config, validation.calibration(net.input_size(net.max_config))))
    net.set_statistics(net.recalibrate_alternatives(validation.calibration(net.input_size(net.max_config))))
    fit_classifier(net, splits["train"], settings.classifier_images, progress)
    net.check_forms(where="stage backbone")
    net.save(folder / "supernet")
    remember(splits["train"], folder / "supernet")
    remember_origin(model, folder / "supernet")
    return BackboneResult(
        variables=len(net.space.variables),
        distinct=net.space.distinct,
        shared_tensors=len(shared),
        validation_accuracy=accuracy(net, net.max_config, validation).share,
    ).to_json()


def cut_out(
    settings: Settings,
    compiling: CompileSettings,
    model: ModelSettings,
    space: Mapping[str, Any] | None,
    whole: SuperNet,
) -> tuple[SuperNet, tuple[str, ...]]:
    """The SuperNet of the backbone with the whole SuperNet's tensors, and the names of these tensors.
    The linear layer has random weights. Raises UserError or TailorError like `run`.
    """
    assert settings.backbone is not None
    net = supernet_of(compiling, settings.classifier(model), settings.data, None, space)
    return net, net.take(settings.backbone, whole)
