"""Alignment of images: light, contrast and details go to usual values, image by image, without batches or steps.

A decision says whether images of unusual brightness, contrast or sharpness are aligned. In an onnxruntime session,
weights and alignment are one value, so each run uses both or neither.

Legend: N images, B of them at once, C channels, H height, W width, K classes, D statistics of an image, S scales, U 2 +
2S.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from adaptive_runtime.base.arrays import Array, Values
from adaptive_runtime.base.weight_options import GuardSettings

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

    look: Callable[[Array], tuple[Array, Values]]
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

    def remember(self, x_BCHW: Array, score_BD: Values) -> None:
        """Remember incoming images, drifting or not, and the source's statistics for them."""
        seen = zip(x_BCHW[-self._remembered :], score_BD[-self._remembered :], strict=True)
        self._recent.extend(_Seen(x_CHW.copy(), float(score_D[0])) for x_CHW, score_D in seen)

    def end(self) -> None:
        """End alignment after drift."""
        self.aligns = False
        self._unusual.clear()

    def decide(self, x_BCHW: Array, score_BD: Values) -> tuple[Array, str | None]:
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


DEVIATIONS = 1.0
"""Default for the allowed distance of light, contrast and details from the usual values, in deviations."""
SMALLEST_DEVIATION = 1e-6
HIGH, WIDE = 2, 3
"""Axes of images."""


class ImageAlignment(NamedTuple):
    """Moves mean, contrast and details of each channel of an image to within `deviations` of the usual values.

    It computes the same as `tailor_ir.InputAlignment` in torch, whose docstring has the details. usual_UC: mean and deviation
    of the means of training-like images; mean and deviation of the log-deviations of their details; the same of the coarser
    part. Images are normalised and in the SubNet's size. An image within the usual range stays identical, bit by bit.
    """

    usual_UC: Array
    deviations: float

    @classmethod
    def of(cls, x_NCHW: Array, deviations: float = DEVIATIONS) -> Self:
        """Learn the usual values from training-like images, at least two."""
        mean_NC11, *scales = _light(x_NCHW)
        each_NC11 = (mean_NC11, *map(_log, scales))
        usual = [statistic for one in each_NC11 for statistic in (one.mean(0), one.std(0, ddof=1))]
        return cls(np.stack(usual)[..., 0, 0], deviations)

    def __call__(self, x_BCHW: Array) -> Array:
        """The images, moved into the usual range."""
        usual_UC11 = self.usual_UC[..., None, None]
        mean_BC11, *scales = _light(x_BCHW)
        change = -self._beyond(mean_BC11, *usual_UC11[:2])
        changes = [self._beyond(_log(one), *usual_UC11[at : at + 2]) for one, at in zip(scales, (2, 4), strict=True)]
        if not (change.any() or any(one.any() for one in changes)):
            return x_BCHW
        for scale_BCHW, stronger_BC11 in zip(scales, changes, strict=True):
            scale_BCHW *= np.expm1(-stronger_BC11)
            change = scale_BCHW + change
        found_BCHW: Array = x_BCHW + change
        return found_BCHW

    def _beyond(self, value: Array, usual: Array, spread: Array) -> Array:
        """The part of a difference that exceeds the allowed distance, with its sign."""
        away, slack = value - usual, np.float32(self.deviations) * spread
        found: Array = np.sign(away) * np.maximum(np.abs(away) - slack, 0)
        return found


def _light(x_BCHW: Array) -> tuple[Array, Array, Array]:
    """Means (B, C, 1, 1) of channels, details (B, C, H, W), and the coarser part without its mean (B, C, H, W)."""
    mean_BC11: Array = x_BCHW.mean((HIGH, WIDE), keepdims=True)
    coarse_BCHW = _smoothed(_smoothed(x_BCHW, HIGH), WIDE)
    details_BCHW = x_BCHW - coarse_BCHW
    coarse_BCHW -= mean_BC11
    return mean_BC11, details_BCHW, coarse_BCHW


def _smoothed(x_BCHW: Array, axis: int) -> Array:
    """Mean of each pixel and its neighbours along an axis; pixels at the border have one neighbour."""
    x_AB = np.moveaxis(x_BCHW, axis, 0)
    total = x_AB.copy("K")  # in the order of memory, not of the axes
    total[1:] += x_AB[:-1]
    total[:-1] += x_AB[1:]
    counts = np.full(len(total), 3, np.float32)
    counts[0] -= 1
    counts[-1] -= 1
    total /= counts.reshape(-1, *(1,) * (total.ndim - 1))
    return np.moveaxis(total, 0, axis)


def _log(scale_BCHW: Array) -> Array:
    """Log-deviation of each channel (B, C, 1, 1) whose mean is about zero."""
    pixels = scale_BCHW.shape[HIGH] * scale_BCHW.shape[WIDE]
    square_BC11 = np.square(scale_BCHW).sum((HIGH, WIDE), keepdims=True) / np.float32(pixels - 1)
    found: Array = np.log(np.maximum(np.sqrt(square_BC11), np.float32(SMALLEST_DEVIATION)))
    return found


class AlignedSession:
    """A session with one input, for chains (`adaptive_runtime.bundle.chains.runs`); each image is aligned first."""

    def __init__(self, session: Any, alignment: ImageAlignment) -> None:
        self.session, self.alignment = session, alignment

    def io_binding(self) -> "AlignedBinding":
        """A binding for one run."""
        return AlignedBinding(self.session.io_binding(), self.alignment)

    def run_with_iobinding(self, bound: "AlignedBinding") -> None:
        """Run with images that were aligned when they were bound."""
        self.session.run_with_iobinding(bound.binding)


class AlignedBinding:
    """Inputs and outputs of one run."""

    def __init__(self, binding: Any, alignment: ImageAlignment) -> None:
        self.binding, self._alignment = binding, alignment
        self._aligned: Any = None  # keeps the memory alive that the runtime reads

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        """Align and bind images (B, C, H, W)."""
        self._aligned = type(value).ortvalue_from_numpy(self._alignment(value.numpy()))
        self.binding.bind_ortvalue_input(name, self._aligned)

    def bind_output(self, name: str) -> None:
        """Bind an output by its name."""
        self.binding.bind_output(name)

    def get_outputs(self) -> Sequence[Any]:
        """The outputs after the run."""
        found: Sequence[Any] = self.binding.get_outputs()
        return found
