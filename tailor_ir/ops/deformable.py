"""Deformable convolutions: each kernel entry reads at a position shifted by an offset.

Legend: B samples, C channels, H and W height and width of the map, h and w of the result, G groups of offsets, K entries of
a kernel, O channels of the result.
"""

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.dims import Dim
from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.conv import explicit_pads, groups_of, join_channels, window_dims
from tailor_ir.ops.registry import Dims, Function, NodeShapes, Operator, Propagation

DEFORMABLE = "DeformConv"
PER_ENTRY = (2, 4)  # positions of operands with a number per entry of the kernel


def places(
    kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], result: Sequence[int]
) -> np.ndarray:
    """Row and column that each kernel entry reads for each position of the result, before offsets: (K, h, w, 2)."""
    along = [
        np.arange(size)[None, :] * stride - pad + np.arange(length)[:, None] * dilation
        for length, stride, pad, dilation, size in zip(kernel, strides, pads, dilations, result, strict=False)
    ]  # (entries, positions) of each axis
    rows = np.broadcast_to(along[0][:, None, :, None], (kernel[0], kernel[1], result[0], result[1]))
    columns = np.broadcast_to(along[1][None, :, None, :], rows.shape)
    return np.stack((rows, columns), -1).reshape(prod(kernel), *result, 2).astype(np.float32)


def _deformed(
    x: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    *others: torch.Tensor,
    window: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    groups: int,
    given: tuple[bool, bool],
) -> torch.Tensor:
    """x (B, C, H, W), weight (O, C / groups, *kernel), offsets (B, G · K · 2, h, w), optional bias (O), mask (B, G · K, h, w).

    Each kernel entry interpolates x, zero outside, and is multiplied by the mask. window: as in `settings`. given: whether a
    bias and a mask are among `others`. Source: DCNv2 (CVPR 2019).
    """
    has_bias, has_mask = given
    (samples, channels, *size), kernel, result = x.shape, weight.shape[2:], offset.shape[2:]
    entries = kernel.numel()
    sets = offset.shape[1] // (2 * entries)
    base = torch.from_numpy(places(kernel, *window, result)).to(offset)
    moved = offset.reshape(samples, sets, entries, 2, *result).permute(0, 1, 2, 4, 5, 3) + base
    scale = torch.tensor([2 / side for side in size]).to(offset)
    grid = (moved * scale + scale / 2 - 1).flip(-1).reshape(samples * sets, entries * result[0], result[1], 2)
    read = F.grid_sample(x.reshape(samples * sets, -1, *size), grid, "bilinear", "zeros", align_corners=False)
    if has_mask:
        read = read * others[-1].reshape(samples * sets, 1, entries * result[0], result[1])
    columns = read.reshape(samples, channels * entries, *result)
    return F.conv2d(columns, weight.reshape(len(weight), -1, 1, 1), others[0] if has_bias else None, groups=groups)


def settings(node: Node) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, pads and dilations."""
    return node.ints("strides", (1, 1)), explicit_pads(node, 2), node.ints("dilations", (1, 1))


def _optional(node: Node, position: int) -> str:
    return node.inputs[position] if len(node.inputs) > position else ""


def _axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, weight, offset = (p.of(name) for name in node.inputs[:3])
    if len(x) != 4:
        raise ImportFailed(f"{node.place}: {len(x) - 2}-D; allowed: images")
    groups = node.int("group", 1)
    join_channels(node, p, groups, x, weight)
    if node.int("offset_group", 1) > 1:
        p.freeze(x[1:2], node, "each group of channels has offsets of its own")
    p.freeze((*weight[2:], offset[1]), node, "kernel, and its offsets")
    if _optional(node, 3):
        p.unify(p.of(node.inputs[3])[0], weight[0], node)
    spatial = window_dims(node, p, x[2:], tuple(dim.size for dim in weight[2:]))
    if _optional(node, 4):
        mask = p.of(node.inputs[4])
        p.freeze(mask[1:2], node, "one for each entry of the kernel")
        _same_positions(node, p, mask, x, spatial)
    _same_positions(node, p, offset, x, spatial)
    return ((x[0], weight[0], *spatial),)


def _same_positions(node: Node, p: Propagation, own: Dims, x: Dims, spatial: Sequence[Dim]) -> None:
    """Join samples and positions of offsets or masks with those of the result."""
    for dim, other in zip((own[0], *own[2:]), (x[0], *spatial), strict=True):
        p.unify(dim, other, node)


def _lower(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    given = (bool(_optional(node, 3)), bool(_optional(node, 4)))
    return Function(_deformed, window=settings(node), groups=groups_of(shapes), given=given)


def _order(node: Node, p: Propagation) -> Iterable[Dim]:
    """Positions of all operands, and the axis of kernel entries of offsets and masks."""
    return (dim for at, name in enumerate(node.inputs) if name for dim in p.of(name)[1 if at in PER_ENTRY else 2 :])


OPERATORS = (
    Operator(
        names=(DEFORMABLE,),
        axes=_axes,
        order=_order,
        lower=_lower,
        attributes=lambda node, shapes: {"group": groups_of(shapes)},
    ),
)
