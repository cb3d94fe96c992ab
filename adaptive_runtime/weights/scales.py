"""BatchNorm scales and biases learned by gradients, and their folding into statistics for networks with fixed scales.

Legend: B batch, C channels, H height, W width, F channels of all BatchNorms of a SubNet, one after another.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from adaptive_runtime.base.weight_options import WeightOptions
from adaptive_runtime.weights.statistics import Array, NormStatistics

MOST_TIMES = 4.0
"""A learned scale is between a quarter and four times the source's, so that statistics can represent it."""
SMALLEST_SCALE = 1e-6
"""Channels with a scale closer to 0 keep scale and bias: they pass nothing of an image."""


class NormScales(NamedTuple):
    """Scale and bias (F,)."""

    scale_F: Array
    bias_F: Array

    @property
    def is_finite(self) -> bool:
        """Whether a network can run with these values."""
        return bool(np.isfinite(self.scale_F).all() and np.isfinite(self.bias_F).all())


class EntropyGradients(NamedTuple):
    """Gradients of the sum of weighted entropies of a batch by scales and biases (F,).

    counted: images with a weight above 0. statistics: of the batch.
    """

    statistics: NormStatistics
    by_scale_F: Array
    by_bias_F: Array
    counted: int


class EntropyNetwork(Protocol):
    """A differentiable SubNet: `adaptive_runtime.weights.gradients.DifferentiableNetwork`."""

    @property
    def scales(self) -> NormScales: ...

    @property
    def epsilon_F(self) -> Array: ...

    def entropy_gradients(
        self, x_BCHW: Array, scales: NormScales, source: NormStatistics, share: float, sure_share: float | None
    ) -> EntropyGradients: ...


class LearnedScales:
    """Scales and biases of a SubNet, trained by SGD with momentum to lower the entropy of its answers.

    Each scale keeps the source's sign, and its size stays within `MOST_TIMES`. load: creates the network, first for the
    source's scales, then whenever a step needs it. Source: Tent (Wang et al., ICLR 2021); with `WeightOptions.sure_share`
    images count as in EATA (Niu et al., ICML 2022).
    """

    def __init__(self, load: Callable[[], EntropyNetwork], options: WeightOptions) -> None:
        self._load, self._options = load, options
        network = load()
        self.source, self._epsilon_F = network.scales, network.epsilon_F.astype(np.float64)
        self._learns_F = np.abs(self.source.scale_F) >= SMALLEST_SCALE
        self.restore(None)

    def restore(self, scales: NormScales | None) -> None:
        """Set scales and biases, clipped to the allowed range; None: the source's. Momentum is reset."""
        self.release()
        self.now = self.source if scales is None else self._allowed(scales)
        self._momentum = NormScales(*(np.zeros_like(one) for one in self.source))

    def release(self) -> None:
        """Free the network until the next step."""
        self._network: EntropyNetwork | None = None

    def step(self, batches: Sequence[Array], source: NormStatistics, share: float) -> NormStatistics:
        """Make one step on batches (B, C, H, W) of equal size, and return their statistics before it.

        Each BatchNorm normalises by the batch with weight `share`, and by the source's statistics otherwise. If no image
        counts, nothing is learned.
        """
        if self._network is None:
            self._network = self._load()
        sure_share = self._options.sure_share
        found = [self._network.entropy_gradients(one, self.now, source, share, sure_share) for one in batches]
        counted = sum(one.counted for one in found)
        if counted:
            sums = np.sum([(one.by_scale_F, one.by_bias_F) for one in found], axis=0)
            self._descend(NormScales(*(sums / np.float32(counted))))
        return NormStatistics.joined([one.statistics for one in found])

    def _descend(self, gradient: NormScales) -> None:
        momentum, rate = np.float32(self._options.momentum), np.float32(self._options.learning_rate)
        moved = [momentum * before + now for before, now in zip(self._momentum, gradient, strict=True)]
        self._momentum = NormScales(*moved)
        self.now = self._allowed(NormScales(*(one - rate * by for one, by in zip(self.now, moved, strict=True))))

    def _allowed(self, scales: NormScales) -> NormScales:
        own_F = self.source.scale_F
        size_F = np.clip(scales.scale_F * np.sign(own_F), np.abs(own_F) / MOST_TIMES, np.abs(own_F) * MOST_TIMES)
        scale_F = (size_F * np.sign(own_F)).astype(np.float32)
        return NormScales(
            np.where(self._learns_F, scale_F, own_F), np.where(self._learns_F, scales.bias_F, self.source.bias_F)
        )

    def folded(self, statistics: NormStatistics) -> NormStatistics:
        """Statistics that make BatchNorms with the source's scales and biases compute the same as with the learned ones.

        γ(x − μ″)/√(v″ + ε) + β = γ′(x − μ)/√(v + ε) + β′ for v″ + ε = (γ/γ′)²(v + ε) and μ″ = μ + (β − β′)√(v + ε)/γ′. A
        variance may come out below 0, but not below −ε.
        """
        scale_F, bias_F = (one.astype(np.float64) for one in self.source)
        now_F, shift_F = (one.astype(np.float64) for one in self.now)
        changed_F = (now_F != scale_F) | (shift_F != bias_F)
        now_F[~changed_F] = 1.0  # may be 0, but is not used
        whole_F = statistics.variance_F + self._epsilon_F
        mean_F = statistics.mean_F + (bias_F - shift_F) * np.sqrt(whole_F) / now_F
        variance_F = np.square(scale_F / now_F) * whole_F - self._epsilon_F
        return NormStatistics(
            np.where(changed_F, mean_F, statistics.mean_F).astype(np.float32),
            np.where(changed_F, variance_F, statistics.variance_F).astype(np.float32),
        )
