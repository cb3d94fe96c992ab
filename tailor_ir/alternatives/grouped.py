"""`grouped`: k×k convolutions inside the block in groups of channels. Source: ResNeXt (CVPR 2017)."""

from math import prod

import torch

from tailor_ir.alternatives.layers import write_layers
from tailor_ir.alternatives.least_squares.regression import regression
from tailor_ir.alternatives.least_squares.replaced_layer import ReplacedLayer
from tailor_ir.alternatives.record import AlternativeKind
from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import Sketch
from tailor_ir.graph import Node


def _write(sketch: Sketch, number: float) -> str:
    groups = int(number)

    def fits(site: Site, node: Node, weight: torch.Tensor) -> bool:
        if node.op != "Conv" or prod(weight.shape[2:]) == 1 or weight.shape[0] % groups or weight.shape[1] % groups:
            return False
        channels = (site.network.axes(node.inputs[0])[1], site.network.axes(node.outputs[0])[1])
        return min(weight.shape[:2]) >= 4 * groups and all(map(site.is_inside, channels))

    def replace(sketch: Sketch, layer: ReplacedLayer, x: str, bias: str | None) -> str:
        weight = diagonal(layer, groups)
        name = f"{layer.node.name}/grouped"
        return sketch.convolution(name, x, weight, layer.node, bias=bias, groups=groups)

    return write_layers(
        sketch,
        fits,
        replace,
        "no convolution with a kernel of several positions reads and writes channels of the block alone",
    )


def diagonal(layer: ReplacedLayer, groups: int) -> torch.Tensor:
    """The diagonal part (O, I / groups, *K) of (O, I, *K): the weights from inputs to outputs of the same group.

    With the metric of its patches: the grouped weight whose results are nearest.
    """
    weight, metric = layer.weight, layer.metric
    if metric is not None:
        inputs = torch.arange(len(metric)).chunk(groups)
        cross = layer.cross.chunk(groups)
        fitted = [regression(own[:, seen], metric[seen][:, seen]) for own, seen in zip(cross, inputs, strict=True)]
        return torch.cat(fitted).reshape(weight.shape[0], -1, *weight.shape[2:]).to(weight.dtype)
    parts = weight.reshape(groups, -1, groups, weight.shape[1] // groups, *weight.shape[2:])
    own = torch.arange(groups)
    return parts[own, :, own].reshape(weight.shape[0], -1, *weight.shape[2:])


GROUPED = AlternativeKind(name="grouped", choices={"grouped_4": 4}, write=_write)
