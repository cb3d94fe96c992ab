"""Views, and operators that only put values in another order."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators.record import Given, Gradients, make_rule, needs_nothing

aten: Any = torch.ops.aten


def _reshaped(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    return [gradient.reshape(given.shapes[0])]


def _transposed(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    return [gradient.transpose(*node.args[1:3])]


def _permuted(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    order = [d % gradient.dim() for d in node.args[1]]
    return [gradient.permute([order.index(d) for d in range(len(order))])]


def _selected(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    return [aten.select_backward(gradient, given.shapes[0], *node.args[1:3])]


def _sliced(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    shape = given.shapes[0]
    dim, start, end, step = (node.argument(place, default) for place, default in ((1, 0), (2, 0), (3, None), (4, 1)))
    return [aten.slice_backward(gradient, shape, dim, start or 0, shape[dim] if end is None else end, step)]


def _expanded(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    return [gradient.sum_to_size(given.shapes[0])]


def _unbound(node: StepNode, gradient: Sequence[Tensor | None], given: Given) -> Gradients:
    dim = node.argument(1, 0)
    part = next(each for each in gradient if each is not None)
    return [torch.stack([torch.zeros_like(part) if each is None else each for each in gradient], dim)]


def _split(node: StepNode, gradient: Sequence[Tensor | None], given: Given) -> Gradients:
    """Parts that nobody read have a gradient of zeros."""
    dim = node.argument(2, node.kwargs.get("dim", 0))
    parts = node.run([torch.empty(given.shapes[0], device="meta")])
    return [
        torch.cat(
            [torch.zeros(part.shape) if each is None else each for each, part in zip(gradient, parts, strict=True)], dim
        )
    ]


RESHAPE = make_rule(needs_nothing, _reshaped, alias=True, cheap=True)
TRANSPOSE = make_rule(needs_nothing, _transposed, alias=True, cheap=True)
PERMUTE = make_rule(needs_nothing, _permuted, alias=True, cheap=True)
SELECT = make_rule(needs_nothing, _selected, cheap=True)
SLICE = make_rule(needs_nothing, _sliced, cheap=True)
UNBIND = make_rule(needs_nothing, _unbound, cheap=True)
SPLIT = make_rule(needs_nothing, _split, cheap=True)
EXPAND = make_rule(needs_nothing, _expanded, alias=True, cheap=True)
