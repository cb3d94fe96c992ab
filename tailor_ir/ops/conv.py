"""Convolutions."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.dims import Dim
from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Attribute, Node, Tensors
from tailor_ir.ops.registry import Dims, Function, NodeShapes, Operator, Propagation, filled, order_of_positions

LAYERS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED_LAYERS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
TRANSPOSED_FUNCTIONS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
PADDINGS: dict[int, Callable[..., nn.Module]] = {1: nn.ConstantPad1d, 2: nn.ConstantPad2d, 3: nn.ConstantPad3d}


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
    """Padding at the beginning of each axis, then at the end of each. ImportFailed: implicit padding."""
    if node.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise ImportFailed(f"{node.place}: auto_pad={node.attribute('auto_pad')}; allowed: explicit pads")
    return node.ints("pads", (0,) * (2 * rank))


def _rank(node: Node, dims: Dims) -> int:
    """Number of spatial axes."""
    if len(dims) - 2 not in LAYERS:
        raise ImportFailed(f"{node.place}: {len(dims) - 2}-D; allowed: 1-D, 2-D and 3-D")
    return len(dims) - 2


def join_channels(node: Node, p: Propagation, groups: int, x: Dims, weight: Dims) -> None:
    """Join the input channels of a kernel with those of x.

    Several groups are kept or removed as a whole, each with a fixed number of channels.
    """
    if groups == 1:
        p.unify(x[1], weight[1], node)
        return
    count, reason = p.pool.free(groups), f"{node.place}: its {groups} groups stay whole"
    for dim in (x[1], weight[0]):
        p.pool.unify(dim, p.pool.product((count, p.pool.fixed(dim.size // groups))), reason)
    p.freeze(weight[1:2], node, f"channels inside each of {groups} groups")


def _axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, weight = p.of(node.inputs[0]), p.of(node.inputs[1])
    _rank(node, x)
    groups = node.int("group", 1)
    join_channels(node, p, groups, x, weight)
    kernel = tuple(d.size for d in weight[2:])
    if _can_shrink(node, p, weight, kernel):
        centre = p.pool.kernel(kernel[0])
        for dim in weight[2:]:
            p.unify(dim, centre, node)
    else:
        p.freeze(weight[2:], node, "kernel")
    if len(node.inputs) > 2 and node.inputs[2]:
        p.unify(p.of(node.inputs[2])[0], weight[0], node)
    return ((x[0], weight[0], *window_dims(node, p, x[2:], kernel)),)


def _can_shrink(node: Node, p: Propagation, weight: Dims, kernel: tuple[int, ...]) -> bool:
    """Whether the kernel's centre alone, with less padding, yields the same output positions."""
    size, rank = kernel[0], len(kernel)
    known = node.inputs[1] in p.graph.parameters or all(p.pool.is_kernel(dim) for dim in weight[2:])
    if size % 2 == 0 or size < 5 or set(kernel) != {size} or not known:
        return False
    dilations, pads = node.ints("dilations", (1,) * rank), explicit_pads(node, rank)
    return all(pads[i] >= dilations[i % rank] * (size - 3) // 2 for i in range(2 * rank))


def _settings(node: Node, shapes: NodeShapes) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    rank = len(shapes.inputs[0]) - 2
    dilations, pads = node.ints("dilations", (1,) * rank), explicit_pads(node, rank)
    cropped = [full - size for full, size in zip(shapes.full_inputs[1][2:], shapes.inputs[1][2:], strict=True)]
    return (
        node.ints("strides", (1,) * rank),
        tuple(pad - dilations[i % rank] * cropped[i % rank] // 2 for i, pad in enumerate(pads)),
        dilations,
        groups_of(shapes),
    )


def groups_of(shapes: NodeShapes) -> int:
    """Number of groups; it follows the channels of grouped and depthwise convolutions."""
    return shapes.inputs[0][1] // shapes.inputs[1][1]


def _attributes(node: Node, shapes: NodeShapes) -> dict[str, Attribute]:
    kernel = shapes.inputs[1][2:]
    if kernel == shapes.full_inputs[1][2:]:
        return {"group": groups_of(shapes)}
    return {"group": groups_of(shapes), "kernel_shape": kernel, "pads": _settings(node, shapes)[1]}


def torch_pads(pads: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding that is equal at both ends for torch's layers, and other padding for F.pad; one of them does nothing."""
    rank = len(pads) // 2
    if pads[:rank] == pads[rank:]:
        return tuple(pads[:rank]), ()
    return (0,) * rank, outer_pads(pads)


def outer_pads(pads: Sequence[int]) -> tuple[int, ...]:
    """Padding in the order of F.pad, which lists the last axis first, its begin before its end."""
    rank = len(pads) // 2
    return tuple(v for i in reversed(range(rank)) for v in (pads[i], pads[i + rank]))


def _convolved(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    strides: tuple[int, ...],
    pads: tuple[tuple[int, ...], tuple[int, ...]],
    dilations: tuple[int, ...],
) -> torch.Tensor:
    """Convolution of x (B, C, *S) with a weight (O, C / groups, *K); pads: see `torch_pads`."""
    inner, outer = pads
    if outer:
        x = F.pad(x, outer)
    groups = x.shape[1] // weight.shape[1]  # equals the number of samples if each has its own weight
    return FUNCTIONS[len(strides)](x, weight, bias, strides, inner, dilations, groups)


def _lower(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    strides, pads, dilations, _ = _settings(node, shapes)
    return Function(_convolved, strides=strides, pads=torch_pads(pads), dilations=dilations)


def _layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    strides, pads, dilations, groups = _settings(node, shapes)
    (inner, outer), weight, rank = torch_pads(pads), parameters[0], len(strides)
    layer = LAYERS[rank](
        shapes.inputs[0][1],
        weight.shape[0],
        tuple(weight.shape[2:]),  # type: ignore[arg-type]
        stride=strides,  # type: ignore[arg-type]
        padding=inner,  # type: ignore[arg-type]
        dilation=dilations,  # type: ignore[arg-type]
        groups=groups,
        bias=len(parameters) > 1,
    )
    filled(layer, parameters)
    return nn.Sequential(PADDINGS[rank](outer, 0.0), layer) if outer else layer


def _transposed_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, weight = p.of(node.inputs[0]), p.of(node.inputs[1])
    rank = _rank(node, x)
    groups = node.int("group", 1)
    channels = weight[1]
    if groups == 1:
        p.unify(x[1], weight[0], node)
    else:
        count, inner = p.pool.free(groups), p.pool.fixed(x[1].size // groups)
        p.freeze(weight[1:2], node, f"channels inside each of {groups} groups")
        for dim in (x[1], weight[0]):
            p.unify(dim, p.pool.product((count, inner)), node)
        channels = p.pool.product((count, p.pool.fixed(weight[1].size)))
    p.freeze(weight[2:], node, "kernel")
    if len(node.inputs) > 2 and node.inputs[2]:
        p.unify(p.of(node.inputs[2])[0], channels, node)
    strides, pads, dilations, extra = _transposed_settings(node, rank)
    spatial = []
    for i, dim in enumerate(x[2:]):
        beyond = extra[i] + dilations[i] * (weight[2 + i].size - 1) + 1 - pads[i] - pads[i + rank] - strides[i]
        spatial.append(p.pool.window(p.pool.scaled(dim, strides[i], 1), 1, beyond))
    return ((x[0], channels, *spatial),)


def _transposed_settings(node: Node, rank: int) -> tuple[tuple[int, ...], ...]:
    """Strides, explicit pads, dilations, output padding."""
    return (
        node.ints("strides", (1,) * rank),
        explicit_pads(node, rank),
        node.ints("dilations", (1,) * rank),
        node.ints("output_padding", (0,) * rank),
    )


def _transposed(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    pads: tuple[tuple[int, ...], tuple[int, ...]],
    settings: tuple[tuple[int, ...], ...],
    groups: int,
) -> torch.Tensor:
    """Transposed convolution of x (B, C, *S) with a weight (C, O / groups, *K); see `_transposed_pads` and `_settings`."""
    (strides, dilations, extra), (inner, crop), rank = settings, pads, x.dim() - 2
    function = TRANSPOSED_FUNCTIONS[rank]
    if not crop:
        return function(x, weight, bias, strides, inner, extra, groups, dilations)
    y = F.pad(function(x, weight, None, strides, inner, inner, groups, dilations), crop)
    return y if bias is None else y + bias.reshape(-1, *(1,) * rank)  # padded positions, too


class CroppedTransposedConvolution(nn.Module):
    """An ordinary transposed convolution without padding; its result is cropped or padded before the bias is added."""

    def __init__(self, layer: nn.modules.conv._ConvTransposeNd, settings: dict[str, Any]) -> None:
        super().__init__()
        self.layer, self.settings = layer, settings

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _transposed(x, self.layer.weight, self.layer.bias, **self.settings)


def _transposed_pads(
    pads: tuple[int, ...], extra: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding for torch, and the remaining crop (or padding) of the result, in F.pad's order."""
    rank = len(extra)
    small = all(more < max(stride, dilation) for more, stride, dilation in zip(extra, strides, dilations, strict=True))
    if pads[:rank] == pads[rank:] and small:  # torch refuses other padding
        return pads[:rank], ()
    return (0,) * rank, outer_pads(
        (*(-pad for pad in pads[:rank]), *(more - pad for more, pad in zip(extra, pads[rank:], strict=True)))
    )


def _transposed_groups(shapes: NodeShapes) -> int:
    return shapes.outputs[0][1] // shapes.inputs[1][1]


def _transposed_call(node: Node, shapes: NodeShapes) -> dict[str, Any]:
    """The keyword arguments of `_transposed`."""
    strides, pads, dilations, extra = _transposed_settings(node, len(shapes.inputs[0]) - 2)
    return {
        "pads": _transposed_pads(pads, extra, strides, dilations),
        "settings": (strides, dilations, extra),
        "groups": _transposed_groups(shapes),
    }


def _transposed_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    call = _transposed_call(node, shapes)
    (inner, crop), (strides, dilations, extra) = call["pads"], call["settings"]
    weight, rank = parameters[0], len(strides)
    layer = TRANSPOSED_LAYERS[rank](
        weight.shape[0],
        shapes.outputs[0][1],
        tuple(weight.shape[2:]),  # type: ignore[arg-type]
        stride=strides,
        padding=inner,
        output_padding=(0,) * rank if crop else extra,  # type: ignore[arg-type]
        groups=call["groups"],
        bias=len(parameters) > 1,
        dilation=dilations,
    )
    filled(layer, parameters)
    return CroppedTransposedConvolution(layer, call) if crop else layer


OPERATORS = (
    Operator(names=("Conv",), axes=_axes, order=order_of_positions, lower=_lower, layer=_layer, attributes=_attributes),
    Operator(
        names=("ConvTranspose",),
        axes=_transposed_axes,
        order=order_of_positions,
        lower=lambda node, shapes, _: Function(_transposed, **_transposed_call(node, shapes)),
        layer=_transposed_layer,
        attributes=lambda node, shapes: {"group": _transposed_groups(shapes)},
    ),
)
