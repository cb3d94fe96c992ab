"""Glyphs with noise, and the same without any, for restoration. Everything about pair number i follows from the seed and i."""

import numpy as np
import torch

from tasks.data.drawn.glyphs import Glyphs
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits
from tasks.problems.restoration import CHANNELS


class NoisyGlyphs:
    """Pairs of images. Splits have all characters alike; `class_names` are those of the channels that networks give."""

    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, glyphs: Glyphs) -> None:
        self._glyphs = glyphs
        self.labels, self.scaling = glyphs.labels, glyphs.scaling
        self.class_names = CHANNELS[settings.channels]

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Any order: every image is drawn on its own."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """The images with noise."""
        return self.pairs(indices, draws)[0]

    def pairs(self, indices: np.ndarray, draws: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Images with noise, and without, (B, C, H, W) in [0, 1]; `draws` move the character and change the noise."""
        return self._glyphs.pairs(indices, draws)


def open_noisy_glyphs(settings: DataSettings) -> tuple[NoisyGlyphs, dict[str, np.ndarray]]:
    """The source and its splits, by shares. Raises UserError for too few images to have each character in all."""
    glyphs = Glyphs(settings)
    splits = complete_splits({"train": np.arange(settings.images)}, glyphs, settings)
    return NoisyGlyphs(settings, glyphs), splits
