"""Images of unusual brightness or contrast are brought back to what is usual, each by itself.

Legend: N images, B of them at once, C channels, H height, W width, S pixels.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
DEVIATIONS = 1.0
"""How far light and contrast may be from what is usual, unless a bundle says otherwise."""
SMALLEST_DEVIATION = 1e-6


class ImageAlignment(NamedTuple):
    """Brings mean and deviation of each channel of an image to within `deviations` of what is usual.

    It computes what `tasks.adaptation.alignment.InputAlignment` does in torch, which says more. usual_4C: of the means of
    images like those of training, mean and deviation; of the logarithms of the images' deviations, mean and deviation. Images
    are normalised, and in the SubNet's size. An image within what is usual stays, bit by bit.
    """

    usual_4C: Array
    deviations: float

    @classmethod
    def of(cls, x_NCHW: Array, deviations: float = DEVIATIONS) -> Self:
        """Learned from images like those of training, two at least."""
        _, *light = _light(x_NCHW)
        each = [statistic for light_N1C in light for statistic in (light_N1C.mean(0), light_N1C.std(0, ddof=1))]
        return cls(np.stack(each)[..., 0], deviations)

    def __call__(self, x_BCHW: Array) -> Array:
        """The images, within what is usual."""
        mean_C1, mean_spread_C1, log_C1, log_spread_C1 = self.usual_4C[..., None]
        away_BCS, mean_BC1, log_BC1 = _light(x_BCHW)
        deviations = np.float32(self.deviations)
        lighter_BC1 = _beyond(mean_BC1 - mean_C1, deviations * mean_spread_C1)
        stronger_BC1 = _beyond(log_BC1 - log_C1, deviations * log_spread_C1)
        if not (lighter_BC1.any() or stronger_BC1.any()):
            return x_BCHW
        away_BCS *= np.expm1(-stronger_BC1)
        away_BCS -= lighter_BC1
        found_BCHW: Array = x_BCHW + away_BCS.reshape(x_BCHW.shape)
        return found_BCHW


def _light(x_BCHW: Array) -> tuple[Array, Array, Array]:
    """Differences from the mean (B, C, S) of each channel, this mean, and the logarithm of the deviation (B, C, 1)."""
    x_BCS = x_BCHW.reshape(*x_BCHW.shape[:2], -1)
    mean_BC1 = x_BCS.mean(2, keepdims=True)
    away_BCS = x_BCS - mean_BC1
    deviation_BC1 = np.sqrt(np.square(away_BCS).sum(2, keepdims=True) / np.float32(x_BCS.shape[2] - 1))
    return away_BCS, mean_BC1, np.log(np.maximum(deviation_BC1, np.float32(SMALLEST_DEVIATION)))


def _beyond(away: Array, slack: Array) -> Array:
    """What of a difference is beyond a slack, with its sign."""
    found: Array = np.sign(away) * np.maximum(np.abs(away) - slack, 0)
    return found
