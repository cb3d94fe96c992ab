"""Adapting statistics of one SubNet, optionally with scales and biases learned by gradients, without labels.

Legend: A labelled source images, B batch, C channels, H height, W width, K classes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.weight_options import WeightOptions
from adaptive_runtime.weights.aligning import ImageAlignment
from adaptive_runtime.weights.judging import AdaptedVerdict, AnchorGap, confidence, judged
from adaptive_runtime.weights.network import ObservedNetwork, SeenImages
from adaptive_runtime.weights.scales import LearnedScales, NormScales
from adaptive_runtime.weights.statistics import Array, NormStatistics


class LabelledSource(NamedTuple):
    """Images (A, C, H, W) like those of training, in the SubNet's size, and their labels (A,)."""

    x_ACHW: Array
    label_A: NDArray[np.int64]


class StatisticsWeights:
    """Statistics of a SubNet's BatchNorms that follow the images when `DriftGuard` says so.

    learned: scales and biases that change in each step, too; None: they stay the source's. anchor: reads labelled source images
    when they are needed. alignment: of images, while it is switched on; None: never. example: an image (1, C, H, W) of the
    latest verdict, aligned if alignment was on, and the adapted logits (1, K) for it; before the first verdict those of the
    source.

    A step takes the statistics of images, with each BatchNorm normalising by them, mixed with the source's by a prior of
    `prior_images` images; steps are averaged. One step on one batch equals the method `batchnorm` of `tasks.adaptation`; with
    `learned` it equals `tent`.
    """

    def __init__(
        self,
        network: ObservedNetwork,
        source: NormStatistics,
        anchor: Callable[[], LabelledSource],
        options: WeightOptions,
        learned: LearnedScales | None = None,
        alignment: ImageAlignment | None = None,
    ) -> None:
        self.network, self.source, self.options, self._anchor = network, source, options, anchor
        self._learned, self.alignment = learned, alignment
        self._usual = self._gap(source)
        x_ACHW, _ = anchor()
        self.example = self._example(x_ACHW, self.network.look(x_ACHW[:1], source))
        self.reset()

    @property
    def fewest(self) -> int:
        """Minimum number of images of a step and of a verdict."""
        return self.network.images

    def reset(self, *, aligns: bool = False) -> None:
        """Return to the source. aligns: images are aligned from now on."""
        self.restore(self.source, 0, aligns=aligns)

    def restore(
        self, statistics: NormStatistics, steps: int, scales: NormScales | None = None, *, aligns: bool = False
    ) -> None:
        """Set statistics that come from so many steps, and learned scales and biases. None: the source's."""
        self.statistics, self.steps, self._aligns = statistics, steps, aligns
        if self._learned is not None:
            self._learned.restore(scales)

    @property
    def scales(self) -> NormScales | None:
        """Current scales and biases; None: they stay the source's."""
        return None if self._learned is None else self._learned.now

    @property
    def folded(self) -> NormStatistics:
        """Statistics with which the bundle's weights compute the adapted answers."""
        return self._folded(self.statistics)

    def release(self) -> None:
        """Free the memory for observing until the next images come."""
        self.network.release()
        if self._learned is not None:
            self._learned.release()

    def _folded(self, statistics: NormStatistics) -> NormStatistics:
        """The same for other statistics, with the current scales and biases."""
        return statistics if self._learned is None else self._learned.folded(statistics)

    def adapt(self, x_BCHW: Array) -> None:
        """Make one step on images, at least `fewest`."""
        x_BCHW = self.given(x_BCHW)
        share = self.network.images / (self.network.images + self.options.prior_images)
        if self._learned is None:
            found = self.network.statistics(x_BCHW, self.source, share)
        else:
            found = self._learned.step(self.network.batches(x_BCHW), self.source, share)
        newest = max(self.options.newest_share, 1 / (self.steps + 1))
        self.statistics = self.statistics.averaged(self.source.towards(found, share), newest)
        self.steps += 1

    def look(self, x_BCHW: Array) -> SeenImages:
        """Run images through the SubNet in its current adaptation."""
        return self.network.look(self.given(x_BCHW), self.folded)

    def answers(self, x_BCHW: Array) -> Array:
        """Logits (B, K) for images."""
        return self.look(x_BCHW).logits_BK

    def given(self, x_BCHW: Array) -> Array:
        """Images in the form that the SubNet gets: aligned or unchanged."""
        return self.alignment(x_BCHW) if self._aligns and self.alignment is not None else x_BCHW

    def verdict(self, x_BCHW: Array, source_BK: Array) -> AdaptedVerdict:
        """Whether the adaptation is better on holdout images than the source, which gets the same images.

        First condition: the BatchNorms' inputs on these images are closer to the adapted statistics than they are, with the
        source, to the source's (`NormStatistics.distance`). The adapted statistics then fit the images as the source's fit the
        source images, and the source's fit the images as badly as the adapted ones fit the source images. The adapted network's
        expected excess of accuracy over confidence is therefore that of the source's statistics on labelled source images, and
        the source's is that of the adapted statistics there. Learned scales and biases, which increase confidence, are combined
        with the source's statistics there; they may lose `GuardSettings.anchor_points` of accuracy.
        """
        if not self.statistics.is_finite or not (self.scales is None or self.scales.is_finite):
            return AdaptedVerdict(False, "adapted weights are no finite numbers", 0.0, 0.0)
        x_BCHW = self.given(x_BCHW)
        seen, usual = (self.network.look(x_BCHW, one) for one in (self.folded, self.source))
        self.example = self._example(x_BCHW, seen)
        away, usually_away = seen.statistics.distance(self.statistics), usual.statistics.distance(self.source)
        if not away < usually_away:
            reason = (
                f"held-back images are {away:.2g} away from adapted statistics, {usually_away:.2g} from the source's"
            )
            return AdaptedVerdict(False, reason, confidence(source_BK), confidence(seen.logits_BK))
        fitting = self._usual if self._learned is None else self._gap(self._folded(self.source))
        lost_points = 100 * (self._usual.accuracy - fitting.accuracy)
        lost_points = lost_points if lost_points > self.options.guard.anchor_points else 0.0
        return judged(source_BK, self._gap(self.statistics).above, seen.logits_BK, fitting.above, lost_points)

    @staticmethod
    def _example(x_BCHW: Array, seen: SeenImages) -> tuple[Array, Array]:
        return x_BCHW[:1].copy(), seen.logits_BK[:1]

    def lost_by_alignment(self) -> float:
        """Points of accuracy on labelled source images that the source loses by aligning them."""
        return 100 * (self._usual.accuracy - self._gap(self.source, aligned=True).accuracy)

    def _gap(self, statistics: NormStatistics, *, aligned: bool = False) -> AnchorGap:
        """The gap on labelled source images, aligned or unchanged."""
        x_ACHW, label_A = self._anchor()
        if aligned and self.alignment is not None:
            x_ACHW = self.alignment(x_ACHW)
        return AnchorGap.of(self.network.look(x_ACHW, statistics).logits_BK, label_A)
