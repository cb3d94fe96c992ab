"""A layer that alternatives replace, with moments of its data; results that several alternatives need are computed once.

Legend: O output channels, I input channels, K positions of a kernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from tailor_ir.alternatives.least_squares.regression import TINY, LeftVectors, factor, over_channels
from tailor_ir.graph import Node

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
