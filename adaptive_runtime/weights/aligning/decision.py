"""The decision whether images are aligned.

Legend: B batch, C channels, H height, W width, K classes, D statistics of an image.
"""

from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.weight_options import GuardSettings

Array = NDArray[np.float32]
ImageScores = NDArray[np.float64]
MORE_USUAL, MUCH_MORE_USUAL = 0.9, 0.25
"""Alignment starts when the aligned features are less unusual than this share of the unaligned ones, and ends a ninth above it.

The second value applies if alignment costs accuracy: light, contrast or details then distinguish classes, and any image that is
moved closer to the others has more usual features.
"""


class AlignedView(NamedTuple):
    """The source's view of aligned images.

    look: logits (B, K) and statistics (B, D) of images (B, C, H, W) after alignment. lost_points: points of accuracy on
    labelled source images that alignment costs.
    """

    look: Callable[[Array], tuple[Array, ImageScores]]
    lost_points: Callable[[], float]


class _Seen(NamedTuple):
    """An image and the unusualness of its features."""

    x_CHW: Array
    unusual: float


class AlignmentDecision:
    """Aligns drifting images while that makes their features more usual, judged first by the images just before the alarm.

    The knowledge at the alarm is therefore enough, and nothing has to be learned. `aligns`: whether images are aligned now.
    """

    def __init__(self, view: AlignedView, settings: GuardSettings) -> None:
        self._view, self.aligns = view, False
        self._tolerated_points, self._remembered = settings.anchor_points, settings.judged_from
        self._recent: deque[_Seen] = deque(maxlen=self._remembered)
        self._unusual: deque[tuple[float, float]] = deque(maxlen=settings.held_back_images)

    def remember(self, x_BCHW: Array, score_BD: ImageScores) -> None:
        """Remember incoming images, drifting or not, and the source's statistics for them."""
        seen = zip(x_BCHW[-self._remembered :], score_BD[-self._remembered :], strict=True)
        self._recent.extend(_Seen(x_CHW.copy(), float(score_D[0])) for x_CHW, score_D in seen)

    def end(self) -> None:
        """End alignment after drift."""
        self.aligns = False
        self._unusual.clear()

    def decide(self, x_BCHW: Array, score_BD: ImageScores) -> tuple[Array, str | None]:
        """For drifting images that were remembered: the source's logits after alignment, and why `aligns` changed.

        None: it did not change.
        """
        if not self._unusual:
            _, scores = self._view.look(np.stack([seen.x_CHW for seen in self._recent]))
            self._unusual.extend(
                (seen.unusual, float(score_D[0])) for seen, score_D in zip(self._recent, scores, strict=True)
            )
        aligned_BK, aligned_BD = self._view.look(x_BCHW)
        self._unusual.extend(zip(score_BD[:, 0].tolist(), aligned_BD[:, 0].tolist(), strict=True))
        plain, aligned = (sum(values) / len(values) for values in zip(*self._unusual, strict=True))
        most = self._most
        if (aligned >= most / MORE_USUAL * plain) if self.aligns else (aligned < most * plain):
            self.aligns = not self.aligns
            reason = f"features are {aligned:.1f} times as unusual as usual in aligned images, {plain:.1f} as they come"
            return aligned_BK, reason
        return aligned_BK, None

    @cached_property
    def _most(self) -> float:
        """The ratio of aligned to unaligned unusualness at which images are aligned; determined at the first alarm."""
        return MORE_USUAL if self._view.lost_points() <= self._tolerated_points else MUCH_MORE_USUAL
