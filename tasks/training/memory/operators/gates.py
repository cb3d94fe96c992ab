"""ReLU and its like, whose backward pass asks only whether a gradient passes."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators.record import Given, Gradients, RuleNeeds, make_rule

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
