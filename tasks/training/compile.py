"""Make a SuperNet from the user's network."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

import tailor_ir
from tailor_ir import EXIT_PASSES, FITTING_PASSES, Space, SuperNet
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.data import Dataset, DataSettings, load, load_splits
from tasks.data.batches import Inputs, only
from tasks.data.dataset import remember
from tasks.data.problems.fidelity import FIDELITY
from tasks.data.samples import AnyForm, SampleForm
from tasks.data.settings import TEACHER_FILE
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.models import ModelSettings, create, load_weights, remember_origin
from tasks.evaluation.models.outputs import check_shapes
from tasks.evaluation.models.settings import CompileSettings as Settings
from tasks.evaluation.subnets import EvaluationData

BATCH = 32
ORDER_IMAGES = (16, 64)
"""Fewest and most training images for BatchNorm statistics of SubNets that judge an order of channels; validation uses as
many.
"""
NORM_IMAGES = (32, 512)
"""Fewest and most training images by whose statistics BatchNorms are put back."""
NORM_NUMBERS = 2**25
"""Limit of numbers in these images, if the fewest allow it: 128 MiB, since they are kept."""
ORDER_MACS = 2e9
"""Limit of multiply-accumulates of the largest SubNet on these images, if the fewest allow it: seconds for all SubNets."""
SEED = 0
TEACHER_BATCH = 16
"""Batch size of the file of the network as it is given."""


class SpaceSizes(TypedDict):
    """Numbers of variables, of modifications, of codes, and of distinct SubNets (canonical codes)."""

    variables: int
    modifications: int
    codes: int
    distinct: int


class AlternativeError(TypedDict):
    """An alternative to a block, by variable and choice, and its loss: `tailor_ir.FirstWeights`."""

    variable: str
    choice: str
    error: float


class ExitAgreement(TypedDict):
    """An exit, and how often it agrees with the network on the class: `tailor_ir.FirstExit`."""

    exit: str
    agreement: float


class CompileResult(SpaceSizes):
    """The space; its proposed choices that the network cannot take (`dropped`), and the compiler's remarks.

    remarks: the last one states the order of channels, if the network has trained weights. alternatives: the loss of each with
    its first weights, on images that these were not fitted to; empty without data. exits: how often each agrees with the
    network with its first weights, likewise.
    """

    dropped: list[str]
    remarks: list[str]
    alternatives: list[AlternativeError]
    exits: list[ExitAgreement]


def run(
    settings: Settings,
    model: ModelSettings,
    data: DataSettings,
    weights: Path | None,
    space: Mapping[str, Any] | None,
    folder: Path,
    progress: Progress,
) -> CompileResult:
    """Write the SuperNet to `folder`/supernet; returns the sizes of its space.

    Remarks of the compiler are shown at once, and are in the result. Raises UserError or TailorError as `supernet_of`, and
    TailorError if a step changed the network's results; then no SuperNet is written.
    """
    net = supernet_of(settings, model, data, weights, space)
    train = load(data, "train")
    for remark in (*train.notes, *net.remarks):
        progress.say(remark)
    order = sort_channels(net, data, trained=weights is not None or model.kind == "onnx")
    for line in order:
        progress.say(line)
    net.check_against(where="stage compile, order of channels")
    alternatives = fit_alternatives(net, data, settings.alternative_images, progress)
    exits = fit_exits(net, data, settings.exit_images, progress)
    net.check_against(where="stage compile, first weights")
    net.check_forms(where="stage compile")
    net.save(folder / "supernet")
    remember(train, folder / "supernet")
    keep_teacher(net, train, folder / "supernet")
    remember_origin(model, folder / "supernet")
    return {
        **sizes(net.space),
        "dropped": list(net.space.dropped),
        "remarks": [*net.remarks, *order],
        "alternatives": alternatives,
        "exits": exits,
    }


def keep_teacher(net: SuperNet, train: Dataset, supernet: Path) -> None:
    """Write the network as it is given into a SuperNet's folder, if its answers are the targets."""
    if train.problem.name == FIDELITY.name:
        write_bytes(supernet / TEACHER_FILE, onnx_of(net, net.max_config, batch=TEACHER_BATCH))


def sort_channels(net: SuperNet, data: DataSettings, *, trained: bool) -> list[str]:
    """Put channels in the order that brings smaller SubNets closer to the network on validation samples; returns a line on it.

    Answers of random weights carry no information: channels are then sorted without a comparison, and there is no line.
    """
    if not trained:
        net.sort_channels()
        return []
    fewest, most = ORDER_IMAGES
    count = min(most, max(fewest, int(ORDER_MACS / max(1, net.macs(net.max_config)))))
    fitted_to, held_out = _images(net, data, count)
    return [net.sort_channels_if_closer(fitted_to, held_out, np.random.default_rng(SEED)).line]


def fit_alternatives(net: SuperNet, data: DataSettings, images: int, progress: Progress) -> list[AlternativeError]:
    """Fit the first weights of alternatives to training images; returns the loss of each on as many validation images."""
    if not images or all(variable.kind != "block" for variable in net.space.variables):
        return []
    fitted_to, held_out = _images(net, data, images)
    with progress.bar("first weights of alternatives", FITTING_PASSES * len(fitted_to) + len(held_out)) as bar:
        described = net.fit_alternatives(fitted_to, held_out, np.random.default_rng(SEED), bar.advance)
    return [{"variable": each.variable, "choice": each.choice, "error": each.error} for each in described]


def fit_exits(net: SuperNet, data: DataSettings, images: int, progress: Progress) -> list[ExitAgreement]:
    """Fit the heads of exits to training images; returns how often each agrees with the network on as many validation
    images.
    """
    if not images or all(variable.kind != "exit" for variable in net.space.variables):
        return []
    fitted_to, held_out = _images(net, data, images)
    with progress.bar("first weights of exits", EXIT_PASSES * len(fitted_to) + len(held_out)) as bar:
        described = net.fit_exits([only(x) for x in fitted_to], [only(x) for x in held_out], bar.advance)
    return [{"exit": each.exit, "agreement": each.agreement} for each in described]


def _images(net: SuperNet, data: DataSettings, count: int) -> tuple[list[Inputs], list[Inputs]]:
    """Batches of `count` training samples, and of `count` validation samples."""
    found = _limited(data, count)
    size = net.input_size(net.max_config)
    held_out = [x_BCHW for x_BCHW, _ in found.batches(size)]
    return list(found.calibration(size)), held_out


def _calibration(data: DataSettings, form: AnyForm) -> Iterable[Inputs]:
    """Training samples by whose statistics BatchNorms are put back, in the data's own size."""
    fewest, most = NORM_IMAGES
    count = min(most, max(fewest, NORM_NUMBERS // form.numbers(form.size)))
    return _limited(data, count).calibration(form.size)


def _limited(data: DataSettings, count: int) -> EvaluationData:
    splits = load_splits(data)
    return EvaluationData(
        splits["validation"], splits["train"], recalibration_images=count, limit=count, batch_size=BATCH
    )


def supernet_of(
    settings: Settings, model: ModelSettings, data: DataSettings, weights: Path | None, space: Mapping[str, Any] | None
) -> SuperNet:
    """The SuperNet of a network.

    weights: those of the base stage; None leaves random weights, or those in an .onnx file. space: None or empty proposes the
    variables. Raises UserError or TailorError for a network or space that cannot be used.
    """
    train = load(data, "train")
    network = create(
        model.model_copy(update={"pretrained": False, "checkpoint": None}),
        train.classes,
        train.form,
        problem=train.problem,
    )
    if isinstance(network, torch.nn.Module):
        if weights is not None:
            load_weights(network, weights)
        network.eval()
    opens = model.kind == "onnx" and settings.open_batch_norms
    make = partial(
        tailor_ir.compile,
        network,
        train.form.blank(1),
        kernel_transform=settings.kernel_transform,
        calibration=list(_calibration(data, train.form)) if opens else (),
    )
    net = make(_space_of(space, train.form))
    if train.problem.name == FIDELITY.name and (output := resized_output(net)):
        variables, fixed = net.space.variables, net.space.resolution
        net = make({one.name: "frozen" if n == fixed else "auto" for n, one in enumerate(variables)})
        net.remarks = (*net.remarks, f"the resolution is fixed: output '{output}' has other positions at another one")
    if fault := train.form.fault(net.input_shapes(net.max_config)):
        raise UserError(
            f"model '{model.name}'", f"takes {fault}", allowed=f"{train.form.line}, the data's {train.form.called}"
        )
    graph = net.structure.graph
    if (name := next((name for name in graph.inputs if graph.batch_axis(name)), None)) is not None:
        raise UserError(
            f"model '{model.name}'",
            f"does not take the batch as the first axis of input '{name}'",
            allowed="inputs whose first axis is the batch, as the data gives them; put a module around it that transposes",
        )
    outputs = [graph.shapes[name] for name in graph.outputs]
    check_shapes(f"model '{model.name}'", outputs, train.classes, train.problem, train.settings.resolution)
    return net


def _space_of(space: Mapping[str, Any] | None, form: AnyForm) -> Mapping[str, Any] | None:
    """The asked space; images with channels last keep their size."""
    if isinstance(form, SampleForm) and form.channels_last:
        return {**(space or {"*": "auto"}), "resolution": "frozen"}
    return space or None


def resized_output(net: SuperNet) -> str | None:
    """An output whose shape changes with the resolution, apart from height and width of maps (B, C, H, W); None: no output."""
    space, axes = net.space, net.structure.axis_map.axes
    if space.resolution is None:
        return None
    name = space.variables[space.resolution].name
    full, least = (
        space.sizes(space.row({**net.max_config, name: choice}))
        for choice in (net.max_config[name], net.min_config[name])
    )
    for output in net.structure.graph.outputs:
        changed = [place for place, axis in enumerate(axes[output]) if full(axis) != least(axis)]
        if changed and (len(axes[output]) != 4 or not {2, 3}.issuperset(changed)):
            return output
    return None


def sizes(space: Space) -> SpaceSizes:
    """The sizes of a space."""
    return {
        "variables": len(space.variables),
        "modifications": space.modifications,
        "codes": space.codes,
        "distinct": space.distinct,
    }
