"""Corruptions of small images at severities 1 to 5; no image files are needed.

Legend: B batch, C channels (1 or 3), H height, W width; pixels in [0, 1]. Levels are those of CIFAR-10-C for images of 32
pixels (Hendrycks and Dietterich, ICLR 2019). Larger images look less corrupted by the same blur. The random numbers of an image
follow only from a seed and its place, so they do not depend on the batch size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tasks.data.drift.filters import box_resized, compressed, defocused, gaussian_blurred
from tasks.data.drift.plasma import plasma
from tasks.data.drift.settings import CorruptionName

Level = tuple[float, ...]
SEVERITIES = 5
CLEAN = 0
"""The severity of an unchanged image."""


class Draws:
    """Random numbers of a batch of images: one generator for each image, from the seed and its place."""

    def __init__(self, seed: int, places: Sequence[int]) -> None:
        self._generators = [np.random.default_rng((seed, int(place))) for place in places]

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Numbers (B, *shape), standard normal."""
        return self._stacked(lambda rng, _: rng.standard_normal(shape, dtype=np.float32))

    def uniform(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Numbers (B, *shape), uniform in [0, 1)."""
        return self._stacked(lambda rng, _: rng.random(shape, dtype=np.float32))

    def poisson(self, rate_BCHW: torch.Tensor) -> torch.Tensor:
        """Numbers (B, C, H, W), Poisson with these rates."""
        rates = rate_BCHW.double().numpy()
        return self._stacked(lambda rng, row: rng.poisson(rates[row]).astype(np.float32))

    def _stacked(self, draw: Callable[[np.random.Generator, int], np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.stack([draw(rng, row) for row, rng in enumerate(self._generators)]))


def gaussian_noise(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Add normal noise. level: (standard deviation,)."""
    return x_BCHW + level[0] * draws.normal(tuple(x_BCHW.shape[1:]))


def shot_noise(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Apply Poisson noise. level: (photons of a white pixel,)."""
    return draws.poisson(x_BCHW * level[0]) / level[0]


def impulse_noise(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Apply salt and pepper in equal parts. level: (share of the values,)."""
    u_BCHW = draws.uniform(tuple(x_BCHW.shape[1:]))
    peppered = torch.where(u_BCHW < level[0] / 2, 0.0, x_BCHW)
    return torch.where(u_BCHW >= 1 - level[0] / 2, 1.0, peppered)


def gaussian_blur(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Blur with a Gaussian. level: (standard deviation in pixels,)."""
    return gaussian_blurred(x_BCHW, level[0])


def defocus_blur(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Blur with a disc. level: (radius of the disc in pixels, standard deviation in pixels that smooths its rim)."""
    return defocused(x_BCHW, *level)


def fog(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Add plasma noise, and scale the image so that its brightest value stays. level: (amount, decay of the noise)."""
    amount, decay = level
    haze_BHW = plasma(lambda side: draws.uniform((side, side)), max(x_BCHW.shape[-2:]), decay)
    height, width = x_BCHW.shape[-2:]
    brightest = x_BCHW.amax((1, 2, 3), keepdim=True)
    return (x_BCHW + amount * haze_BHW[:, None, :height, :width]) * brightest / (brightest + amount)


def brightness(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Raise the value of HSV; hue and saturation stay. level: (amount,)."""
    value_B1HW = x_BCHW.amax(1, keepdim=True)
    raised = (value_B1HW + level[0]).clamp(max=1)
    return torch.where(value_B1HW > 0, x_BCHW * raised / value_B1HW.clamp(min=1e-12), raised)


def contrast(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Pull each channel towards its mean. level: (remaining share of the contrast,)."""
    mean = x_BCHW.mean((2, 3), keepdim=True)
    return mean + level[0] * (x_BCHW - mean)


def pixelate(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Reduce and restore the resolution. level: (remaining share of the pixels along each axis,)."""
    height, width = x_BCHW.shape[-2:]
    return box_resized(box_resized(x_BCHW, (int(height * level[0]), int(width * level[0]))), (height, width))


def jpeg(x_BCHW: torch.Tensor, level: Level, draws: Draws) -> torch.Tensor:
    """Compress as JPEG. level: (quality of the compression, 1 to 100,)."""
    return compressed(x_BCHW, int(level[0]))


@dataclass(frozen=True, slots=True)
class Corruption:
    """A corruption. levels: for severities 1 to 5."""

    apply: Callable[[torch.Tensor, Level, Draws], torch.Tensor]
    levels: tuple[Level, ...]


def _each(*levels: float) -> tuple[Level, ...]:
    return tuple((level,) for level in levels)


CORRUPTIONS: dict[CorruptionName, Corruption] = {
    "gaussian_noise": Corruption(gaussian_noise, _each(0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": Corruption(shot_noise, _each(500, 250, 100, 75, 50)),
    "impulse_noise": Corruption(impulse_noise, _each(0.01, 0.02, 0.03, 0.05, 0.07)),
    "gaussian_blur": Corruption(gaussian_blur, _each(0.4, 0.6, 0.7, 0.8, 1)),
    "defocus_blur": Corruption(defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "fog": Corruption(fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": Corruption(brightness, _each(0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption(contrast, _each(0.75, 0.5, 0.4, 0.3, 0.15)),
    "pixelate": Corruption(pixelate, _each(0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg": Corruption(jpeg, _each(80, 65, 58, 50, 40)),
}


def corrupt(
    x_BCHW: torch.Tensor, name: CorruptionName, severity: int, *, seed: int, places: Sequence[int]
) -> torch.Tensor:
    """The corrupted images, in [0, 1]; unchanged at severity 0. places: of each image in its stream (B,)."""
    if severity == CLEAN:
        return x_BCHW
    found = CORRUPTIONS[name]
    return found.apply(x_BCHW, found.levels[severity - 1], Draws(seed, places)).clamp(0, 1)
