"""Convolutions."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.dims import Dim
from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Attribute, Node, Tensors
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation

LAYERS = {1: nn.Conv1d, 2: nn.Conv2d}
FUNCTIONS = {1: F.conv1d, 2: F.conv2d}


def window_dims(
    node: Node, p: Propagation, dims: Sequence[Dim], kernel: tuple[int, ...], ceil: bool = False
) -> tuple[Dim, ...]:
    """Spatial dimensions after a sliding window."""
    rank = len(kernel)
    strides = node.ints("strides", (1,) * rank)
    dilations = node.ints("dilations", (1,) * rank)
    pads = explicit_pads(node, rank)
    offsets = [pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) for i in range(rank)]
    return tuple(p.pool.window(dim, s, o, ceil) for dim, s, o in zip(dims, strides, offsets, strict=True))


def explicit_pads(node: Node, rank: int) -> tuple[int, ...]:
    """Padding at the begin of each axis, then at the end of each. Implicit padding is refused."""
    if node.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise ImportFailed(
            f"operator '{node.op}' at '{node.name}': auto_pad={node.attribute('auto_pad')}; allowed: explicit pads"
        )
    return node.ints("pads", (0,) * (2 * rank))


def _axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, weight = p.of(node.inputs[0]), p.of(node.inputs[1])
    if len(x) - 2 not in LAYERS:
        raise ImportFailed(f"operator 'Conv' at '{node.name}': {len(x) - 2}-D; allowed: 1-D and 2-D")
    group = node.int("group", 1)
    depthwise = group == x[1].size == weight[0].size
    if group == 1:
        p.unify(x[1], weight[1], node)
    elif depthwise:
        p.unify(x[1], weight[0], node)
    else:
        p.freeze((x[1], weight[0], weight[1]), node, f"convolution in {group} groups")
    p.freeze(weight[2:], node, "kernel")
    if len(node.inputs) > 2 and node.inputs[2]:
        p.unify(p.of(node.inputs[2])[0], weight[0], node)
    kernel = tuple(d.size for d in weight[2:])
    return ((x[0], weight[0], *window_dims(node, p, x[2:], kernel)),)


def _settings(node: Node, shapes: NodeShapes) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    rank = len(shapes.inputs[0]) - 2
    return (
        node.ints("strides", (1,) * rank),
        explicit_pads(node, rank),
        node.ints("dilations", (1,) * rank),
        _groups(shapes),
    )


def _groups(shapes: NodeShapes) -> int:
    """Depthwise convolutions follow their channels."""
    return shapes.inputs[0][1] // shapes.inputs[1][1]


def _attributes(node: Node, shapes: NodeShapes) -> dict[str, Attribute]:
    return {"group": _groups(shapes)}


class Convolution(nn.Module):
    """Convolution of x (B, C, *S) with a weight (O, C / groups, *K) given with each call."""

    def __init__(
        self, strides: tuple[int, ...], pads: tuple[int, ...], dilations: tuple[int, ...], groups: int
    ) -> None:
        super().__init__()
        rank = len(strides)
        self.function = FUNCTIONS[rank]
        self.strides, self.dilations, self.groups = strides, dilations, groups
        self.symmetric = pads[:rank] == pads[rank:]
        self.pads = pads[:rank] if self.symmetric else (0,) * rank
        # F.pad lists the last axis first, its begin before its end
        self.outer = tuple(v for i in reversed(range(rank)) for v in (pads[i], pads[i + rank]))

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if not self.symmetric:
            x = F.pad(x, self.outer)
        return self.function(x, weight, bias, self.strides, self.pads, self.dilations, self.groups)


def _lower(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return Convolution(*_settings(node, shapes))


def _layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    strides, pads, dilations, groups = _settings(node, shapes)
    weight, rank = parameters[0], len(strides)
    symmetric = pads[:rank] == pads[rank:]
    layer = LAYERS[
        rank
    ](
        shapes.inputs[0][1],
        weight.shape[0],
        tuple(weight.shape[2:]),  # type: ignore[arg-type]
        stride=strides,  # type: ignore[arg-type]
        padding=pads[:rank] if symmetric else 0,  # type: ignore[arg-type]
        dilation=dilations,  # type: ignore[arg-type]
        groups=groups,
        bias=len(parameters) > 1,
    )
    layer.weight.data.copy_(weight)
    if layer.bias is not None:
        layer.bias.data.copy_(parameters[1])
    if symmetric:
        return layer
    outer = tuple(v for i in reversed(range(rank)) for v in (pads[i], pads[i + rank]))
    padding: nn.Module = nn.ConstantPad2d(outer, 0.0) if rank == 2 else nn.ConstantPad1d(outer, 0.0)  # type: ignore[arg-type]
    return nn.Sequential(padding, layer)


OPERATORS = (Operator(names=("Conv",), axes=_axes, lower=_lower, layer=_layer, attributes=_attributes),)
