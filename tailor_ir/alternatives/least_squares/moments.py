"""Moments of the inputs of layers, to which first weights of alternatives are fitted, instead of to weights alone.

Legend: B batch, I input channels, O output channels, K positions of a kernel, N patches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
