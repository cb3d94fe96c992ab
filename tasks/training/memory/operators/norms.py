"""BatchNorm and LayerNorm."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators.general import needs_all_inputs
from tasks.training.memory.operators.record import Given, Gradients, RuleNeeds, make_rule

aten: Any = torch.ops.aten
IN_PLACE_BYTES = 2**19
"""Of channels of a BatchNorm that are computed at once where its gradient overwrites another tensor."""
NO_EPSILON = 1e-30
"""Which adds nothing to 1."""


def _spread(node: StepNode, tensors: Sequence[Any], count: int) -> list[Any]:
    """The first `count` arguments, which are tensors or None."""
    return list(node.arguments(tensors)[0][:count])


def _back(node: StepNode, gradients: Sequence[Any], count: int) -> Gradients:
    """Gradients of the first `count` arguments as those of `node.inputs`."""
    present = [grad for grad, arg in zip(gradients, node.args[:count], strict=True) if arg is not None]
    return [*present, *[None] * (len(node.inputs) - len(present))]


def _batch_norm_forward(node: StepNode, tensors: Sequence[Any]) -> tuple[Tensor, tuple[Tensor, ...]]:
    x, weight, bias, mean, variance = _spread(node, tensors, 5)
    training, momentum, epsilon = node.args[5:8]
    y, *aside = torch.native_batch_norm(x, weight, bias, mean, variance, training, momentum, epsilon)
    return y, tuple(aside) if training else ()


def _known_statistics(node: StepNode, tensors: Sequence[Any], aside: tuple[Tensor, ...]) -> list[Any]:
    """Arguments of a BatchNorm that normalises as it did before, to the last bit.

    The kernel multiplies by weight / deviation. A variance that is computed back from the deviation would round otherwise, and
    a value at the bend of a ReLU would come to lie on its other side; so the product is the weight, over a deviation of 1.
    """
    x, weight, bias, mean, variance = _spread(node, tensors, 5)
    if not aside:
        return [x, weight, bias, mean, variance, False, 0.0, node.args[7]]
    scale = aside[1] if weight is None else aside[1] * weight
    return [x, scale, bias, aside[0], torch.ones_like(scale), False, 0.0, NO_EPSILON]


def _batch_norm_again(node: StepNode, tensors: Sequence[Any], aside: tuple[Tensor, ...]) -> Tensor:
    return torch.native_batch_norm(*_known_statistics(node, tensors, aside))[0]


def _batch_norm_in_place(
    node: StepNode, tensors: Sequence[Any], aside: tuple[Tensor, ...] | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The kernel takes the statistics first; then no element needs another one."""
    x = tensors[0]
    training, momentum, epsilon = node.args[5:8]
    first = aside is None
    arguments = [*_spread(node, tensors, 5), training, momentum, epsilon]
    arguments = arguments if aside is None else _known_statistics(node, tensors, aside)
    saved = [x.new_empty(x.shape[1] if training and first else 0) for _ in range(2)]
    aten.native_batch_norm.out(*arguments, out=x, save_mean=saved[0], save_invstd=saved[1])
    return x, tuple(saved) if training and first else aside or ()


def _batch_norm_needs(node: StepNode) -> RuleNeeds:
    """The input, but for fixed statistics under a fixed scale; and all of the small ones."""
    fixed = not node.args[5] and not any(node.wants[1:])
    return RuleNeeds(frozenset(range(int(fixed), len(node.inputs))))


def _batch_norm_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    x, weight, _, mean, variance = _spread(node, given.tensors, 5)
    training, epsilon = node.args[5], node.args[7]
    if x is None:
        factor = (variance + epsilon).rsqrt()
        factor = factor if weight is None else factor * weight
        return [gradient * factor.view(-1, *[1] * (gradient.dim() - 2)), *[None] * (len(node.inputs) - 1)]
    saved = given.aside if training else (mean, (variance + epsilon).rsqrt())
    wants = iter(node.wants)
    mask = [False if arg is None else next(wants) for arg in node.args[:3]]
    found = aten.native_batch_norm_backward(
        gradient, x, weight, mean, variance, saved[0], saved[1], training, epsilon, mask
    )
    return _back(node, found, 3)


def batch_norm_parts(channels: int, size_bytes: int) -> list[slice]:
    """Channels whose gradients are computed at once where they overwrite another tensor. size_bytes: of all channels."""
    size = max(1, channels * IN_PLACE_BYTES // size_bytes)
    return [slice(start, min(start + size, channels)) for start in range(0, channels, size)]


def _batch_norm_backward_in_place(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    return _batch_norm_backward_into(gradient, node, gradient, given)


def _batch_norm_backward_into_input(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    return _batch_norm_backward_into(given.tensors[0], node, gradient, given)


def _batch_norm_backward_into(into: Tensor, node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    """A few channels at a time: no channel needs another one."""
    others: list[list[Tensor]] = [[] for _ in node.inputs]
    for part in batch_norm_parts(gradient.shape[1], gradient.nbytes):
        x, *small = given.tensors
        portion = Given(
            [None if x is None else x[:, part].contiguous(), *(None if t is None else t[part] for t in small)],
            given.shapes,
            tuple(each[part] for each in given.aside),
        )
        found = _batch_norm_backward(node, gradient[:, part].contiguous(), portion)
        into[:, part] = found[0]
        for place in range(1, len(found)):
            if node.wants[place]:
                others[place].append(found[place])
    return [into, *(torch.cat(parts) if parts else None for parts in others[1:])]


def _layer_norm_forward(node: StepNode, tensors: Sequence[Any]) -> tuple[Tensor, tuple[Tensor, ...]]:
    (x, shape, *affine), _ = node.arguments(tensors)
    weight, bias = (*affine, None, None)[:2]
    y, *aside = torch.native_layer_norm(x, shape, weight, bias, node.argument(4, 1e-5))
    return y, tuple(aside)


def _layer_norm_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    (x, shape, *affine), _ = node.arguments(given.tensors)
    weight, bias = (*affine, None, None)[:2]
    wants = iter(node.wants)
    mask = [next(wants), weight is not None and next(wants), bias is not None and next(wants)]
    found = aten.native_layer_norm_backward(gradient, x, shape, *given.aside, weight, bias, mask)
    return [grad for grad, arg in zip(found, (x, weight, bias), strict=True) if arg is not None]


BATCH_NORM = make_rule(
    _batch_norm_needs,
    _batch_norm_backward,
    forward=_batch_norm_forward,
    again=_batch_norm_again,
    cheap=True,
    in_place=_batch_norm_in_place,
    backward_in_place=_batch_norm_backward_in_place,
    backward_into_input=_batch_norm_backward_into_input,
)
LAYER_NORM = make_rule(needs_all_inputs, _layer_norm_backward, forward=_layer_norm_forward, cheap=True)
