"""Alignment of images of unusual brightness, contrast or sharpness, each by itself.

Legend: N images, B of them at once, C channels, H height, W width, S scales, U 2 + 2S.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
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
