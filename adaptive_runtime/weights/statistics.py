"""Statistics of BatchNorms: of images, of the source, mixtures, distances, and scales and biases learned by gradients.

A SubNet that also outputs the statistics of its BatchNorms' inputs shows how unusual images are for it. Learned scales
and biases are folded into statistics for networks with fixed scales.

Legend: B batch, N images, C channels, H height, W width, F channels of all BatchNorms of a SubNet, one after another,
or features of a layer (of all layers, in `directions_PF`), K classes, D statistics of an image, P directions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.weight_options import WeightOptions
from adaptive_runtime.bundle.bundles import AdaptableNet, AdaptableNorm
from adaptive_runtime.exits.decisions import Entropy

STATISTICS = ("features", "first features", "entropy", "distance")
SMALLEST_DEVIATION = 1e-6
MOST_DIRECTIONS = 8
"""With 32, drift of a small network on digits is noticed no sooner, and a bundle has four times as many numbers."""
RIDGE = 0.3
"""Added to the variance of standardised features in every direction."""


class UsualFeatures(NamedTuple):
    """Mean and deviation (F,) of each layer's features over training-like images, and how features vary together.

    directions_PF: principal directions of the standardised features of all layers, the most varying first. The length of a
    direction is the square root of the share that the distance leaves out along it, e / (e + ridge), with e its variance. None:
    the bundle is of an earlier version; the distance is not computed then.
    """

    means: tuple[Array, ...]
    deviations: tuple[Array, ...]
    directions_PF: Array | None

    @classmethod
    def of(cls, layers: Sequence[Array]) -> Self:
        """From the features (N, F) of each layer."""
        means = tuple(layer.mean(0) for layer in layers)
        deviations = tuple(np.maximum(layer.std(0, ddof=1), SMALLEST_DEVIATION) for layer in layers)
        standard = cls(means, deviations, None)._standardised(layers)
        _, singular, directions = np.linalg.svd(np.concatenate(standard, 1), full_matrices=False)
        variances = np.square(singular[:MOST_DIRECTIONS]) / (len(layers[0]) - 1)
        lengths = np.sqrt(variances / (variances + RIDGE)).astype(np.float32)
        return cls(means, deviations, lengths[:, None] * directions[:MOST_DIRECTIONS])

    def scores(self, layers: Sequence[Array], logits_BK: Array) -> NDArray[np.float64]:
        """Statistics (B, D) of images, from their features (B, F) by layer and their logits.

        The mean square of standardised features over all layers, the same over the first layer, the entropy of the answer as a
        share of the largest one, and the distance.

        Distance: the squared Mahalanobis distance over all features together, with a ridge covariance known by its first
        directions; multiplied by the ridge and divided by the number of features. It is large for usual features in an unusual
        combination. Source: Lee et al., NeurIPS 2018; the covariance is that of probabilistic principal components (Tipping and
        Bishop, Journal of the Royal Statistical Society B, 1999).
        """
        standard = self._standardised(layers)
        unusual = [np.square(layer).mean(1) for layer in standard]
        _, sureness_B, _ = Entropy().step(logits_BK, ())
        found = [np.stack(unusual).mean(0), unusual[0], 1 - sureness_B]
        if self.directions_PF is not None:
            z_BF = np.concatenate(standard, 1)
            left_out_B = np.square(z_BF @ self.directions_PF.T).sum(1)
            found.append((np.square(z_BF).sum(1) - left_out_B) / z_BF.shape[1])
        return np.stack(found, 1).astype(np.float64)

    def _standardised(self, layers: Sequence[Array]) -> list[Array]:
        """Features (B, F) of each layer, in deviations from the mean."""
        each = zip(layers, self.means, self.deviations, strict=True)
        return [(layer - mean) / deviation for layer, mean, deviation in each]


SMALLEST_VARIANCE = 1e-5
"""Added to variances in divisions: the epsilon of most BatchNorms."""


class NormStatistics(NamedTuple):
    """Mean and variance (F,)."""

    mean_F: Array
    variance_F: Array

    @classmethod
    def of_images(cls, means_BF: Array, variances_BF: Array) -> Self:
        """Statistics of a batch from those of its images.

        The variance is the mean of the variances plus the variance of the means.
        """
        mean_F = means_BF.mean(0)
        return cls(mean_F, (variances_BF + np.square(means_BF - mean_F)).mean(0))

    @classmethod
    def joined(cls, parts: Sequence["NormStatistics"]) -> Self:
        """Statistics of several batches of equal size together."""
        return cls.of_images(np.stack([one.mean_F for one in parts]), np.stack([one.variance_F for one in parts]))

    def towards(self, others: "NormStatistics", share: float) -> "NormStatistics":
        """Mean and variance moved towards others by a share.

        A share of n/(N+n) gives the mixture with a prior of N images (Schneider et al., NeurIPS 2020, §2).
        """
        of = np.float32(share)
        return NormStatistics(
            self.mean_F + of * (others.mean_F - self.mean_F),
            self.variance_F + of * (others.variance_F - self.variance_F),
        )

    def averaged(self, newest: "NormStatistics", share: float) -> "NormStatistics":
        """Average with a share of newer statistics, over mean and mean square.

        Differences between the means therefore add to the variance.
        """
        of = np.float32(share)
        squares = [one.variance_F + np.square(one.mean_F) for one in (self, newest)]
        mean_F = self.mean_F + of * (newest.mean_F - self.mean_F)
        square_F = squares[0] + of * (squares[1] - squares[0])
        return NormStatistics(mean_F, np.maximum(square_F - np.square(mean_F), 0))

    def distance(self, others: "NormStatistics") -> float:
        """Mean over channels of the squared Hellinger distance between both normal distributions, in [0, 1]."""
        own_F, theirs_F = (one.variance_F.astype(np.float64) + SMALLEST_VARIANCE for one in (self, others))
        both_F = own_F + theirs_F
        away_F = np.square(self.mean_F - others.mean_F, dtype=np.float64) / both_F
        return float((1 - np.sqrt(2 * np.sqrt(own_F * theirs_F) / both_F) * np.exp(-away_F / 4)).mean())

    @property
    def is_finite(self) -> bool:
        """Whether a network can run with these values."""
        return bool(
            np.isfinite(self.mean_F).all() and np.isfinite(self.variance_F).all() and (self.variance_F >= 0).all()
        )

    def by_name(self, norms: Sequence[AdaptableNorm]) -> Mapping[str, Array]:
        """The statistics as constants of the ONNX file."""
        found: dict[str, Array] = {}
        for norm, own in zip(norms, spans(norms), strict=True):
            found[norm.mean], found[norm.variance] = self.mean_F[own], self.variance_F[own]
        return found


def spans(norms: Sequence[AdaptableNorm]) -> list[slice]:
    """The slice of each norm's channels among the channels of all norms."""
    ends = np.cumsum([norm.channels for norm in norms]).tolist()
    return [slice(end - norm.channels, end) for end, norm in zip(ends, norms, strict=True)]


INPUTS, OUTPUTS = ("mean", "variance", "share"), ("means", "variances")
"""Additional inputs and outputs of the file, besides the network's own."""


class SeenImages(NamedTuple):
    """Logits (B, K) of images, and mean and variance (B, F) of each channel of each image."""

    logits_BK: Array
    means_BF: Array
    variances_BF: Array

    @property
    def statistics(self) -> NormStatistics:
        """Statistics of all images together."""
        return NormStatistics.of_images(self.means_BF, self.variances_BF)


class ObservedNetwork:
    """The file `AdaptableNet.file` in onnxruntime, which runs `images` images at once.

    load: creates the session when needed.
    """

    def __init__(self, load: Callable[[], Any], net: AdaptableNet) -> None:
        self.images = net.images
        self._load, self._spans = load, spans(net.norms)
        self._session: Any = None

    def release(self) -> None:
        """Free the session until it is needed again."""
        self._session = None

    def _run(self, x_BCHW: Array, statistics: NormStatistics, share: float) -> SeenImages:
        if self._session is None:
            self._session = self._load()
        taken, given = self._session.get_inputs()[0].name, self._session.get_outputs()[0].name
        fed = dict(zip((taken, *INPUTS), (x_BCHW, *statistics, np.array(share, np.float32)), strict=True))
        return SeenImages(*self._session.run([given, *OUTPUTS], fed))

    def look(self, x_BCHW: Array, statistics: NormStatistics) -> SeenImages:
        """Run any number of images with the given statistics; the last batch is filled up with its last image."""
        found = []
        for start in range(0, len(x_BCHW), self.images):
            part = x_BCHW[start : start + self.images]
            filled = np.concatenate([part, np.repeat(part[-1:], self.images - len(part), axis=0)])
            seen = self._run(filled, statistics, 0.0)
            found.append(SeenImages(*(value[: len(part)] for value in seen)))
        return SeenImages(*map(np.concatenate, zip(*found, strict=True)))

    def statistics(self, x_BCHW: Array, source: NormStatistics, share: float) -> NormStatistics:
        """Statistics of images; BatchNorms normalise by the batch's with weight `share`, and by the source's otherwise.

        More than `images` images are split into `batches`, whose statistics are joined.
        """
        return NormStatistics.joined([self._run(one, source, share).statistics for one in self.batches(x_BCHW)])

    def batches(self, x_BCHW: Array) -> list[Array]:
        """All full batches of `images` images; each batch has images of all parts."""
        count = len(x_BCHW) // self.images
        assert count, "a batch of images is there"
        return [x_BCHW[number::count][: self.images] for number in range(count)]

    def features(self, seen: SeenImages) -> list[Array]:
        """Mean and logarithm of the deviation (B, 2 · channels) of each BatchNorm's input."""
        logs_BF = np.log(np.maximum(np.sqrt(seen.variances_BF), np.float32(SMALLEST_DEVIATION)))
        return [np.concatenate([seen.means_BF[:, own], logs_BF[:, own]], 1) for own in self._spans]


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
