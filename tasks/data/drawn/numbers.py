"""Random numbers that depend only on a seed and an image's index, for many images at once. Legend: B batch."""

from collections.abc import Iterator

import numpy as np
import torch

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
