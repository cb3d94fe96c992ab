"""Least squares on the inputs of layers: moments of data, weights that give the same results, and replaced layers.

First weights of alternatives are fitted to moments of inputs, instead of to weights alone: weights approximate, on
data, the results of other weights. All in float64. Results that several alternatives need of a replaced layer are
computed once.

Legend: B batch, I input channels, O output channels, K positions of a kernel, N patches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch.nn import functional

from tailor_ir.graph import Node

PATCHES_FOR_EACH = 12
"""Patches for each number in a patch: more change little, fewer are noisy."""
MOST_NUMBERS = 8192
"""Maximum numbers in a patch: the moments are (I · K)² numbers and must fit into memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchMoments:
    """Means over the patches that a layer reads, over images and positions.

    second: E[x xᵀ] (I · K, I · K); mean: E[x] (I · K,). patches: their number. nonnegative: no number in a patch is below zero.
    """

    second: torch.Tensor
    mean: torch.Tensor
    patches: int
    nonnegative: bool

    def metric(self, *, centred: bool) -> torch.Tensor:
        """E[x xᵀ] in float64, shrunk; centred: the covariance, for layers whose results may have any mean."""
        second = self.second.double()
        if centred:
            second -= torch.outer(self.mean.double(), self.mean.double())
        return shrunk(second, self.patches)


def shrunk(metric: torch.Tensor, samples: int) -> torch.Tensor:
    """A metric (n, n), shrunk towards a multiple of the identity; the fewer samples per direction, the more.

    Source: Chen, Wiesel, Eldar and Hero, *Shrinkage algorithms for MMSE covariance estimation* (2010), the OAS estimator.
    """
    numbers, trace = len(metric), float(metric.trace())
    squares, square = float(metric.square().sum()), trace**2
    spread = squares - square / numbers
    own = (1 - 2 / numbers) * squares + square
    share = 1.0 if spread <= 0 else min(1.0, own / ((samples + 1 - 2 / numbers) * spread))
    shrunken = (1 - share) * metric
    shrunken.diagonal().add_(share * trace / numbers)
    return shrunken


@dataclass(slots=True)
class PatchSums:
    """Sums over the patches of one layer so far. images: how many will be added in all."""

    node: Node
    weight_shape: tuple[int, ...]
    images: int
    rng: np.random.Generator
    second: torch.Tensor = field(init=False)
    first: torch.Tensor = field(init=False)
    count: int = 0
    least: float = 0.0

    def __post_init__(self) -> None:
        numbers = prod(self.weight_shape[1:])
        self.second, self.first = torch.zeros(numbers, numbers), torch.zeros(numbers, dtype=torch.float64)

    def add(self, x: torch.Tensor) -> None:
        """Add some patches of one batch."""
        wanted = -(-PATCHES_FOR_EACH * len(self.first) * len(x) // self.images)
        patches_NI = patches(x, self.node, self.weight_shape[2:], wanted, self.rng).float().cpu()
        self.second += patches_NI.T @ patches_NI
        self.first += patches_NI.sum(0, dtype=torch.float64)
        self.count += len(patches_NI)
        self.least = min(self.least, float(patches_NI.min()))

    def moments(self) -> PatchMoments:
        """The moments over all added patches."""
        return PatchMoments(
            second=self.second / self.count,
            mean=(self.first / self.count).float(),
            patches=self.count,
            nonnegative=self.least >= 0,
        )


def patches(x: torch.Tensor, node: Node, kernel: Sequence[int], wanted: int, rng: np.random.Generator) -> torch.Tensor:
    """About `wanted` random patches (N, I · K) of a convolution's input, or rows of a linear map's; all if there are fewer."""
    return windows(x, node, kernel).take(rng, wanted)


@dataclass(frozen=True, slots=True)
class LayerWindows:
    """The windows that a layer reads, one for each of its results, as a view (*places, I, *K)."""

    view: torch.Tensor
    places: tuple[int, ...]

    def take(self, rng: np.random.Generator, wanted: int) -> torch.Tensor:
        """Windows (N, I · K) at random places; at all places if there are fewer."""
        return self.at(chosen(self.places, wanted, rng))

    def at(self, places: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Windows (N, I · K) at given places."""
        return self.view[places].flatten(1)


def windows(x: torch.Tensor, node: Node, kernel: Sequence[int]) -> LayerWindows:
    """The windows of a layer's operand x: (B, I, *spatial) of a convolution, (…, I) of a linear map."""
    if node.op == "Linear":
        return LayerWindows(x, tuple(x.shape[:-1]))
    rank = len(kernel)
    pads, strides = node.ints("pads", (0,) * (2 * rank)), node.ints("strides", (1,) * rank)
    dilations = node.ints("dilations", (1,) * rank)
    x = functional.pad(x, [pads[at + side * rank] for at in reversed(range(rank)) for side in (0, 1)])
    for at in range(rank):
        x = x.unfold(2 + at, dilations[at] * (kernel[at] - 1) + 1, strides[at])[..., :: dilations[at]]
    view = x.permute(0, *range(2, 2 + rank), 1, *range(2 + rank, 2 + 2 * rank))
    return LayerWindows(view, tuple(view.shape[: 1 + rank]))


def results(y: torch.Tensor, node: Node, places: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A layer's results (N, O) at places of its windows."""
    return (y if node.op == "Linear" else y.movedim(1, -1))[places]


def chosen(places: Sequence[int], wanted: int, rng: np.random.Generator) -> tuple[torch.Tensor, ...]:
    """Indices of random places, one tensor (N,) for each dimension; of all places if there are no more."""
    count = prod(places)
    flat = np.arange(count) if count <= wanted else rng.choice(count, wanted, replace=False)
    return tuple(torch.from_numpy(index) for index in np.unravel_index(flat, tuple(places)))


def layers_to_read(nodes: Iterable[Node], shapes: dict[str, tuple[int, ...]]) -> list[Node]:
    """The layers whose moments fit into memory, without duplicates."""
    found = {node.name: node for node in nodes if prod(shapes[node.inputs[1]][1:]) <= MOST_NUMBERS}
    return list(found.values())


RIDGE = 1e-4
"""Share of the mean of a metric's diagonal that is added to it, since data never cover some directions."""
TINY = 1e-12


def factor(metric: torch.Tensor) -> torch.Tensor:
    """A lower triangular factor (n, n): its product with its transpose is the metric with a little added to its diagonal.

    More is added if rounding has made the metric indefinite.
    """
    ridge = RIDGE * metric.diagonal().mean() + TINY
    while True:
        heavy = metric.clone()
        heavy.diagonal().add_(ridge)
        root, failed = torch.linalg.cholesky_ex(heavy)
        if not failed:
            return root
        assert metric.isfinite().all()
        ridge = 10 * ridge


def regression(cross: torch.Tensor, metric: torch.Tensor) -> torch.Tensor:
    """The weight (O, n) whose results are nearest to y: cross is E[y xᵀ] (O, n), metric E[x xᵀ] (n, n)."""
    return torch.cholesky_solve(cross.T, factor(metric)).T


class LeftVectors:
    """The first left singular vectors of (n, m), in float64, for any requested rank.

    They come from the eigenvectors of the smaller Gram matrix, which are computed once.
    """

    def __init__(self, matrix: torch.Tensor) -> None:
        self._tall = matrix if matrix.shape[0] > matrix.shape[1] else None
        self._vectors = torch.linalg.eigh(matrix @ matrix.T if self._tall is None else matrix.T @ matrix)[1]

    def __call__(self, rank: int) -> torch.Tensor:
        """The first `rank` vectors (n, rank)."""
        found = self._vectors[:, -rank:].flip(1)
        return found if self._tall is None else torch.linalg.qr(self._tall @ found)[0]


def basis(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """The first left singular vectors (n, rank) of (n, m), in float64."""
    return LeftVectors(matrix)(rank)


def of_rank(weight: torch.Tensor, rank: int, metric: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps (rank, I) and (O, rank), whose product is nearest to (O, I) in a metric (I, I)."""
    up = basis(weight @ factor(metric), rank)
    return up.T @ weight, up


def over_channels(metric: torch.Tensor, channels: int) -> torch.Tensor:
    """The metric (I, I) of channels: the mean over the positions of a kernel of a metric (I · K, I · K)."""
    positions = len(metric) // channels
    return metric.reshape(channels, positions, channels, positions).diagonal(dim1=1, dim2=3).mean(-1)


def through(metric: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    """The metric (R · K, R · K) of the patches that a 1×1 map (R, I) makes of patches with a metric (I · K, I · K)."""
    rank, channels = maps.shape
    positions = len(metric) // channels
    half = torch.einsum("ri,ikm->rkm", maps, metric.reshape(channels, positions, -1))
    whole = torch.einsum("rkjl,sj->rksl", half.reshape(rank, positions, channels, positions), maps)
    return whole.reshape(rank * positions, -1)


def mapped(cross: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    """The cross moments (O, R · K) with patches mapped by a 1×1 map (R, I), from the cross moments (O, I · K)."""
    channels = maps.shape[1]
    return torch.einsum("oik,ri->ork", cross.reshape(len(cross), channels, -1), maps).reshape(len(cross), -1)


def pivots(matrix: torch.Tensor, count: int) -> torch.Tensor:
    """Rows (count,) of a Gram matrix (n, n), each the one that the rows before explain least: pivoted Cholesky."""
    left = matrix.diagonal().clone()
    rows: list[int] = []
    columns = torch.zeros(count, len(matrix), dtype=matrix.dtype)
    for at in range(count):
        left[rows] = -torch.inf
        row = int(left.argmax())
        rows.append(row)
        root = left[row].clamp_min(TINY).sqrt()
        columns[at] = (matrix[row] - columns[:at, row] @ columns[:at]) / root
        left = left - columns[at].square()
    return torch.tensor(rows)


LEAST_GAIN = 0.01
"""Minimum gain, as a share of the mean gain: a result that hardly counts still has a row."""

EPSILON = 1e-5


def norm_factors(norm: Node, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Factor (O,) by which a BatchNorm multiplies each channel, in float64."""
    scale, variance = (tensors[norm.inputs[at]].double().cpu() for at in (1, 4))
    return scale / (variance + norm.float("epsilon", EPSILON)).sqrt()


@dataclass(frozen=True, kw_only=True)
class ReplacedLayer:
    """A layer: its node and weight (O, I, *K).

    metric: of the patches (I · K, I · K) that it reads; first weights are fitted to the weight in this metric; None without
    data. gain: (O,) factors by which a following BatchNorm multiplies the results; None without a BatchNorm or without data.
    nonnegative: no number in a patch is below zero.
    """

    node: Node
    weight: torch.Tensor
    metric: torch.Tensor | None = None
    gain: torch.Tensor | None = None
    nonnegative: bool = False

    @property
    def matrix(self) -> torch.Tensor:
        """The weight (O, I · K) in float64."""
        return self.weight.double().flatten(1)

    @cached_property
    def gains(self) -> torch.Tensor:
        """The gain (O, 1) of each result, at least a small positive number; ones if no gain is given."""
        if self.gain is None:
            return torch.ones(len(self.weight), 1, dtype=torch.float64)
        return self.gain.double().clamp_min(LEAST_GAIN * float(self.gain.mean()) + TINY)[:, None]

    @cached_property
    def cross(self) -> torch.Tensor:
        """E[y xᵀ] (O, I · K) of its results and patches; the weight itself without data."""
        return self.matrix if self.metric is None else self.matrix @ self.metric

    @cached_property
    def outputs(self) -> LeftVectors:
        """The mixtures of its results, times their gains, with the most variance; without data, of the rows of its weight."""
        weighted = self.gains * self.matrix
        return LeftVectors(weighted if self.metric is None else weighted @ factor(self.metric))

    @cached_property
    def _inputs(self) -> tuple[torch.Tensor, LeftVectors]:
        assert self.metric is not None
        root = factor(over_channels(self.metric, self.weight.shape[1]))
        by_channel = (self.gains[:, None] * self.weight.double().flatten(2)).permute(1, 0, 2).flatten(1)
        return root, LeftVectors(root.T @ by_channel)

    def seen_channels(self, rank: int) -> torch.Tensor:
        """The uncorrelated mixtures (rank, I) of channels, of variance one, that the results depend on most. Needs data."""
        root, vectors = self._inputs
        return torch.linalg.solve_triangular(root.T, vectors(rank), upper=True).T

    def reordered(self, outputs: np.ndarray | None, inputs: np.ndarray | None) -> "ReplacedLayer":
        """The layer with the given channels in the given order; None: all, unchanged."""
        weight, metric, gain = self.weight, self.metric, self.gain
        if outputs is not None:
            weight = weight.index_select(0, torch.from_numpy(outputs))
            gain = None if gain is None else gain[torch.from_numpy(outputs)]
        if inputs is not None:
            weight = weight.index_select(1, torch.from_numpy(inputs))
            rows = self.numbers_of(torch.from_numpy(inputs))
            metric = None if metric is None else metric[rows][:, rows]
        return ReplacedLayer(node=self.node, weight=weight, metric=metric, gain=gain, nonnegative=self.nonnegative)

    def numbers_of(self, inputs: torch.Tensor) -> torch.Tensor:
        """Indices of the numbers in a patch that belong to the given input channels."""
        positions = self.weight[0, 0].numel()
        return (inputs[:, None] * positions + torch.arange(positions)).flatten()
