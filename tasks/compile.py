"""Make a SuperNet of the user's network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch
from pydantic import BaseModel, ConfigDict

import tailor_ir
from tailor_ir import Space, SuperNet
from tasks.data import DataSettings, load
from tasks.data.description import remember
from tasks.models import ModelSettings, create, load_weights, remember_origin
from tasks.models.answers import check_shapes
from tasks.progress import Progress


class Settings(BaseModel):
    """How the SuperNet is made, apart from its space."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kernel_transform: bool = False
    """Smaller kernels are learned transforms of larger ones, not just their centre (Once-for-all, ICLR 2020)."""


class SpaceSizes(TypedDict):
    """Numbers of variables, of modifications, of codes, and of distinct SubNets (canonical codes)."""

    variables: int
    modifications: int
    codes: int
    distinct: int


class CompileResult(SpaceSizes):
    """The space; its proposed choices that the network cannot take (`dropped`), and the compiler's remarks."""

    dropped: list[str]
    remarks: list[str]


def run(
    settings: Settings,
    model: ModelSettings,
    data: DataSettings,
    weights: Path | None,
    space: Mapping[str, Any] | None,
    folder: Path,
    progress: Progress,
) -> CompileResult:
    """Leave the SuperNet in `folder`/supernet; the sizes of its space.

    Remarks of the compiler are told at once, and are in the result. Raises UserError or TailorError as `supernet_of`.
    """
    net = supernet_of(settings, model, data, weights, space)
    for remark in net.remarks:
        progress.say(remark)
    net.sort_channels()
    net.save(folder / "supernet")
    remember(load(data, "train"), folder / "supernet")
    remember_origin(model, folder / "supernet")
    return {**sizes(net.space), "dropped": list(net.space.dropped), "remarks": list(net.remarks)}


def supernet_of(
    settings: Settings,
    model: ModelSettings,
    data: DataSettings,
    weights: Path | None,
    space: Mapping[str, Any] | None,
) -> SuperNet:
    """The SuperNet of a network.

    `weights` are those of the base stage; None leaves random ones, or those that an .onnx file carries. `space` None or
    empty proposes the variables. Raises UserError or TailorError for a network or space that cannot be used.
    """
    train = load(data, "train")
    network = create(
        model.model_copy(update={"pretrained": False, "checkpoint": None}),
        train.classes,
        train.channels,
        data.resolution,
    )
    if isinstance(network, torch.nn.Module):
        if weights is not None:
            load_weights(network, weights)
        network.eval()
    example_BCHW = torch.zeros(1, train.channels, data.resolution, data.resolution)
    net = tailor_ir.compile(network, example_BCHW, space or None, kernel_transform=settings.kernel_transform)
    graph = net.structure.graph
    check_shapes(f"model '{model.name}'", [graph.shapes[name] for name in graph.outputs], train.classes)
    return net


def sizes(space: Space) -> SpaceSizes:
    """The sizes of a space."""
    return {
        "variables": len(space.variables),
        "modifications": space.modifications,
        "codes": space.codes,
        "distinct": space.distinct,
    }
