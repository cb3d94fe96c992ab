"""ONNX operators (opset 17) of SubNets with BatchNorm, in torch; all can be differentiated.

Operands are tensors in ONNX's order, None for omitted ones; attributes are Python values by name.
"""

import math
from collections.abc import Callable

import torch
from torch.nn import functional

from adaptive_runtime.weights.gradients.windows import Attributes, Operands, average_pool, convolution, max_pool

Compute = Callable[[Operands, Attributes], torch.Tensor | tuple[torch.Tensor, ...]]


def _plain(compute: Callable[..., torch.Tensor]) -> Compute:
    """An operator without relevant attributes, whose operands match torch's arguments."""
    return lambda operands, _: compute(*operands)


def _numbers(operands: Operands, position: int, attributes: Attributes, name: str) -> list[int] | None:
    """Integers from an operand, or from an attribute in earlier opsets; None: neither exists."""
    if len(operands) > position and (found := operands[position]) is not None:
        return [int(one) for one in found.tolist()]
    return attributes.get(name)


def _first(operands: Operands) -> torch.Tensor:
    assert operands[0] is not None
    return operands[0]


def _clip(operands: Operands, _: Attributes) -> torch.Tensor:
    limits = [None if one is None else float(one) for one in (*operands[1:], None, None)][:2]
    return torch.clamp(_first(operands), *limits)


def _gemm(operands: Operands, attributes: Attributes) -> torch.Tensor:
    a, b, *c = operands
    assert a is not None
    assert b is not None
    a = a.t() if attributes.get("transA", 0) else a
    b = b.t() if attributes.get("transB", 0) else b
    found = attributes.get("alpha", 1.0) * (a @ b)
    return found if not c or c[0] is None else found + attributes.get("beta", 1.0) * c[0]


def _reduced(compute: Callable[..., torch.Tensor]) -> Compute:
    def reduce(operands: Operands, attributes: Attributes) -> torch.Tensor:
        x = _first(operands)
        axes = _numbers(operands, 1, attributes, "axes") or list(range(x.dim()))
        return compute(x, axes, keepdim=bool(attributes.get("keepdims", 1)))

    return reduce


def _global(compute: Callable[..., torch.Tensor]) -> Compute:
    return lambda operands, _: compute(x := _first(operands), list(range(2, x.dim())), keepdim=True)


def _flatten(operands: Operands, attributes: Attributes) -> torch.Tensor:
    x, axis = _first(operands), attributes.get("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _reshape(operands: Operands, _: Attributes) -> torch.Tensor:
    x, wanted = _first(operands), _numbers(operands, 1, {}, "shape")
    assert wanted is not None
    return x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)])


def _transpose(operands: Operands, attributes: Attributes) -> torch.Tensor:
    x = _first(operands)
    return x.permute(attributes.get("perm", list(reversed(range(x.dim())))))


def _squeeze(operands: Operands, attributes: Attributes) -> torch.Tensor:
    x, axes = _first(operands), _numbers(operands, 1, attributes, "axes")
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def _unsqueeze(operands: Operands, attributes: Attributes) -> torch.Tensor:
    x, axes = _first(operands), _numbers(operands, 1, attributes, "axes")
    assert axes is not None
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _concat(operands: Operands, attributes: Attributes) -> torch.Tensor:
    return torch.cat([one for one in operands if one is not None], attributes["axis"])


def _split(operands: Operands, attributes: Attributes) -> tuple[torch.Tensor, ...]:
    sizes = _numbers(operands, 1, attributes, "split")
    if sizes is None:
        raise NotImplementedError("parts without sizes")
    return tuple(_first(operands).split(sizes, attributes.get("axis", 0)))


def _slice(operands: Operands, attributes: Attributes) -> torch.Tensor:
    x = _first(operands)
    starts, ends = (_numbers(operands, at, attributes, name) for at, name in ((1, "starts"), (2, "ends")))
    assert starts is not None
    assert ends is not None
    axes = _numbers(operands, 3, attributes, "axes") or list(range(len(starts)))
    steps = _numbers(operands, 4, attributes, "steps") or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        places = range(x.shape[axis])[start:end:step]
        x = x.index_select(axis, torch.tensor(places, dtype=torch.int64))
    return x


def _gather(operands: Operands, attributes: Attributes) -> torch.Tensor:
    x, places = operands
    assert x is not None
    assert places is not None
    axis = attributes.get("axis", 0) % x.dim()
    found = x.index_select(axis, (places % x.shape[axis]).reshape(-1))
    return found.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])


def _pad(operands: Operands, attributes: Attributes) -> torch.Tensor:
    pads = _numbers(operands, 1, attributes, "pads")
    if pads is None or attributes.get("mode", "constant") != "constant" or len(operands) > 3:
        raise NotImplementedError("padding by other values than a constant")
    value = 0.0 if len(operands) < 3 or (given := operands[2]) is None else float(given)
    half = len(pads) // 2
    sides = [side for pair in zip(reversed(pads[:half]), reversed(pads[half:]), strict=True) for side in pair]
    return functional.pad(_first(operands), sides, value=value)


def _hard_sigmoid(operands: Operands, attributes: Attributes) -> torch.Tensor:
    scaled = attributes.get("alpha", 0.2) * _first(operands) + attributes.get("beta", 0.5)
    return scaled.clamp(0.0, 1.0)


OPERATORS: dict[str, Compute] = {
    "Abs": _plain(torch.abs),
    "Add": _plain(torch.add),
    "AveragePool": average_pool,
    "Clip": _clip,
    "Concat": _concat,
    "Constant": lambda _, attributes: torch.tensor(next(iter(attributes.values()))),
    "Conv": convolution,
    "Div": _plain(torch.div),
    "Elu": lambda operands, attributes: functional.elu(_first(operands), attributes.get("alpha", 1.0)),
    "Erf": _plain(torch.erf),
    "Exp": _plain(torch.exp),
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": _global(torch.mean),
    "GlobalMaxPool": _global(torch.amax),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(functional.hardswish),
    "Identity": _plain(lambda x: x),
    "LeakyRelu": lambda operands, attributes: functional.leaky_relu(_first(operands), attributes.get("alpha", 0.01)),
    "Log": _plain(torch.log),
    "LogSoftmax": lambda operands, attributes: _first(operands).log_softmax(attributes.get("axis", -1)),
    "MatMul": _plain(torch.matmul),
    "MaxPool": max_pool,
    "Mul": _plain(torch.mul),
    "Neg": _plain(torch.neg),
    "Pad": _pad,
    "Pow": _plain(torch.pow),
    "ReduceMax": _reduced(torch.amax),
    "ReduceMean": _reduced(torch.mean),
    "ReduceSum": _reduced(torch.sum),
    "Relu": _plain(torch.relu),
    "Reshape": _reshape,
    "Sigmoid": _plain(torch.sigmoid),
    "Slice": _slice,
    "Softmax": lambda operands, attributes: _first(operands).softmax(attributes.get("axis", -1)),
    "Softplus": _plain(functional.softplus),
    "Split": _split,
    "Sqrt": _plain(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _plain(torch.sub),
    "Tanh": _plain(torch.tanh),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""By ONNX's name; without BatchNormalization, whose scales and biases are learned."""
