"""Statistics of BatchNorms: of images, of the source, mixtures, and their distances.

Legend: B batch, F channels of all BatchNorms of a SubNet, one after another.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundle.bundles import AdaptableNorm

Array = NDArray[np.float32]
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
