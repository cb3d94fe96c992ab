"""Pairs of images of glyphs, for restoration: with and without noise, or small and large.

Everything about pair number i follows from the seed and i. Legend: B batch, C channels, H height, W width.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from tasks.data.drawn.glyphs import Glyphs
from tasks.data.problems.restoration import CHANNELS
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits

DrawPairs = Callable[[np.ndarray, np.ndarray | None], tuple[torch.Tensor, torch.Tensor]]
"""Function from indices and draws to images and targets, (B, C, H, W) in [0, 1]; draws move the character and change the
noise.
"""
Opened = tuple["GlyphPairs", dict[str, np.ndarray]]


class GlyphPairs:
    """Pairs of images; each split has the same characters. `class_names` are those of the output channels of networks."""

    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, glyphs: Glyphs, pairs: DrawPairs) -> None:
        self.labels, self.scaling = glyphs.labels, glyphs.scaling
        self.class_names = CHANNELS[settings.channels]
        self.pairs = pairs

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since every image is drawn on its own."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Images without their targets."""
        return self.pairs(indices, draws)[0]


def open_noisy_glyphs(settings: DataSettings) -> Opened:
    """Images with and without noise; splits by shares. UserError: too few images to have each character in all splits."""
    glyphs = Glyphs(settings)
    return _opened(settings, glyphs, glyphs.pairs)


def open_small_glyphs(settings: DataSettings) -> Opened:
    """Images whose pixels are means of squares of their targets; splits by shares. UserError: as `open_noisy_glyphs`."""
    glyphs = Glyphs(settings.model_copy(update={"resolution": settings.upscale * settings.resolution}))

    def pairs(indices: np.ndarray, draws: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
        large_BCHW = glyphs.clean(indices, draws)
        return functional.avg_pool2d(large_BCHW, settings.upscale), large_BCHW

    return _opened(settings, glyphs, pairs)


def _opened(settings: DataSettings, glyphs: Glyphs, pairs: DrawPairs) -> Opened:
    splits = complete_splits({"train": np.arange(settings.images)}, glyphs, settings)
    return GlyphPairs(settings, glyphs, pairs), splits
