"""Gradients of a SubNet on the device, in torch: ONNX operators, and networks differentiable by their BatchNorms.

Importing this module imports torch and onnx; nothing else in this package does.

Operators are ONNX's of opset 17, in SubNets with BatchNorm; all can be differentiated. Operands are tensors in ONNX's
order, None for omitted operands; attributes are Python values by name. ONNX pads the begin of each axis and then the
end of each, which may differ. Torch's operators pad both sides alike.

Legend: B batch, C channels, S sizes of an image, H height, W width, K classes, F channels of all BatchNorms.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch.nn import functional

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import AdaptableNet
from adaptive_runtime.weights.statistics import (
    INPUTS,
    OUTPUTS,
    Array,
    EntropyGradients,
    NormScales,
    NormStatistics,
    spans,
)

Operands = Sequence[torch.Tensor | None]
Attributes = Mapping[str, Any]
ByRank = Mapping[int, Callable[..., torch.Tensor]]
CONVOLUTIONS: ByRank = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
MAX_POOLS: ByRank = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
AVERAGE_POOLS: ByRank = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _first(operands: Operands) -> torch.Tensor:
    assert operands[0] is not None
    return operands[0]


def _windows(operands: Operands, attributes: Attributes, fill: float) -> tuple[torch.Tensor, dict[str, Any]]:
    """The input x (B, C, *S), and strides and padding for torch; if the sides differ, x is padded with `fill` beforehand."""
    if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NotImplementedError(f"auto_pad {attributes['auto_pad']}")
    x = _first(operands)
    rank = x.dim() - 2
    pads = list(attributes.get("pads", [0] * 2 * rank))
    padding, strides = pads[:rank], attributes.get("strides", [1] * rank)
    if padding != pads[rank:]:
        x, padding = functional.pad(x, _sides(pads), value=fill), [0] * rank
    return x, {"stride": strides, "padding": padding}


def _sides(pads: Sequence[int]) -> list[int]:
    """ONNX's padding in torch's order: both sides of the last axis first."""
    begins, ends = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    return [side for pair in zip(reversed(begins), reversed(ends), strict=True) for side in pair]


def convolution(operands: Operands, attributes: Attributes) -> torch.Tensor:
    """Conv of x (B, C, *S) with weights and an optional bias."""
    x, windows = _windows(operands, attributes, 0.0)
    rank = x.dim() - 2
    dilation, groups = attributes.get("dilations", [1] * rank), attributes.get("group", 1)
    return CONVOLUTIONS[rank](x, *operands[1:], dilation=dilation, groups=groups, **windows)


def max_pool(operands: Operands, attributes: Attributes) -> torch.Tensor:
    """MaxPool of x (B, C, *S)."""
    x, windows = _windows(operands, attributes, -math.inf)
    rank = x.dim() - 2
    dilation, ceils = attributes.get("dilations", [1] * rank), bool(attributes.get("ceil_mode", 0))
    return MAX_POOLS[rank](x, attributes["kernel_shape"], dilation=dilation, ceil_mode=ceils, **windows)


def average_pool(operands: Operands, attributes: Attributes) -> torch.Tensor:
    """AveragePool of x (B, C, *S). NotImplementedError: padding that is not counted and differs between sides."""
    x, windows = _windows(operands, attributes, 0.0)
    counts, ceils = (bool(attributes.get(name, 0)) for name in ("count_include_pad", "ceil_mode"))
    if x is not operands[0] and not counts:
        raise NotImplementedError("padding that differs between sides and does not count")
    rank = x.dim() - 2
    return AVERAGE_POOLS[rank](x, attributes["kernel_shape"], ceil_mode=ceils, count_include_pad=counts, **windows)


Compute = Callable[[Operands, Attributes], torch.Tensor | tuple[torch.Tensor, ...]]


def _plain(compute: Callable[..., torch.Tensor]) -> Compute:
    """An operator without relevant attributes, whose operands match torch's arguments."""
    return lambda operands, _: compute(*operands)


def _numbers(operands: Operands, position: int, attributes: Attributes, name: str) -> list[int] | None:
    """Integers from an operand, or from an attribute in earlier opsets; None: neither exists."""
    if len(operands) > position and (found := operands[position]) is not None:
        return [int(one) for one in found.tolist()]
    return attributes.get(name)


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
    return functional.pad(_first(operands), _sides(pads), value=value)


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


BATCH_NORM = "BatchNormalization"
EPSILON = 1e-5
"""Default of BatchNormalization in ONNX."""
Values = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Step:
    """A node. own: slice of a BatchNorm's channels among the channels of all BatchNorms; None: no BatchNorm."""

    node: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    own: slice | None


class DifferentiableNetwork:
    """The file `AdaptableNet.file` in torch, `images` images at once, with this number of threads.

    It computes the values of `ObservedNetwork`, since it is the same file. scales: those of the file. epsilon_F: (F,).
    AdaptiveError: the SubNet has an operator that cannot be differentiated here.
    """

    def __init__(self, file: Path, net: AdaptableNet, threads: int) -> None:
        graph = onnx.load(file).graph
        self._threads = threads
        self._where = f"'{file.name}'"
        self._taken, self._given = graph.input[0].name, graph.output[0].name
        self._constants: Values = {one.name: torch.tensor(numpy_helper.to_array(one)) for one in graph.initializer}
        own = iter(spans(net.norms))
        steps = [_step(node, next(own) if node.op_type == BATCH_NORM else None) for node in graph.node]
        with torch.no_grad():
            self._steps = [one for one in steps if not self._becomes_constant(one)]
        norms = [one for one in self._steps if one.own is not None]
        needed = {name for one in self._steps for name in one.inputs}
        scale_F, bias_F = (torch.cat([self._constants[one.inputs[at]] for one in norms]) for at in (1, 2))
        self.scales = NormScales(scale_F.numpy(), bias_F.numpy())
        each = [
            torch.full_like(self._constants[one.inputs[1]], one.attributes.get("epsilon", EPSILON)) for one in norms
        ]
        self.epsilon_F: Array = torch.cat(each).numpy()
        self._constants = {name: value.clone() for name, value in self._constants.items() if name in needed}

    def entropy_gradients(
        self, x_BCHW: Array, scales: NormScales, source: NormStatistics, share: float, sure_share: float | None
    ) -> EntropyGradients:
        """Gradients of the entropies of a batch's answers by scales and biases.

        Each BatchNorm normalises by the statistics of the batch with weight `share` and by the source's otherwise; gradients
        flow through the statistics of the batch. sure_share: only images with an entropy below this share of ln K count, each
        with the weight exp(share · ln K − entropy) (EATA, Niu et al., ICML 2022, eq. 3); None: all count alike (Tent, Wang et
        al., ICLR 2021).
        """
        scale_F, bias_F = (torch.tensor(one, requires_grad=True) for one in scales)
        fed = dict(zip(INPUTS, (*map(torch.from_numpy, source), torch.tensor(share, dtype=torch.float32)), strict=True))
        with torch.enable_grad(), _in_threads(self._threads):
            values = self._run({self._taken: torch.from_numpy(x_BCHW), **fed}, scale_F, bias_F)
            log_p_BK = values[self._given].log_softmax(1)
            entropy_B = -(log_p_BK.exp() * log_p_BK).sum(1)
            weight_B = torch.ones_like(entropy_B)
            if sure_share is not None:
                most = sure_share * math.log(log_p_BK.shape[1])
                weight_B = torch.exp(most - entropy_B.detach()) * (entropy_B.detach() < most)
            by_scale_F, by_bias_F = torch.autograd.grad((weight_B * entropy_B).sum(), (scale_F, bias_F))
        means_BF, variances_BF = (values[name].detach().numpy() for name in OUTPUTS)
        return EntropyGradients(
            NormStatistics.of_images(means_BF, variances_BF),
            by_scale_F.numpy(),
            by_bias_F.numpy(),
            int((weight_B > 0).sum()),
        )

    def _run(self, fed: Values, scale_F: torch.Tensor, bias_F: torch.Tensor) -> Values:
        """All values of a run by name."""
        values = {**self._constants, **fed}
        for step in self._steps:
            if step.own is None:
                values.update(self._computed(step, values))
            else:
                x, mean_C, variance_C = (values[step.inputs[at]] for at in (0, 3, 4))
                scale_C = scale_F[step.own] * (variance_C + step.attributes.get("epsilon", EPSILON)).rsqrt()
                shape = (1, -1, *(1,) * (x.dim() - 2))
                shift_C = bias_F[step.own] - mean_C * scale_C
                values[step.outputs[0]] = x * scale_C.view(shape) + shift_C.view(shape)
        return values

    def _becomes_constant(self, step: _Step) -> bool:
        """Precompute a node that does not depend on images. False: it depends on them. AdaptiveError: unknown operator."""
        if step.own is not None:
            return False
        self._compute_of(step)
        if not all(name in self._constants for name in step.inputs if name):
            return False
        self._constants.update(self._computed(step, self._constants))
        return True

    def _computed(self, step: _Step, values: Values) -> Values:
        compute = self._compute_of(step)
        try:
            found = compute([values[name] if name else None for name in step.inputs], step.attributes)
        except NotImplementedError as error:
            raise self._unknown(f"operator '{step.op}' at '{step.node}' with {error}") from error
        return dict(zip(step.outputs, found if isinstance(found, tuple) else (found,), strict=True))

    def _compute_of(self, step: _Step) -> Compute:
        if step.op not in OPERATORS:
            raise self._unknown(f"operator '{step.op}' at '{step.node}'")
        return OPERATORS[step.op]

    def _unknown(self, what: str) -> AdaptiveError:
        next_step = "adapt by 'statistics'"
        return AdaptiveError(self._where, f"{what} has no gradients here", next_step=next_step)


def _step(node: onnx.NodeProto, own: slice | None) -> _Step:
    attributes = {one.name: _value(helper.get_attribute_value(one)) for one in node.attribute}
    return _Step(node.name, node.op_type, tuple(node.input), tuple(node.output), attributes, own)


def _value(attribute: Any) -> Any:
    """An attribute as a Python value or numpy array."""
    if isinstance(attribute, onnx.TensorProto):
        return numpy_helper.to_array(attribute)
    return attribute.decode() if isinstance(attribute, bytes) else attribute


@contextmanager
def _in_threads(threads: int) -> Iterator[None]:
    """Set torch's number of threads while the context is open; afterwards other users in this process have theirs again."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
