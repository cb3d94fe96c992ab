"""Pooling: maxima by the place in their window, and means."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.training.memory.codings import CodedWindows
from tasks.training.memory.network import StepNode
from tasks.training.memory.operators.record import Given, Gradients, make_rule, needs_nothing

aten: Any = torch.ops.aten


def _windows(node: StepNode, shape: torch.Size) -> CodedWindows:
    def pair(place: int, default: Any) -> tuple[int, int]:
        found = list(node.argument(place, None) or default)
        return (found[0], found[-1])

    kernel = pair(1, None)
    return CodedWindows(shape[-1], kernel, pair(2, kernel), pair(3, (0, 0)), pair(4, (1, 1)))


def _pool_forward(node: StepNode, tensors: Sequence[Any]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Sample by sample, because indices of 64 bits for a whole batch are larger than its values."""
    (x, *rest), _ = node.arguments(tensors)
    windows = _windows(node, x.shape)
    y = torch.empty(node.shape)
    offsets = torch.empty(node.shape, dtype=torch.uint8)
    for number in range(len(x)):
        part = slice(number, number + 1)
        y[part], indices = aten.max_pool2d_with_indices(x[part], *rest)
        offsets[part] = windows.offsets(indices)
    return y, (offsets,)


def _pool_again(node: StepNode, tensors: Sequence[Any], aside: tuple[Tensor, ...]) -> Tensor:
    return _pool_forward(node, tensors)[0]


def _pool_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    shape = given.shapes[0]
    windows = _windows(node, shape)
    found = torch.zeros(shape)
    for sample_CHW, gradient_CHW, offsets_CHW in zip(found, gradient, given.aside[0], strict=True):
        for channel in range(len(sample_CHW)):
            indices_HW = windows.indices(offsets_CHW[None, channel, None])
            sample_CHW[channel].view(-1).scatter_add_(0, indices_HW.view(-1), gradient_CHW[channel].reshape(-1))
    return [found]


def _mean_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    shape = given.shapes[0]
    if node.operator == "mean":
        dims = [d % len(shape) for d in (node.argument(1) or range(len(shape)))]
        gradient = gradient.reshape([1 if d in dims else size for d, size in enumerate(shape)])
    share = gradient.numel() / shape.numel()
    return [(gradient * share).expand(shape).contiguous()]


MAX_POOL = make_rule(needs_nothing, _pool_backward, forward=_pool_forward, again=_pool_again, aside_again=True)
MEAN = make_rule(needs_nothing, _mean_backward)
