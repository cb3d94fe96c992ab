"""Images of characters in front of a ground: the data in memory, and the threads that draw.

Everything about image number i follows from the seed and i; the classes take turns. Legend: B batch, C channels, H height, W
width, F fonts, K characters, M side of a mask.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from tasks.data.drawn.fonts import masks
from tasks.data.drawn.grain import Grain
from tasks.data.drawn.ground import Ground
from tasks.data.drawn.numbers import Numbers
from tasks.data.settings import DataSettings
from tasks.data.source import Scaling

PIECE = 32
"""Images that a thread draws at once."""
MOST_PIXELS = 128
"""Largest side of a mask."""


class CharacterImages:
    """Masks of some characters, textures and noise in memory; subclasses draw the images."""

    scaling = Scaling("none", "none")
    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, characters: str, class_names: tuple[str, ...]) -> None:
        self.class_names = class_names
        self.labels = np.arange(settings.images, dtype=np.int64) % len(class_names)
        self._seed, self._size, self._channels = settings.seed, settings.resolution, settings.channels
        side = min(MOST_PIXELS, settings.resolution * 3 // 4)
        self._masks_FKMM = torch.from_numpy(masks(characters, side))
        rng = np.random.default_rng(settings.seed)
        self._ground = Ground(rng, self._size)
        self._grain = Grain(rng, self._channels, self._size)
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="draw")

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since every image is drawn on its own."""
        return rng.permutation(indices)

    def _in_pieces(self, draw: Callable[..., None], indices_B: np.ndarray, *of_each: np.ndarray | torch.Tensor) -> None:
        """Call `draw` with `PIECE` images at a time: their indices, and their rows of each array and tensor."""
        starts = range(PIECE, len(indices_B), PIECE)
        rows = (np.split(one, starts) if isinstance(one, np.ndarray) else one.split(PIECE) for one in of_each)
        list(self._pool.map(draw, np.split(indices_B, starts), *rows))

    def _ink(self, font_B: torch.Tensor, character_B: torch.Tensor) -> torch.Tensor:
        """Masks of characters (B, 1, M, M) in [0, 1]."""
        return self._masks_FKMM[font_B, character_B][:, None].float().div_(255)

    def _tint(self, numbers: Numbers) -> torch.Tensor:
        """Difference (B, C) of each channel from the brightness of a colour, before their mean is subtracted."""
        return torch.stack([numbers.between(-0.15, 0.15) for _ in range(self._channels)], 1)


def colour(level_B: torch.Tensor, tint_BC: torch.Tensor) -> torch.Tensor:
    """A colour (B, C, 1, 1) with the mean brightness `level_B`."""
    return (level_B[:, None] + tint_BC - tint_BC.mean(1, keepdim=True))[:, :, None, None]
