"""The statistics of one SubNet that adapt, and with them scales and biases that gradients change, without labels.

Legend: A labelled source images, B batch, C channels, H height, W width, K classes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.adapting_weights.aligning import ImageAlignment
from adaptive_runtime.adapting_weights.judging import AdaptedVerdict, AnchorGap, confidence, judged
from adaptive_runtime.adapting_weights.network import ObservedNetwork, SeenImages
from adaptive_runtime.adapting_weights.scales import LearnedScales, NormScales
from adaptive_runtime.adapting_weights.settings import WeightOptions
from adaptive_runtime.adapting_weights.statistics import Array, NormStatistics


class LabelledSource(NamedTuple):
    """Images (A, C, H, W) like those of training, in the SubNet's size, and their labels (A,)."""

    x_ACHW: Array
    label_A: NDArray[np.int64]


class StatisticsWeights:
    """Statistics of a SubNet's BatchNorms that follow the images. `DriftGuard` says when.

    learned: scales and biases that change in each step, too; None: they stay the source's. anchor: labelled source images, read
    when they are needed. alignment: of images, while it is asked for; None: they are never aligned. example: an image
    (1, C, H, W) of the latest verdict, aligned where it was, and the adapted logits (1, K) for it; before, those of the source.

    A step takes the statistics of images, where each BatchNorm normalises by them, mixed with the source's as by a prior of so
    many images; steps are averaged. One step to a batch is that of `tasks.adaptation` by the method `batchnorm`; with `learned`
    it is that of `tent`.
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
        """Images of a step, and of a verdict, at least."""
        return self.network.images

    def reset(self, *, aligns: bool = False) -> None:
        """Back to the source. aligns: images are aligned from now on."""
        self.restore(self.source, 0, aligns=aligns)

    def restore(
        self, statistics: NormStatistics, steps: int, scales: NormScales | None = None, *, aligns: bool = False
    ) -> None:
        """Take statistics, and where they are learned scales and biases, that come from so many steps. None: the source's."""
        self.statistics, self.steps, self._aligns = statistics, steps, aligns
        if self._learned is not None:
            self._learned.restore(scales)

    @property
    def scales(self) -> NormScales | None:
        """Scales and biases as they are now; None: they are the source's, and stay so."""
        return None if self._learned is None else self._learned.now

    @property
    def folded(self) -> NormStatistics:
        """Statistics with which the bundle's weights compute what was adapted."""
        return self._folded(self.statistics)

    def release(self) -> None:
        """Free what looks at images, until the next ones come."""
        self.network.release()
        if self._learned is not None:
            self._learned.release()

    def _folded(self, statistics: NormStatistics) -> NormStatistics:
        """The same for other statistics, with the scales and biases as they are now."""
        return statistics if self._learned is None else self._learned.folded(statistics)

    def adapt(self, x_BCHW: Array) -> None:
        """One step to images, `fewest` at least."""
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
        """Images as the SubNet sees them, adapted as it is now."""
        return self.network.look(self.given(x_BCHW), self.folded)

    def answers(self, x_BCHW: Array) -> Array:
        """Logits (B, K) for images."""
        return self.look(x_BCHW).logits_BK

    def given(self, x_BCHW: Array) -> Array:
        """Images as the SubNet gets them: aligned, or as they come."""
        return self.alignment(x_BCHW) if self._aligns and self.alignment is not None else x_BCHW

    def verdict(self, x_BCHW: Array, source_BK: Array) -> AdaptedVerdict:
        """Whether what was adapted is better for held-back images than the source, which gets them as this does.

        First, what BatchNorms read of these images is nearer to the statistics that normalise it than with the source
        (`NormStatistics.distance`). The adapted statistics then fit the images as the source's fit the source images, and the
        source's fit the images as badly as the adapted ones fit the source images. So of each, accuracy is expected to be above
        confidence by as much as it is on labelled source images: there with the source's statistics, or with the adapted ones.
        Learned scales and biases, which make confidence larger, are with the source's statistics there; they may lose
        `GuardSettings.anchor_points` of accuracy.
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
        """Points of accuracy on labelled source images that the source loses once these are aligned."""
        return 100 * (self._usual.accuracy - self._gap(self.source, aligned=True).accuracy)

    def _gap(self, statistics: NormStatistics, *, aligned: bool = False) -> AnchorGap:
        """On labelled source images, aligned or as they are."""
        x_ACHW, label_A = self._anchor()
        if aligned and self.alignment is not None:
            x_ACHW = self.alignment(x_ACHW)
        return AnchorGap.of(self.network.look(x_ACHW, statistics).logits_BK, label_A)
