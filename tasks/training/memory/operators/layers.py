"""Convolutions and linear layers.

BatchNorm and LayerNorm.

Pooling: maxima by the place in their window, and means.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators.record import (
    Given,
    Gradients,
    RuleNeeds,
    make_rule,
    needs_all_inputs,
    needs_nothing,
)
from tasks.training.memory.storage import CodedWindows

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
