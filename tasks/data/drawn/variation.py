"""Variation of drawn images: random numbers by seed and image index, noise, and squares moved into images.

Random numbers depend only on a seed and an image's index, and come for many images at once. Squares are moved, turned,
scaled and sheared. Positions in an image go from -1 to 1.

Legend: B batch, C channels, H height, W width, M side of a square.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

MOST = 48
"""Limit of random numbers per image."""


class Numbers:
    """Random numbers of each image, one after another; at most `most`, which all numbers depend on."""

    def __init__(self, seed: int, indices_B: np.ndarray, most: int = MOST) -> None:
        self._rows: Iterator[torch.Tensor] = iter(torch.from_numpy(uniforms(seed, indices_B, most)))

    def between(self, low: float, high: float) -> torch.Tensor:
        """Numbers (B,) float32 in [low, high)."""
        return next(self._rows) * (high - low) + low

    def below(self, count: int) -> torch.Tensor:
        """Numbers (B,) int64 in [0, count)."""
        return (next(self._rows) * count).long().clamp_(max=count - 1)


def uniforms(seed: int, indices_B: np.ndarray, count: int) -> np.ndarray:
    """Numbers (count, B) float32 in [0, 1), from seed and index only. Source: SplitMix64 (Steele et al., OOPSLA 2014)."""
    start = _scrambled(np.array([seed], dtype=np.uint64))
    number = indices_B.astype(np.uint64) * np.uint64(count) + np.arange(1, count + 1, dtype=np.uint64)[:, None]
    bits = _scrambled(start + number * np.uint64(0x9E3779B97F4A7C15))
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def _scrambled(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


OFFSETS = 2**16


class Grain:
    """Normally distributed noise: stretches of a long tape."""

    def __init__(self, rng: np.random.Generator, channels: int, size: int) -> None:
        pixels = channels * size**2
        tape = torch.from_numpy(rng.standard_normal(pixels + OFFSETS, dtype=np.float32))
        self._stretches = tape.unfold(0, pixels, 1)
        self._shape = (channels, size, size)

    def stretches(self, start_B: torch.Tensor) -> torch.Tensor:
        """Stretches of the tape (B, C, H, W); the fraction of `start_B` is the place where each one starts."""
        return self._stretches[(start_B % 1 * OFFSETS).long()].view(-1, *self._shape)


class Placing(NamedTuple):
    """The transform of a square: scaled, sheared, turned, then moved. All (B,)."""

    half_width: torch.Tensor
    half_height: torch.Tensor
    shear: torch.Tensor
    angle: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor


def placed(squares_B1MM: torch.Tensor, placing: Placing, size: int, padding: str = "zeros") -> torch.Tensor:
    """Images (B, 1, H, W) with sides of `size` pixels and the squares at the places of `placing`."""
    cosine, sine, shear = placing.angle.cos(), placing.angle.sin(), placing.shear
    axis = centres(size)
    x_BW, y_BH = axis - rows(placing.x), axis - rows(placing.y)
    grid_BHW2 = torch.empty(len(x_BW), size, size, 2)
    for place, (along_x, along_y, half) in enumerate(
        ((cosine + shear * sine, sine - shear * cosine, placing.half_width), (-sine, cosine, placing.half_height))
    ):
        outer_sum(rows(along_x / half) * x_BW, rows(along_y / half) * y_BH, out=grid_BHW2[..., place])
    return functional.grid_sample(squares_B1MM, grid_BHW2, padding_mode=padding, align_corners=False)


def centres(size: int) -> torch.Tensor:
    """Positions of the centres of pixels, (size,)."""
    return (torch.arange(size) * 2 + 1) / size - 1


def outer_sum(along_x_BW: torch.Tensor, along_y_BH: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Sums (B, H, W) of a value along x and a value along y."""
    return torch.add(along_x_BW[:, None, :], along_y_BH[:, :, None], out=out)


def rows(value_B: torch.Tensor) -> torch.Tensor:
    """A column (B, 1)."""
    return value_B[:, None]


def per_image(value_B: torch.Tensor) -> torch.Tensor:
    """A value for each image, (B, 1, 1, 1)."""
    return value_B[:, None, None, None]
