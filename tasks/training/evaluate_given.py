"""Accuracy of a network that a run receives and does not train, for comparison with SubNets."""

from pathlib import Path

import onnx

import tailor_ir
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.results import GivenFile, GivenSuperNet
from tasks.base.schemas.stored import StageResult
from tasks.data import Dataset, DataSettings, load_splits
from tasks.data.dataset import check_same
from tasks.data.teacher import OnnxNetwork
from tasks.evaluation.models import ModelSettings, create
from tasks.evaluation.models.outputs import check_shapes
from tasks.evaluation.subnets import EvaluationData, EvaluationResources, tallied
from tasks.evaluation.subnets.evaluations import accuracies_of_ends
from tasks.evaluation.subnets.images import pick_device
from tasks.evaluation.subnets.record import BASE, CONFUSIONS_FILE, append_confusions, confusion_of, exchanged, graded


def evaluate_file(model: ModelSettings, data: DataSettings, folder: Path, progress: Progress) -> StageResult:
    """Validation and test accuracy of a network in an .onnx file. UserError for a file that does not fit the data.

    For a classifier, `confusions.jsonl` is written into `folder`. A line says if its classes are likely in another order.
    """
    splits = load_splits(data)
    train = splits["train"]
    given = create(model, train.classes, train.form, problem=train.problem)
    assert isinstance(given, onnx.ModelProto), "of a network that is made in Python, stage base has the accuracy"
    network = OnnxNetwork(given.SerializeToString())
    size = train.form.size
    images = EvaluationData(splits["validation"], train)
    found = {
        split: tallied(network, images.of(splits[split]).batches(size), images.problem)
        for split in ("validation", "test")
    }
    append_confusions(folder / CONFUSIONS_FILE, BASE, train.class_names, confusion_of(found["test"]))
    shares = {f"{split}_accuracy": one.score for split, one in found.items()}
    samples = {f"{split}_samples": len(one.each_N) for split, one in found.items()}
    known = exchanged(found, train.class_names, data.class_order, progress)
    return GivenFile.model_validate({**shares, **samples, **known, **graded(found["test"].each_N)}).to_json()


def evaluate_supernet(supernet: Path, data: DataSettings, recalibration_images: int) -> StageResult:
    """Accuracies of the largest and smallest SubNets. UserError for data that the SuperNet was not made for."""
    splits = load_splits(data)
    train = splits["train"]
    check_same(train, supernet)
    net = tailor_ir.load(supernet)
    _check_images(net, supernet, train)
    net.check_forms(where="stage given")
    resources = EvaluationResources(device=pick_device("auto"))
    net.elastic.to(resources.device)
    images = EvaluationData(splits["validation"], train, recalibration_images=recalibration_images, resources=resources)
    return GivenSuperNet(**accuracies_of_ends(net, images, splits["test"])).to_json()


def _check_images(net: tailor_ir.SuperNet, supernet: Path, train: Dataset) -> None:
    """Refuse a SuperNet whose shapes do not fit the data; one that no run made has no description of its data."""
    where, form = f"supernet '{supernet}'", train.form
    shapes = net.input_shapes(net.max_config)
    if fault := form.fault(shapes):
        raise UserError(
            where,
            f"takes {fault}",
            allowed=f"{form.line}, the data's {form.called}",
            next_step=form.advice({name: shape[1:] for name, shape in shapes.items()}, "compile"),
        )
    graph = net.structure.graph
    check_shapes(
        where, [graph.shapes[name] for name in graph.outputs], train.classes, train.problem, train.settings.resolution
    )
