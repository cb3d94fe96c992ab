"""How unusual images are for a network, by what its layers see.

Legend: B batch, N images, F features of a layer, K classes, D statistics of an image.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.exits.measures import Entropy

STATISTICS = ("features", "first features", "entropy")
SMALLEST_DEVIATION = 1e-6
Features = NDArray[np.float32]


class UsualFeatures(NamedTuple):
    """Mean and deviation (F,) of each layer's features over images like those of training."""

    means: tuple[Features, ...]
    deviations: tuple[Features, ...]

    @classmethod
    def of(cls, layers: Sequence[Features]) -> Self:
        """By the features (N, F) of each layer."""
        deviations = (np.maximum(layer.std(0, ddof=1), SMALLEST_DEVIATION) for layer in layers)
        return cls(tuple(layer.mean(0) for layer in layers), tuple(deviations))

    def scores(self, layers: Sequence[Features], logits_BK: Features) -> NDArray[np.float64]:
        """Statistics (B, D) of images with these features (B, F) by layer, and these answers.

        The mean square of standardised features over all layers, the same over the first layer, and the entropy of the answer
        as a share of the largest one.
        """
        unusual = [
            np.square((layer - mean) / deviation).mean(1)
            for layer, mean, deviation in zip(layers, self.means, self.deviations, strict=True)
        ]
        _, sureness_B, _ = Entropy().step(logits_BK, ())
        return np.stack([np.stack(unusual).mean(0), unusual[0], 1 - sureness_B], 1).astype(np.float64)
