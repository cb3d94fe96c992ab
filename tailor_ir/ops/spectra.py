"""Fourier transforms as products with stored matrices.

Legend: N points, K frequencies, c 1 for real and 2 for complex numbers (real and imaginary part).
"""

import numpy as np
import torch
from torch import nn

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation

DFT = "DFT"


def transform_matrix(before: tuple[int, int], after: tuple[int, int], *, inverse: bool) -> np.ndarray:
    """Matrix (points · c, points' · c') that transforms a row of numbers; `before`, `after`: points and c of each side.

    An inverse divides by the number of points; if it is one-sided (c' = 1), all but the first and the middle frequency count
    twice.
    """
    (rows, parts), (columns, results) = before, after
    points = columns if inverse else rows
    angles = np.outer(np.arange(rows), np.arange(columns)) % points * (2 * np.pi / points)
    cos, sin = np.cos(angles), np.sin(angles) * (-1 if inverse else 1)
    entries = np.stack(
        (np.stack((cos, -sin), -1), np.stack((sin, cos), -1)), 1
    )  # rows, part, columns, part of the result
    if inverse:
        entries /= points
        if results == 1:
            twice = np.full(rows, 2.0)
            twice[0] = 1.0
            if points % 2 == 0:
                twice[points // 2] = 1.0
            entries *= twice[:, None, None, None]
    return entries[:, :parts, :, :results].reshape(rows * parts, columns * results).astype(np.float32)


class FourierTransform(nn.Module):
    """Transform one axis of x (…, N, …, c) to (…, K, …, c')."""

    matrix: torch.Tensor

    def __init__(self, axis: int, before: tuple[int, int], after: tuple[int, int], inverse: bool) -> None:
        super().__init__()
        self.axis, self.after = axis, after
        matrix = torch.from_numpy(transform_matrix(before, after, inverse=inverse))
        self.register_buffer("matrix", matrix, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.movedim(self.axis, -2).flatten(-2)
        return (rows @ self.matrix).unflatten(-1, self.after).movedim(-2, self.axis)


def ends(node: Node, shapes: NodeShapes) -> tuple[tuple[int, int], tuple[int, int]]:
    """(points, c) before and after the transform."""
    axis = node.int("axis", 1)
    before, after = shapes.inputs[0], shapes.outputs[0]
    return (before[axis], before[-1]), (after[axis], after[-1])


def _axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, sizes = p.of(node.inputs[0]), p.output_sizes(node)
    axis, inverse, onesided = node.int("axis", 1), bool(node.int("inverse", 0)), bool(node.int("onesided", 0))
    dim = x[axis]
    if p.pool.depends_on_input(dim) and not p.pool.has_positions(dim):
        raise ImportFailed(f"{node.place}: transforms the samples of a batch; allowed: other axes")
    p.freeze(x[-1:], node, "real and imaginary part")
    result, form = p.pool.fixed(sizes[axis]), dim.root.form
    if not p.pool.has_positions(dim):
        p.freeze((dim,), node, "frequencies of the axis")
    elif not onesided:
        result = dim
    elif not inverse:
        result = p.pool.window(dim, 2, 1)  # half of the points, plus one
    elif form.kind == "window" and form.attributes[:2] == (2, 1) and form.parts[0].size == sizes[axis]:
        result = form.parts[0]
    else:
        p.freeze((dim,), node, "frequencies of the axis")
    return ((*x[:axis], result, *x[axis + 1 : -1], p.pool.fixed(sizes[-1])),)


def _lower(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return FourierTransform(node.int("axis", 1), *ends(node, shapes), bool(node.int("inverse", 0)))


OPERATORS = (Operator(names=(DFT,), axes=_axes, lower=_lower, operands=1),)
