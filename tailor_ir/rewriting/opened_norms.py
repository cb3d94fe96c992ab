"""BatchNorms that were folded into convolutions are put back, so that SubNets can be recalibrated.

A BatchNorm that is put back behind a convolution normalises by mean μ and variance σ² of the convolution's own results,
and has scale √(σ² + ε) and bias μ. It changes nothing; in a SubNet, with statistics of its own, it does what the folded
one would have done, since folding scales and shifts each channel, and normalisation undoes that.

Exporters leave traces in names (`_is_told`). A file without traces and without any norm may have had BatchNorms if its
convolutions have biases. Convolutions that usually have none are left out there: the last layers of heads, gates on
pooled features (squeeze-and-excitation), and convolutions before a softmax.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tailor_ir.graph import Graph, Node, Tensors

EPSILON = 1e-8
"""Far below the variance of channels that carry information; the ε of a folded BatchNorm is not known."""
FEW = 2
"""With fewer convolutions with biases nothing was folded into them."""
NORMS = frozenset(
    (
        *("BatchNormalization", "BatchStandardization", "GroupNorm", "InstanceNormalization"),
        *("LayerNormalization", "LpNormalization", "RmsNorm"),
    )
)
LAYERS = frozenset(("Conv", "ConvTranspose", "DeformConv", "GRU", "Gemm", "LSTM", "Linear", "MatMul", "RNN"))
RESHAPING = frozenset(("Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"))
SOFTMAX = frozenset(("LogSoftmax", "Softmax"))
REDUCTIONS = frozenset(
    (
        *("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"),
        *("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceSum"),
    )
)
POOLS = frozenset(("AveragePool", "MaxPool"))
LOCAL = 3
"""The largest side of windows that halve a map, also one of 2 × 2; larger ones over a whole map pool it."""
LEGACY_WEIGHT = re.compile(r"onnx::Conv_\d+")
DYNAMO_RESULT = re.compile(r"getitem(_\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedNorms:
    """Convolutions into which a BatchNorm was folded, by the names of nodes. certain: an exporter's names tell it."""

    nodes: tuple[str, ...]
    certain: bool

    @property
    def remark(self) -> str:
        """A message for the user about BatchNorms that were put back."""
        count = len(self.nodes)
        if self.certain:
            return (
                f"BatchNorm was folded into {count} convolutions, and is put back behind them: it changes nothing at "
                "first, and SubNets are recalibrated like others"
            )
        return (
            f"no BatchNorm: one that changes nothing at first is put behind {count} convolutions with biases, into "
            "which it may have been folded, so that SubNets are recalibrated like others"
        )


class ChannelMoments:
    """Mean and variance of each channel of values (B, C, *S) over all samples and positions, added batch by batch."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._squares = torch.zeros((), dtype=torch.float64)

    def add(self, value: torch.Tensor) -> None:
        """Take another batch into account."""
        value = value.detach()
        variance, mean = torch.var_mean(value, [axis for axis in range(value.ndim) if axis != 1], correction=0)
        count = value.numel() // value.shape[1]
        total, away = self._count + count, mean.double() - self._mean
        self._squares = self._squares + variance.double() * count + away.square() * (self._count * count / total)
        self._mean = self._mean + away * (count / total)
        self._count = total

    @property
    def mean(self) -> torch.Tensor:
        """(C,), in double precision."""
        return self._mean

    @property
    def variance(self) -> torch.Tensor:
        """(C,), unbiased as running variances are, in double precision."""
        return self._squares / max(1, self._count - 1)


def find_folded(graph: Graph) -> FoldedNorms:
    """The convolutions into which BatchNorms were folded; none in networks that have their norms."""
    data, readers = graph.data_values(), graph.consumers()
    parameters = frozenset(graph.parameters)
    convolutions = [
        node
        for node in graph.nodes
        if node.op == "Conv"
        and node.inputs[0] in data
        and node.inputs[1] in parameters
        and all(reader.op != "BatchNormalization" for reader in readers.get(node.outputs[0], []))
    ]
    told = tuple(node.name for node in convolutions if _is_told(node))
    if told:
        return FoldedNorms(nodes=told, certain=True)
    biased = [node for node in convolutions if len(node.inputs) > 2 and node.inputs[2] in parameters]
    if len(biased) < FEW or any(node.op in NORMS for node in graph.nodes):
        return FoldedNorms(nodes=(), certain=False)
    pooled, followed = _pooled_values(graph, data), _followed_values(graph, parameters)
    found = (
        node.name
        for node in biased
        if node.outputs[0] not in graph.outputs
        and node.outputs[0] in followed
        and node.inputs[0] not in pooled
        and not _is_scored(node.outputs[0], readers)
    )
    return FoldedNorms(nodes=tuple(found), certain=False)


def _is_told(node: Node) -> bool:
    """Whether names tell that an exporter folded a BatchNorm into a convolution.

    torch's earlier exporter numbers the weights that it computes, and keeps the names of all others. Its present one
    names a new bias after the weight, and leaves the result the name of the BatchNorm's.
    """
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    return bool(
        LEGACY_WEIGHT.fullmatch(node.inputs[1])
        or DYNAMO_RESULT.fullmatch(node.outputs[0])
        or bias == f"{node.inputs[1]}_bias"
    )


def _pooled_values(graph: Graph, data: Collection[str]) -> frozenset[str]:
    """Values that are computed from pooled features alone: from one number for each channel of a sample."""
    pooled: set[str] = set()
    for node in graph.nodes:
        result = graph.shapes[node.outputs[0]]
        single = len(result) > 2 and all(size == 1 for size in result[2:])
        read = [name for name in node.inputs if name in data]
        pools = node.op in REDUCTIONS or (node.op in POOLS and max(node.ints("kernel_shape")) > LOCAL)
        if read and ((pools and single) or pooled.issuperset(read)):
            pooled.update(node.outputs)
    return frozenset(pooled)


def _followed_values(graph: Graph, parameters: Collection[str]) -> frozenset[str]:
    """Values that a layer with weights reads, directly or from what is computed of them."""
    followed: set[str] = set()
    for node in reversed(graph.nodes):
        is_layer = node.op in LAYERS and not set(parameters).isdisjoint(node.inputs)
        if is_layer or not followed.isdisjoint(node.outputs):
            followed.update(node.inputs)
    return frozenset(followed)


def _is_scored(value: str, readers: Mapping[str, Sequence[Node]]) -> bool:
    """Whether a softmax reads a value, or another shape of it."""
    nodes = readers.get(value, ())
    return any(
        node.op in SOFTMAX or (node.op in RESHAPING and any(_is_scored(name, readers) for name in node.outputs))
        for node in nodes
    )


def open_norms(
    graph: Graph, tensors: Tensors, folded: FoldedNorms, moments: Callable[[Node], ChannelMoments]
) -> tuple[Graph, Tensors]:
    """The network with a BatchNorm behind each convolution with a folded one. moments: of a convolution's results.

    The convolution's bias moves into the BatchNorm. A channel without variance has the scale √ε, so that it stays as
    it is, and nothing is divided by zero.
    """
    shapes, found = dict(graph.shapes), dict(tensors)
    nodes: list[Node] = []
    parameters, statistics = list(graph.parameters), list(graph.statistics)
    for node in graph.nodes:
        if node.name not in folded.nodes:
            nodes.append(node)
            continue
        before, norm = _opened(node)
        shapes[before.outputs[0]] = shapes[node.outputs[0]]
        bias = tensors[node.inputs[2]].double().cpu() if len(node.inputs) > 2 and node.inputs[2] else 0.0
        own = _tensors_of(moments(node), bias)
        for name, tensor in zip(norm.inputs[1:], own, strict=True):
            found[name], shapes[name] = tensor, tuple(tensor.shape)
        parameters += norm.inputs[1:3]
        statistics += norm.inputs[3:5]
        nodes += [before, norm]
    whole = replace(graph, shapes=shapes, parameters=tuple(parameters), statistics=tuple(statistics))
    opened = whole.with_nodes(tuple(nodes))
    return opened, {name: tensor for name, tensor in found.items() if name in opened.initializers}


def _opened(node: Node) -> tuple[Node, Node]:
    """A convolution without bias, and a BatchNorm behind it, which gives the value that the convolution gave."""
    norm = f"{node.name}/batch_norm"
    value = f"{norm}/input"
    before = replace(node, inputs=node.inputs[:2], outputs=(value,))
    names = tuple(f"{norm}.{each}" for each in ("weight", "bias", "running_mean", "running_var"))
    after = Node(
        name=norm,
        op="BatchNormalization",
        inputs=(value, *names),
        outputs=node.outputs,
        attributes=(("epsilon", EPSILON),),
    )
    return before, after


def _tensors_of(moments: ChannelMoments, bias: torch.Tensor | float) -> tuple[torch.Tensor, ...]:
    """Scale, bias, mean and variance of a BatchNorm, by the moments of a convolution's results with this bias."""
    variance = moments.variance.float()
    return (variance + EPSILON).sqrt(), moments.mean.float(), (moments.mean - bias).float(), variance
