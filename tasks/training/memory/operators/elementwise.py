"""Rules of elementwise operators and views: sums, products, dropout, ReLU and its like, and changes of order.

The backward pass of ReLU and its like asks only whether a gradient passes. Views, like other changes of order, only put
values elsewhere.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators.record import Given, Gradients, RuleNeeds, make_rule, needs_nothing

aten: Any = torch.ops.aten


def _gate(node: StepNode) -> RuleNeeds:
    bounds = (0.0, math.inf)
    if node.operator == "relu6":
        bounds = (0.0, 6.0)
    elif node.operator == "hardtanh":
        bounds = (float(node.argument(1, -1.0)), float(node.argument(2, 1.0)))
    return RuleNeeds(gate=bounds)


def pass_between(value: Tensor, bounds: tuple[float, float]) -> Callable[[Tensor, Tensor | None], Tensor]:
    """What a gate does to a gradient, by the output itself; into another tensor, or into a new one."""

    def gated(gradient: Tensor, into: Tensor | None) -> Tensor:
        into = torch.empty_like(gradient) if into is None else into
        if bounds == (0.0, math.inf):
            return aten.threshold_backward.grad_input(gradient, value, 0, grad_input=into)
        return aten.hardtanh_backward.grad_input(gradient, value, *bounds, grad_input=into)

    return gated


def _gate_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    assert given.gate is not None
    return [given.gate(gradient, None)]


def _gate_backward_in_place(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    assert given.gate is not None
    return [given.gate(gradient, gradient)]


def _gate_in_place(
    node: StepNode, tensors: Sequence[Any], aside: tuple[Tensor, ...] | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    bounds = _gate(node).gate
    assert bounds is not None
    return (aten.relu_(tensors[0]) if bounds[1] == math.inf else aten.hardtanh_(tensors[0], *bounds)), ()


GATE = make_rule(_gate, _gate_backward, cheap=True, in_place=_gate_in_place, backward_in_place=_gate_backward_in_place)


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


def _add_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    factor = node.kwargs.get("alpha", 1)
    signs = (1, factor if node.operator == "add" else -factor)
    return [
        (gradient if sign == 1 else gradient * sign).sum_to_size(shape) if want else None
        for sign, shape, want in zip(signs, given.shapes, node.wants, strict=False)
    ]


def _add_in_place(
    node: StepNode, tensors: Sequence[Any], aside: tuple[Tensor, ...] | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    factor = node.kwargs.get("alpha", 1)
    other = tensors[1] if len(tensors) > 1 else node.args[1]
    return tensors[0].add_(other, alpha=factor if node.operator == "add" else -factor), ()


def _mul_needs(node: StepNode) -> RuleNeeds:
    """Each factor where the other wants a gradient."""
    return RuleNeeds(frozenset(1 - place for place, want in enumerate(node.wants) if want and len(node.wants) == 2))


def _mul_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    if len(node.inputs) == 1:
        return [gradient * node.args[1]]
    others = given.tensors[::-1]
    return [
        (gradient * other).sum_to_size(shape) if want else None
        for other, shape, want in zip(others, given.shapes, node.wants, strict=True)
    ]


def _dropout_forward(node: StepNode, tensors: Sequence[Any]) -> tuple[Tensor, tuple[Tensor, ...]]:
    share, training = node.args[1:3]
    if not training or share == 0:
        return node.run(tensors), ()
    y, mask = aten.native_dropout(tensors[0], share, True)
    return y, (mask,)


def _dropout_again(node: StepNode, tensors: Sequence[Any], aside: tuple[Tensor, ...]) -> Tensor:
    return tensors[0] * aside[0] / (1 - node.args[1]) if aside else node.run(tensors)


def _dropout_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    return [gradient * given.aside[0] / (1 - node.args[1]) if given.aside else gradient]


ADD = make_rule(needs_nothing, _add_backward, alias=True, cheap=True, in_place=_add_in_place)
MUL = make_rule(_mul_needs, _mul_backward, cheap=True)
DROPOUT = make_rule(needs_nothing, _dropout_backward, forward=_dropout_forward, again=_dropout_again, cheap=True)
