"""Random numbers that depend on a seed and an image's index only, for many images at once. Legend: B batch."""

from collections.abc import Iterator

import numpy as np
import torch

MOST = 48
"""Random numbers that an image can be made from."""


class Numbers:
    """Random numbers of each image, one after another; at most `most`, on which all of them depend."""

    def __init__(self, seed: int, indices_B: np.ndarray, most: int = MOST) -> None:
        self._rows: Iterator[torch.Tensor] = iter(torch.from_numpy(uniforms(seed, indices_B, most)))

    def between(self, low: float, high: float) -> torch.Tensor:
        """(B,) float32 in [low, high)."""
        return next(self._rows) * (high - low) + low

    def below(self, count: int) -> torch.Tensor:
        """(B,) int64 in [0, count)."""
        return (next(self._rows) * count).long().clamp_(max=count - 1)


def uniforms(seed: int, indices_B: np.ndarray, count: int) -> np.ndarray:
    """(count, B) float32 in [0, 1) that depend on seed and index only. Source: SplitMix64 (Steele et al., OOPSLA 2014)."""
    start = _scrambled(np.array([seed], dtype=np.uint64))
    number = indices_B.astype(np.uint64) * np.uint64(count) + np.arange(1, count + 1, dtype=np.uint64)[:, None]
    bits = _scrambled(start + number * np.uint64(0x9E3779B97F4A7C15))
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def _scrambled(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
