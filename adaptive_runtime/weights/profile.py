"""How unusual images are for a network, measured on the inputs of its layers.

Legend: B batch, N images, F features of a layer (of all layers, in `directions_PF`), K classes, D statistics of an image, P
directions.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.exits.measures import Entropy

STATISTICS = ("features", "first features", "entropy", "distance")
SMALLEST_DEVIATION = 1e-6
MOST_DIRECTIONS = 8
"""With 32, drift of a small network on digits is noticed no sooner, and a bundle has four times as many numbers."""
RIDGE = 0.3
"""Added to the variance of standardised features in every direction."""
Features = NDArray[np.float32]


class UsualFeatures(NamedTuple):
    """Mean and deviation (F,) of each layer's features over training-like images, and how features vary together.

    directions_PF: principal directions of the standardised features of all layers, the most varying first. The length of a
    direction is the square root of the share that the distance leaves out along it, e / (e + ridge), with e its variance. None:
    the bundle is of an earlier version; the distance is not computed then.
    """

    means: tuple[Features, ...]
    deviations: tuple[Features, ...]
    directions_PF: Features | None

    @classmethod
    def of(cls, layers: Sequence[Features]) -> Self:
        """From the features (N, F) of each layer."""
        means = tuple(layer.mean(0) for layer in layers)
        deviations = tuple(np.maximum(layer.std(0, ddof=1), SMALLEST_DEVIATION) for layer in layers)
        standard = cls(means, deviations, None)._standardised(layers)
        _, singular, directions = np.linalg.svd(np.concatenate(standard, 1), full_matrices=False)
        variances = np.square(singular[:MOST_DIRECTIONS]) / (len(layers[0]) - 1)
        lengths = np.sqrt(variances / (variances + RIDGE)).astype(np.float32)
        return cls(means, deviations, lengths[:, None] * directions[:MOST_DIRECTIONS])

    def scores(self, layers: Sequence[Features], logits_BK: Features) -> NDArray[np.float64]:
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

    def _standardised(self, layers: Sequence[Features]) -> list[Features]:
        """Features (B, F) of each layer, in deviations from the mean."""
        each = zip(layers, self.means, self.deviations, strict=True)
        return [(layer - mean) / deviation for layer, mean, deviation in each]
