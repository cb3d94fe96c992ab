"""What each operator needs of the forward pass in the backward pass, and its gradient from that.

An operator without a rule of its own needs all its inputs, and computes its value again in the backward pass, under
autograd. Legend: B batch, C channels, H height, W width, I inputs, O outputs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.training_memory.codings import CodedWindows
from tasks.training_memory.network import StepNode

aten: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class RuleNeeds:
    """What the backward pass of an operator needs of the forward pass.

    inputs: places in `StepNode.inputs` whose values are needed. gate: a gradient passes where the output lies between
    these bounds.
    """

    inputs: frozenset[int] = frozenset()
    gate: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """What the backward pass of an operator gets.

    tensors: values of the needed inputs; others are None. shapes: of all inputs. aside: what the forward pass kept.
    gate: gives the gradient where it passes, written into the second argument, or into a new tensor.
    """

    tensors: Sequence[Any]
    shapes: Sequence[torch.Size]
    aside: tuple[Tensor, ...] = ()
    gate: Callable[[Tensor, Tensor | None], Tensor] | None = None


Gradients = list[Any]
IN_PLACE_PARTS = 16
"""Parts of a BatchNorm's channels, one after the other, where its gradient overwrites the one that it comes from."""
SMALLEST_IN_PLACE_BYTES = 2**22
"""Gradients of smaller values of BatchNorms get memory of their own: many small parts cost more time than the memory
is worth."""


@dataclass(frozen=True, slots=True)
class Rule:
    """forward: the value, and small tensors that are kept aside. again: the same value, from what was kept aside.

    backward: a gradient for each input that wants one. alias: inputs may get the output's gradient itself. cheap:
    computing it again costs no more than reading its inputs. in_place: the value, written over that of the first input.
    backward_in_place: as `backward`, the first input's gradient written over the output's.
    """

    needs: Callable[[StepNode], RuleNeeds]
    backward: Callable[[StepNode, Any, Given], Gradients]
    forward: Callable[[StepNode, Sequence[Any]], tuple[Any, tuple[Tensor, ...]]]
    again: Callable[[StepNode, Sequence[Any], tuple[Tensor, ...]], Any]
    alias: bool = False
    cheap: bool = False
    in_place: Callable[[StepNode, Sequence[Any]], Any] | None = None
    backward_in_place: Callable[[StepNode, Any, Given], Gradients] | None = None


def _plain(node: StepNode, tensors: Sequence[Any]) -> tuple[Any, tuple[Tensor, ...]]:
    return node.run(tensors), ()


def _plain_again(node: StepNode, tensors: Sequence[Any], aside: tuple[Tensor, ...]) -> Any:
    return node.run(tensors)


def _nothing(node: StepNode) -> RuleNeeds:
    return RuleNeeds()


def _rule(
    needs: Callable[[StepNode], RuleNeeds], backward: Callable[[StepNode, Any, Given], Gradients], **options: Any
) -> Rule:
    return Rule(needs, backward, **{"forward": _plain, "again": _plain_again, **options})


# Any operator ---------------------------------------------------------------------------------------------------------


def _all_inputs(node: StepNode) -> RuleNeeds:
    return RuleNeeds(frozenset(range(len(node.inputs))))


def _by_autograd(node: StepNode, gradient: Any, given: Given) -> Gradients:
    leaves = [
        tensor.detach().requires_grad_() if wanted else tensor
        for tensor, wanted in zip(given.tensors, node.wants, strict=True)
    ]
    with torch.enable_grad():
        value = node.run(leaves)
    wanted = [leaf for leaf, want in zip(leaves, node.wants, strict=True) if want]
    shared = gradient.untyped_storage()._cdata
    found = iter(torch.autograd.grad(value, wanted, gradient))
    own = (each.clone() if each.untyped_storage()._cdata == shared else each for each in found)
    return [next(own) if want else None for want in node.wants]


# Convolutions and linear layers ---------------------------------------------------------------------------------------


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


# Normalisation --------------------------------------------------------------------------------------------------------


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


def _batch_norm_again(node: StepNode, tensors: Sequence[Any], aside: tuple[Tensor, ...]) -> Tensor:
    x, weight, bias, mean, variance = _spread(node, tensors, 5)
    epsilon = node.args[7]
    if aside:
        mean, variance = aside[0], aside[1].pow(-2).sub_(epsilon)
    return torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, epsilon)[0]


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


def batch_norm_parts(channels: int) -> list[slice]:
    """Channels whose gradients are computed at once where they overwrite what they came from."""
    size = -(-channels // IN_PLACE_PARTS)
    return [slice(start, min(start + size, channels)) for start in range(0, channels, size)]


def _batch_norm_backward_in_place(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    """A few channels at a time: no channel needs another one."""
    others: list[list[Tensor]] = [[] for _ in node.inputs]
    for part in batch_norm_parts(gradient.shape[1]):
        x, *small = given.tensors
        portion = Given(
            [None if x is None else x[:, part].contiguous(), *(None if t is None else t[part] for t in small)],
            given.shapes,
            tuple(each[part] for each in given.aside),
        )
        found = _batch_norm_backward(node, gradient[:, part].contiguous(), portion)
        gradient[:, part] = found[0]
        for place in range(1, len(found)):
            if node.wants[place]:
                others[place].append(found[place])
    return [gradient, *(torch.cat(parts) if parts else None for parts in others[1:])]


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


# Gates and pools ------------------------------------------------------------------------------------------------------


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


def _gate_in_place(node: StepNode, tensors: Sequence[Any]) -> Tensor:
    bounds = _gate(node).gate
    assert bounds is not None
    return aten.relu_(tensors[0]) if bounds[1] == math.inf else aten.hardtanh_(tensors[0], *bounds)


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
        indices_CHW = windows.indices(offsets_CHW[None])[0]
        sample_CHW.flatten(1).scatter_add_(1, indices_CHW.flatten(1), gradient_CHW.flatten(1))
    return [found]


def _mean_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    shape = given.shapes[0]
    if node.operator == "mean":
        dims = [d % len(shape) for d in (node.argument(1) or range(len(shape)))]
        gradient = gradient.reshape([1 if d in dims else size for d, size in enumerate(shape)])
    share = gradient.numel() / shape.numel()
    return [(gradient * share).expand(shape).contiguous()]


# Elementwise ----------------------------------------------------------------------------------------------------------


def _add_backward(node: StepNode, gradient: Tensor, given: Given) -> Gradients:
    factor = node.kwargs.get("alpha", 1)
    signs = (1, factor if node.operator == "add" else -factor)
    return [
        (gradient if sign == 1 else gradient * sign).sum_to_size(shape) if want else None
        for sign, shape, want in zip(signs, given.shapes, node.wants, strict=False)
    ]


def _add_in_place(node: StepNode, tensors: Sequence[Any]) -> Tensor:
    factor = node.kwargs.get("alpha", 1)
    other = tensors[1] if len(tensors) > 1 else node.args[1]
    return tensors[0].add_(other, alpha=factor if node.operator == "add" else -factor)


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


# Views ----------------------------------------------------------------------------------------------------------------


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


AUTOGRAD = _rule(_all_inputs, _by_autograd)
CHEAP_AUTOGRAD = _rule(_all_inputs, _by_autograd, cheap=True)
CONVOLUTION = _rule(_weighted_needs, _convolution_backward)
LINEAR = _rule(_weighted_needs, _linear_backward)
BATCH_NORM = _rule(
    _batch_norm_needs,
    _batch_norm_backward,
    forward=_batch_norm_forward,
    again=_batch_norm_again,
    cheap=True,
    backward_in_place=_batch_norm_backward_in_place,
)
LAYER_NORM = _rule(_all_inputs, _layer_norm_backward, forward=_layer_norm_forward, cheap=True)
GATE = _rule(_gate, _gate_backward, cheap=True, in_place=_gate_in_place, backward_in_place=_gate_backward_in_place)
MAX_POOL = _rule(_nothing, _pool_backward, forward=_pool_forward, again=_pool_again)
MEAN = _rule(_nothing, _mean_backward)
ADD = _rule(_nothing, _add_backward, alias=True, cheap=True, in_place=_add_in_place)
MUL = _rule(_mul_needs, _mul_backward, cheap=True)
DROPOUT = _rule(_nothing, _dropout_backward, forward=_dropout_forward, again=_dropout_again, cheap=True)
RESHAPE = _rule(_nothing, _reshaped, alias=True, cheap=True)
TRANSPOSE = _rule(_nothing, _transposed, alias=True, cheap=True)
PERMUTE = _rule(_nothing, _permuted, alias=True, cheap=True)
RULES = {
    "conv2d": CONVOLUTION,
    "linear": LINEAR,
    "batch_norm": BATCH_NORM,
    "layer_norm": LAYER_NORM,
    **dict.fromkeys(("relu", "relu6", "hardtanh"), GATE),
    "max_pool2d": MAX_POOL,
    **dict.fromkeys(("mean", "adaptive_avg_pool2d"), MEAN),
    **dict.fromkeys(("add", "sub"), ADD),
    "mul": MUL,
    "dropout": DROPOUT,
    **dict.fromkeys(
        ("gelu", "silu", "hardswish", "hardsigmoid", "sigmoid", "tanh", "leaky_relu", "elu"), CHEAP_AUTOGRAD
    ),
    **dict.fromkeys(
        ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view", "contiguous"), RESHAPE
    ),
    "transpose": TRANSPOSE,
    "permute": PERMUTE,
    "select": _rule(_nothing, _selected, cheap=True),
    "slice": _rule(_nothing, _sliced, cheap=True),
    "expand": _rule(_nothing, _expanded, alias=True, cheap=True),
    "unbind": _rule(_nothing, _unbound, cheap=True),
}


def shares_gradient(node: StepNode) -> bool:
    """Whether gradients of inputs may be the output's gradient itself, or a view of it."""
    return rule_of(node).alias or (node.operator == "dropout" and node.view) or node.operator == "getitem"


def copies_gradient(node: StepNode, readers: Sequence[StepNode]) -> bool:
    """Whether the gradient of a reshaped value comes in another order of its axes, and is put in order first."""
    return rule_of(node) is RESHAPE and any(rule_of(reader) in (PERMUTE, TRANSPOSE) for reader in readers)


def rule_of(node: StepNode) -> Rule:
    """The rule of an operator; one of its own where it can be kept small, else autograd's."""
    if node.operator == "conv2d" and isinstance(node.argument(4), str):
        return AUTOGRAD
    if node.operator == "adaptive_avg_pool2d" and list(node.argument(1)) != [1, 1]:
        return AUTOGRAD
    if node.operator == "mean" and node.argument(1) is None:
        return AUTOGRAD
    return RULES.get(node.operator, AUTOGRAD)
