"""Convolutions and linear layers."""

from typing import Any

import torch
from torch import Tensor

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators.record import Given, Gradients, RuleNeeds, make_rule

aten: Any = torch.ops.aten


def _weighted_needs(node: StepNode) -> RuleNeeds:
    """The input where the weight is trained; the weight where the input wants a gradient."""
    return RuleNeeds(frozenset([0] * node.wants[1] + [1] * node.wants[0]))


def _stand_in(like: Tensor, shape: torch.Size) -> Tensor:
    """A tensor of a shape without memory, for kernels that ask for its shape alone."""
    return like.new_empty(1).expand(shape)


def _convolution_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    x_BIHW, weight_OIHW = given.tensors[0], given.tensors[1]
    pairs = [list(node.argument(place, default)) for place, default in ((3, [1, 1]), (4, [0, 0]), (5, [1, 1]))]
    bias = len(node.inputs) > 2
    found = aten.convolution_backward(
        gradient,
        _stand_in(gradient, given.shapes[0]) if x_BIHW is None else x_BIHW,
        _stand_in(gradient, given.shapes[1]) if weight_OIHW is None else weight_OIHW,
        [given.shapes[1][0]] if bias else None,
        *(pair * 2 if len(pair) == 1 else pair for pair in pairs),
        False,
        [0, 0],
        node.argument(6, 1),
        [node.wants[0], node.wants[1], bias and node.wants[2]],
    )
    return list(found)[: len(node.inputs)]


def _convolution_backward_onto(node: StepNode, gradient: Tensor, given: Given, onto: Tensor) -> Gradients:
    x, weight = given.tensors[0], given.tensors[1]
    sums: Gradients = [None] * len(node.inputs)
    for number in range(len(gradient)):
        part = slice(number, number + 1)
        shapes = [torch.Size([1, *given.shapes[0][1:]]), *given.shapes[1:]]
        sample = Given([None if x is None else x[part], weight, *given.tensors[2:]], shapes)
        own, *others = _convolution_backward(node, gradient[part], sample)
        onto[part].add_(own)
        for place, other in enumerate(others, 1):
            if other is not None:
                sums[place] = other if sums[place] is None else sums[place].add_(other)
    return sums


def _linear_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    x_BI, weight_OI = given.tensors[0], given.tensors[1]
    flat_BO = gradient.reshape(-1, gradient.shape[-1])
    found: Gradients = [None] * len(node.inputs)
    if node.wants[0]:
        found[0] = (flat_BO @ weight_OI).view(given.shapes[0])
    if node.wants[1]:
        found[1] = flat_BO.T @ x_BI.reshape(-1, x_BI.shape[-1])
    if len(found) > 2 and node.wants[2]:
        found[2] = flat_BO.sum(0)
    return found


CONVOLUTION = make_rule(_weighted_needs, _convolution_backward, backward_onto=_convolution_backward_onto)
LINEAR = make_rule(_weighted_needs, _linear_backward)
