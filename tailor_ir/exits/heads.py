"""Heads of exits: their kinds, the answer of a classifier, and first weights from data.

`convolution`: on feature maps a 3×3 convolution with stride 2, BatchNorm and ReLU, then the mean over positions and a
linear layer (AdaScale §III-A). `light`: the mean and the linear layer alone. On tokens, both are the light head.

Exits need a classifier, and the value of its answer. The linear layer of each head is fitted to the answers of the
trained network: a ridge regression from its inputs to the network's numbers for classes. A head's convolution keeps its
random weights; the BatchNorm statistics behind it are taken from the images. An exit therefore gives sensible answers
before any training, without labels.

Legend: N images, F numbers that the layer reads, K classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt

import torch

from tailor_ir.alternatives.sketch import NotHere, Sketch
from tailor_ir.axes import Axis
from tailor_ir.errors import SpaceError
from tailor_ir.graph import Graph, Node
from tailor_ir.ops.elementwise import ACTIVATIONS
from tailor_ir.spaces.stage_kinds import EXIT
from tailor_ir.subnets.elastic import Branches, Elastic


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head to be written at the exit of the sketch's site.

    most_macs: multiply-accumulates that its convolution may take, for all samples of the traced shapes. generator: random
    generator of its first weights, seeded by the place.
    """

    sketch: Sketch
    classes: int
    most_macs: int
    generator: torch.Generator


Write = Callable[[Head], str]
"""Writes a head into its sketch; returns the value (B, K) of its answer. NotHere if no head is possible there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadKind:
    """One kind of heads, with the name by which a space requests it."""

    name: str
    write: Write


SHARES = frozenset(("LogSoftmax", "Sigmoid", "Softmax"))
"""Functions that turn a network's numbers into shares of classes; exits have them, too."""
LAYOUT = frozenset(("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
SUMS = frozenset(
    ("Add", "AveragePool", "BatchNormalization", "Div", "GlobalAveragePool", "Mul", "ReduceMean", "ReduceSum", "Sub")
)
PASSED = LAYOUT | SUMS | {"Concat", "Slice"}
"""Operators that may follow the layer that gives one number for each class."""
LAYERS = frozenset(("Conv", "Gemm", "Linear", "MatMul"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAnswer:
    """The answer (B, K) of a classifier. shares: the functions that it ends with, in order."""

    value: str
    classes: int
    shares: tuple[Node, ...]


def find_answer(graph: Graph) -> ClassAnswer:
    """The answer of a classifier; SpaceError for any other network.

    A classifier gives one value (B, K), K numbers for each sample, computed by layers with weights.
    """
    shapes = [graph.shapes[name] for name in graph.outputs]
    if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][1] < 2:
        given = ", ".join(str(("B", *shape[1:])).replace("'", "") for shape in shapes)
        raise SpaceError(f"space: exits: the network gives {given}; allowed: one (B, K) for K classes; leave exits out")
    (value,) = graph.outputs
    producers, data = graph.producers(), graph.data_values()
    waiting, seen = [value], {value}
    while waiting:
        node = producers.get(waiting.pop())
        if node is None or node.op not in PASSED | SHARES | ACTIVATIONS | LAYERS:
            found = "its input" if node is None else f"'{node.op}' at '{node.name}'"
            raise SpaceError(
                f"space: exits: the network's answer comes from {found}; allowed: a linear layer; leave exits out"
            )
        if node.op not in LAYERS:
            more = [name for name in node.inputs if name in data and name not in seen]
            waiting += more
            seen.update(more)
    return ClassAnswer(value=value, classes=shapes[0][1], shares=_numbers(value, producers)[1])


def _numbers(value: str, producers: Mapping[str, Node]) -> tuple[str, tuple[Node, ...]]:
    """The numbers for classes from which an answer's shares are computed, and the functions that do so, in order."""
    found: list[Node] = []
    while producers[value].op in SHARES:
        found.insert(0, producers[value])
        value = producers[value].inputs[0]
    return value, tuple(found)


PASSES = 2
"""Passes over the images: statistics, linear layers."""
RIDGES = tuple(10.0**power for power in range(-5, 3))
"""Ridges to try, as shares of the mean square of the layer's inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstExit:
    """An exit with its first weights.

    agreement: share of the holdout images for which the exit and the network name the same class.
    """

    exit: str
    agreement: float


@torch.no_grad()
def fit_exits(
    elastic: Elastic,
    images: Sequence[torch.Tensor],
    held_out: Sequence[torch.Tensor],
    advance: Callable[[], None] = lambda: None,
) -> tuple[FirstExit, ...]:
    """Give the head of every exit first weights from data; return how often each agrees with the network on holdout images.

    images, held_out: batches (B, C, H, W) of the largest SubNet's resolution. The network's own tensors stay as they are.
    advance: called once for each batch in each of the passes over `images` (`PASSES`), and for each of `held_out`.
    """
    branches = Branches(elastic, EXIT.name)
    if not branches.branches:
        return ()

    def described(batches: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        for x in batches:
            yield x
            advance()

    with elastic.evaluated():
        for name, statistic in branches.observe(described(images)).items():
            elastic.tensor(name).copy_(statistic)
        _fit_linear_layers(elastic, branches, described(images))
        return _agreements(branches, described(held_out))


def _fit_linear_layers(elastic: Elastic, branches: Branches, batches: Iterator[torch.Tensor]) -> None:
    graph = elastic.structure.graph
    producers = graph.producers()
    target = _numbers(graph.outputs[0], producers)[0]
    layers = {branch.choice: producers[_numbers(branch.producer, producers)[0]] for branch in branches.branches}
    read: dict[str, list[torch.Tensor]] = {choice: [] for choice in layers}
    wanted: list[torch.Tensor] = []
    for x in batches:
        features = branches.features(x, {target})
        wanted.append(features[target])
        for branch in branches.branches:
            read[branch.choice].append(branches.values(branch, features)[layers[branch.choice].inputs[0]])
    for choice, layer in layers.items():
        weight, bias = ridge(torch.cat(read[choice]), torch.cat(wanted))
        elastic.tensor(layer.inputs[1]).copy_(weight)
        elastic.tensor(layer.inputs[2]).copy_(bias)


def ridge(x_NF: torch.Tensor, y_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight (K, F) and bias (K,) of the ridge regression of y on x; the ridge is chosen by generalised cross-validation.

    Source: Golub, Heath and Wahba, *Generalized cross-validation as a method for choosing a good ridge parameter* (1979).
    """
    x_NF, y_NK = x_NF.double(), y_NK.double()
    mean_F, mean_K = x_NF.mean(0), y_NK.mean(0)
    left_NR, values_R, right_RF = torch.linalg.svd(x_NF - mean_F, full_matrices=False)
    centred_NK = y_NK - mean_K
    along_RK = left_NR.T @ centred_NK
    ridges = [share * float(values_R.square().mean()) + 1e-12 for share in RIDGES]

    def left_out(ridge: float) -> float:
        kept_R = values_R.square() / (values_R.square() + ridge)
        leverage_N = left_NR.square() @ kept_R + 1 / len(x_NF)
        error_NK = (centred_NK - left_NR @ (kept_R[:, None] * along_RK)) / (1 - leverage_N).clamp_min(1e-6)[:, None]
        return float(error_NK.square().sum())

    best = min(ridges, key=left_out)
    weight_KF = ((values_R / (values_R.square() + best))[:, None] * along_RK).T @ right_RF
    return weight_KF.float(), (mean_K - weight_KF @ mean_F).float()


def _agreements(branches: Branches, batches: Iterator[torch.Tensor]) -> tuple[FirstExit, ...]:
    same = {branch.choice: 0 for branch in branches.branches}
    count = 0
    for x in batches:
        features = branches.features(x)
        count += len(x)
        for branch in branches.branches:
            classes = branches.run(branch, features).argmax(-1)
            same[branch.choice] += int((classes == features[branch.exit].argmax(-1)).sum())
    return tuple(FirstExit(exit=choice, agreement=agreed / max(1, count)) for choice, agreed in same.items())


MOST_CHANNELS, FEWEST_CHANNELS = 128, 8
"""Bounds on the channels of a head's convolution (else as many as its place has), so that heads stay small."""
CHANNELS_LAST = (0, 3, 1, 2)


def _write_convolution(head: Head) -> str:
    sketch = head.sketch
    x = sketch.site.exit
    if len(sketch.shape(x)) != 4:
        return _write_light(head)
    if _positions(sketch, x) == (1, 2):
        shape = tuple(sketch.shape(x)[at] for at in CHANNELS_LAST)
        x = sketch.node("channels_first", "Transpose", (x,), shape, {"perm": CHANNELS_LAST})
    x = _convolved(head, x)
    x = sketch.node("relu", "Relu", (x,), sketch.shape(x))
    return _linear(head, _pooled(sketch, x, (2, 3)))


def _write_light(head: Head) -> str:
    sketch = head.sketch
    x = sketch.site.exit
    return _linear(head, _pooled(sketch, x, _positions(sketch, x)))


def _positions(sketch: Sketch, x: str) -> tuple[int, ...]:
    """The dimensions of a value (B, …) that are positions: all but the samples and the channels."""
    rank, axes = len(sketch.shape(x)), sketch.network.axes(x)
    if not 2 <= rank <= 4 or not axes[0].batched:
        raise NotHere(f"{sketch.shape(x)} is neither a feature map nor tokens nor a vector")
    channels_last = rank == 3 or (rank == 4 and _is_channels(axes[3]) and not _is_channels(axes[1]))
    if rank == 3 and not _is_channels(axes[2]) and _is_channels(axes[1]):
        channels_last = False
    return tuple(range(1, rank - 1)) if channels_last else tuple(range(2, rank))


def _is_channels(axis: Axis) -> bool:
    """Whether an axis has elastic channels and no positions."""
    return bool(axis.groups) and not axis.spatial


def _convolved(head: Head, x: str) -> str:
    """A convolution with stride 2 of x (B, C, H, W), and BatchNorm; a linear map if x has a single position."""
    sketch, (samples, channels, *sides) = head.sketch, head.sketch.shape(x)
    kernel, stride = (3, 2) if max(sides) > 1 else (1, 1)
    macs = samples * channels * kernel**2 * prod(-(-side // stride) for side in sides)  # per output channel of the head
    affordable = max(FEWEST_CHANNELS, head.most_macs // macs // FEWEST_CHANNELS * FEWEST_CHANNELS)
    weight = _he(head, (min(channels, MOST_CHANNELS, affordable), channels, kernel, kernel))
    x = sketch.convolution("convolution", x, weight, stride=stride)
    return sketch.batch_norm("norm", x)


def _pooled(sketch: Sketch, x: str, positions: tuple[int, ...]) -> str:
    """The mean (B, C) of x over positions."""
    shape = sketch.shape(x)
    if not positions:
        return x
    if positions != (2, 3):
        left = tuple(size for at, size in enumerate(shape) if at not in positions)
        return sketch.node("pool", "ReduceMean", (x,), left, {"axes": positions, "keepdims": 0})
    pooled = sketch.node("pool", "GlobalAveragePool", (x,), (*shape[:2], 1, 1))
    return sketch.node("flatten", "Flatten", (pooled,), shape[:2], {"axis": 1})


def _linear(head: Head, x: str) -> str:
    channels = head.sketch.shape(x)[-1]
    weight = torch.randn(head.classes, channels, generator=head.generator) / sqrt(channels)
    bias = head.sketch.parameter("linear.bias", torch.zeros(head.classes))
    return head.sketch.linear("linear", x, weight, bias)


def _he(head: Head, shape: tuple[int, ...]) -> torch.Tensor:
    """First weights for a layer before a ReLU. Source: He et al., *Delving deep into rectifiers* (ICCV 2015)."""
    return torch.randn(shape, generator=head.generator) * sqrt(2 / prod(shape[1:]))


CONVOLUTION = HeadKind(name="convolution", write=_write_convolution)
LIGHT = HeadKind(name="light", write=_write_light)
