"""Learned transforms of kernels, placed between a stored kernel and the convolutions that use its centre.

Legend: O output channels, I input channels of a group, K kernel size, k a smaller size, in one, two or three dimensions.
"""

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.dims import Dim
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, Function, NodeShapes, Operator, Propagation

KERNEL_TRANSFORM = "KernelTransform"
SIZES = "sizes"  # attribute: the result size of each matrix, descending


def _axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    """Dimensions of the result. The stored kernel and the matrices keep their sizes; the result's kernel size is elastic."""
    weight = p.of(node.inputs[0])
    for dim in (*weight[2:], *(dim for name in node.inputs[1:] for dim in p.of(name))):
        p.unify(dim, p.pool.fixed(dim.size), node)
    centre = p.pool.kernel(weight[2].size)
    return ((*weight[:2], *(centre for _ in weight[2:])),)


def shrunk(weight: torch.Tensor, *matrices: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """A kernel (O, I, *K) shrunk to one of its sizes: each step takes the centre and multiplies it by the step's matrix.

    sizes: result size of each step, descending; () leaves the kernel unchanged. The matrix of a step, (k^n, k^n) for n
    dimensions, maps positions of the centre to positions of the result. All channels share the matrix.
    Source: OFA (ICLR 2020) §3.3.
    """
    dimensions = range(2, weight.dim())
    for size, matrix in zip(sizes, matrices, strict=False):  # smaller kernels take more steps
        first = (weight.shape[-1] - size) // 2
        for dim in dimensions:
            weight = weight.narrow(dim, first, size)
        weight = F.linear(weight.flatten(2), matrix).unflatten(2, [size] * len(dimensions))
    return weight


def _lower(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    full, wanted, sizes = shapes.full_inputs[0][-1], shapes.outputs[0][-1], node.ints(SIZES)
    assert wanted in (full, *sizes), (node.name, wanted, sizes)
    return Function(shrunk, sizes=tuple(size for size in sizes if size >= wanted))


def _order(node: Node, p: Propagation) -> Iterable[Dim]:
    """Positions of the kernel, and the axes of the matrices that mix them."""
    return (*p.of(node.inputs[0])[2:], *(dim for name in node.inputs[1:] for dim in p.of(name)))


OPERATORS = (Operator(names=(KERNEL_TRANSFORM,), axes=_axes, order=_order, lower=_lower),)
