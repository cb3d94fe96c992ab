"""Glyphs: images of characters in many fonts, drawn when asked for, as many as wanted; nothing is downloaded or stored.

An image is a character, placed, turned, scaled and sheared at random, over a gradient with a texture and a second,
fainter character, with noise. Everything about image number i follows from the seed and i; the classes take turns.
Legend: B batch, C channels, D draws, H height, W width, F fonts, K characters, M side of a mask; positions in an image go
from -1 to 1, brightness from 0 to 1.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from tasks.data.drawn.fonts import distinct_characters, masks
from tasks.data.drawn.grain import Grain
from tasks.data.drawn.ground import Ground
from tasks.data.drawn.numbers import Numbers
from tasks.data.drawn.placing import Placing, per_image, placed, rows
from tasks.data.images import DRAWS
from tasks.data.settings import DataSettings
from tasks.data.source import Scaling, complete_splits
from tasks.errors import UserError

PIECE = 32
"""Images that a thread draws at once."""
MOST_PIXELS = 128
"""Largest side of a mask."""


class Glyphs:
    """Masks of all characters, textures and noise in memory; images are drawn from them."""

    scaling = Scaling("none", "none")
    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings) -> None:
        characters = _characters(settings.classes)
        self.labels = np.arange(settings.images, dtype=np.int64) % len(characters)
        self.class_names = tuple(characters)
        self._seed, self._size, self._channels = settings.seed, settings.resolution, settings.channels
        side = min(MOST_PIXELS, settings.resolution * 3 // 4)
        self._masks_FKMM = torch.from_numpy(masks(characters, side))
        rng = np.random.default_rng(settings.seed)
        self._ground = Ground(rng, self._size)
        self._grain = Grain(rng, self._channels, self._size)
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="draw")

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Any order: every image is drawn on its own."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Drawn images; `draws` turn, scale and move the character a little and change the noise."""
        starts = range(PIECE, len(indices), PIECE)
        nudges = np.full((len(indices), DRAWS), 0.5, dtype=np.float32) if draws is None else draws
        x_BCHW = torch.empty(len(indices), self._channels, self._size, self._size)
        list(self._pool.map(self._draw, np.split(indices, starts), np.split(nudges, starts), x_BCHW.split(PIECE)))
        return x_BCHW

    def _draw(self, indices_B: np.ndarray, nudges_BD: np.ndarray, out_BCHW: torch.Tensor) -> None:
        numbers = Numbers(self._seed, indices_B)
        nudges_DB = (torch.from_numpy(nudges_BD) * 2 - 1).T
        label_B = torch.from_numpy(self.labels[indices_B])
        ground, far_ground, clutter, character = _colours(numbers, self._channels)
        x_BCHW = torch.lerp(ground, far_ground, self._ground.drawn(numbers))
        x_BCHW = torch.lerp(x_BCHW, clutter, self._clutter(numbers))
        x_BCHW = torch.lerp(x_BCHW, character, self._character(numbers, label_B, nudges_DB))
        x_BCHW.addcmul_(
            self._grain.stretches(numbers.between(0, 1) + 0.5 * nudges_DB[4] + 1),
            per_image(numbers.between(0.02, 0.12)),
        )
        torch.clamp(x_BCHW, 0, 1, out=out_BCHW)

    def _character(self, numbers: Numbers, label_B: torch.Tensor, nudges_DB: torch.Tensor) -> torch.Tensor:
        """(B, 1, H, W) in [0, 1]: the character of the label, upright within 15 degrees, 45 to 85 % of the image high."""
        half = numbers.between(0.45, 0.85) * (1 + 0.1 * nudges_DB[1])
        stretch = numbers.between(-0.15, 0.15).exp()
        room = (1 - half).clamp_(min=0)
        placing = Placing(
            half_width=half * stretch,
            half_height=half / stretch,
            shear=numbers.between(-0.2, 0.2),
            angle=numbers.between(-1, 1) * math.radians(15) + nudges_DB[0] * math.radians(5),
            x=room * numbers.between(-1, 1) + 0.06 * nudges_DB[2],
            y=room * numbers.between(-1, 1) + 0.06 * nudges_DB[3],
        )
        return placed(self._ink(numbers.below(len(self._masks_FKMM)), label_B), placing, self._size)

    def _clutter(self, numbers: Numbers) -> torch.Tensor:
        """(B, 1, H, W) in [0, 1]: any character, turned any way, anywhere."""
        half = numbers.between(0.4, 1.2)
        placing = Placing(
            half_width=half,
            half_height=half,
            shear=numbers.between(-0.3, 0.3),
            angle=numbers.between(0, 2 * math.pi),
            x=numbers.between(-1, 1),
            y=numbers.between(-1, 1),
        )
        fonts, characters = self._masks_FKMM.shape[:2]
        return placed(self._ink(numbers.below(fonts), numbers.below(characters)), placing, self._size)

    def _ink(self, font_B: torch.Tensor, label_B: torch.Tensor) -> torch.Tensor:
        return self._masks_FKMM[font_B, label_B][:, None].float().div_(255)


def _characters(classes: int | None) -> str:
    characters = distinct_characters()
    if classes is not None and classes > len(characters):
        raise UserError(
            "data.classes", f"there are {len(characters)} characters, not {classes}", next_step="ask for fewer"
        )
    return characters[:classes]


def _colours(numbers: Numbers, channels: int) -> list[torch.Tensor]:
    """Four colours (B, C, 1, 1): both ends of the ground, the clutter, and the character, which differs most."""
    light = numbers.between(0, 1)
    contrast = numbers.between(0.2, 0.5) * torch.where(light > 0.5, -1.0, 1.0)
    colours = []
    for low, high in ((-0.6, 0), (0, 0.3), (0.3, 0.6), (1, 1)):
        tint_BC = torch.stack([numbers.between(-0.15, 0.15) for _ in range(channels)], 1)
        level_B1 = rows(light + contrast * numbers.between(low, high))
        colours.append((level_B1 + tint_BC - tint_BC.mean(1, keepdim=True))[:, :, None, None])
    return colours


def open_glyphs(settings: DataSettings) -> tuple[Glyphs, dict[str, np.ndarray]]:
    """The source and its splits, by shares and stratified. Raises UserError for too few images to have each class in all."""
    source = Glyphs(settings)
    return source, complete_splits({"train": np.arange(settings.images)}, source, settings)
