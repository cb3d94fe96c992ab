"""A SubNet that also outputs the statistics of its BatchNorms' inputs.

Legend: B batch, C channels, H height, W width, K classes, F channels of all BatchNorms.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from adaptive_runtime.bundle.bundles import AdaptableNet
from adaptive_runtime.weights.profile import SMALLEST_DEVIATION
from adaptive_runtime.weights.statistics import Array, NormStatistics, spans

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
