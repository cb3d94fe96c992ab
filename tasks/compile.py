"""Make a SuperNet of the user's network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

import tailor_ir
from tasks.data import DataSettings, load
from tasks.models import ModelSettings, create, load_weights


class Settings(BaseModel):
    """How the SuperNet is made, apart from its space."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kernel_transform: bool = False
    """Smaller kernels are learned transforms of larger ones, not just their centre (Once-for-all, ICLR 2020)."""


def run(
    settings: Settings,
    model: ModelSettings,
    data: DataSettings,
    weights: Path | None,
    space: Mapping[str, Any] | None,
    folder: Path,
) -> dict[str, Any]:
    """Leave the SuperNet in `folder`/supernet; how many variables, modifications and SubNets it has.

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
    net.sort_channels()
    net.save(folder / "supernet")
    return {
        "variables": len(net.space.variables),
        "modifications": net.space.modifications,
        "codes": net.space.codes,
        "distinct": net.space.distinct,
        "dropped": list(net.space.dropped),
    }
