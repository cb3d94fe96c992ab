"""Noise of drawn images. Legend: B batch, C channels, H height, W width."""

import numpy as np
import torch

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
