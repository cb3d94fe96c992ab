"""Sums, products and dropout."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators.record import Given, Gradients, RuleNeeds, make_rule, needs_nothing

aten: Any = torch.ops.aten


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
