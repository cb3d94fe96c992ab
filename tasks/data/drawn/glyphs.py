"""Glyphs: images of characters in many fonts, drawn on demand, in any number; nothing is downloaded or stored.

An image is a character, placed, turned, scaled and sheared at random, over a gradient with a texture and a second, fainter
character, with noise. Everything about image number i follows from the seed and i; the classes take turns. Legend: B batch, C
channels, D draws, H height, W width; positions in an image go from -1 to 1, brightness from 0 to 1.
"""

import math
from collections.abc import Callable

import numpy as np
import torch

from tasks.base.errors import UserError
from tasks.data.drawn.characters import CharacterImages, colour
from tasks.data.drawn.fonts import distinct_characters
from tasks.data.drawn.numbers import Numbers
from tasks.data.drawn.placing import Placing, per_image, placed
from tasks.data.images import DRAWS
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits

FAINT_NOISE, NOISE = (0.02, 0.12), (0.1, 0.3)
"""Least and largest deviation of an image's noise: for images to be classified, and for noise to be removed."""


class Glyphs(CharacterImages):
    """Images of one character each; a class is a character."""

    def __init__(self, settings: DataSettings) -> None:
        characters = _characters(settings.classes)
        super().__init__(settings, characters, tuple(characters))

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Drawn images; `draws` turn, scale and move the character a little and change the noise."""
        (x_BCHW,) = self._drawn(self._draw, indices, draws)
        return x_BCHW

    def clean(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """The same images without noise."""
        (clean_BCHW,) = self._drawn(self._draw_clean, indices, draws)
        return clean_BCHW

    def pairs(self, indices: np.ndarray, draws: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The same images with more noise, and without any."""
        noisy_BCHW, clean_BCHW = self._drawn(self._draw_pair, indices, draws, of_each=2)
        return noisy_BCHW, clean_BCHW

    def _drawn(
        self, draw: Callable[..., None], indices: np.ndarray, draws: np.ndarray | None, of_each: int = 1
    ) -> list[torch.Tensor]:
        """`of_each` tensors (B, C, H, W), filled by `draw`."""
        nudges = np.full((len(indices), DRAWS), 0.5, dtype=np.float32) if draws is None else draws
        found = [torch.empty(len(indices), self._channels, self._size, self._size) for _ in range(of_each)]
        self._in_pieces(draw, indices, nudges, *found)
        return found

    def _draw(self, indices_B: np.ndarray, nudges_BD: np.ndarray, out_BCHW: torch.Tensor) -> None:
        x_BCHW, grain_BCHW, deviation = self._painted(indices_B, nudges_BD, FAINT_NOISE)
        torch.clamp(x_BCHW.addcmul_(grain_BCHW, deviation), 0, 1, out=out_BCHW)

    def _draw_clean(self, indices_B: np.ndarray, nudges_BD: np.ndarray, out_BCHW: torch.Tensor) -> None:
        torch.clamp(self._painted(indices_B, nudges_BD, NOISE)[0], 0, 1, out=out_BCHW)

    def _draw_pair(
        self, indices_B: np.ndarray, nudges_BD: np.ndarray, noisy_BCHW: torch.Tensor, clean_BCHW: torch.Tensor
    ) -> None:
        x_BCHW, grain_BCHW, deviation = self._painted(indices_B, nudges_BD, NOISE)
        torch.clamp(x_BCHW, 0, 1, out=clean_BCHW)
        torch.clamp(clean_BCHW.addcmul(grain_BCHW, deviation), 0, 1, out=noisy_BCHW)

    def _painted(
        self, indices_B: np.ndarray, nudges_BD: np.ndarray, deviations: tuple[float, float]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Images and noise of deviation 1, (B, C, H, W), and the noise's deviation (B, 1, 1, 1) within `deviations`."""
        numbers = Numbers(self._seed, indices_B)
        nudges_DB = (torch.from_numpy(nudges_BD) * 2 - 1).T
        label_B = torch.from_numpy(self.labels[indices_B])
        ground, far_ground, clutter, character = self._colours(numbers)
        x_BCHW = torch.lerp(ground, far_ground, self._ground.drawn(numbers))
        x_BCHW = torch.lerp(x_BCHW, clutter, self._clutter(numbers))
        x_BCHW = torch.lerp(x_BCHW, character, self._character(numbers, label_B, nudges_DB))
        grain = self._grain.stretches(numbers.between(0, 1) + 0.5 * nudges_DB[4] + 1)
        return x_BCHW, grain, per_image(numbers.between(*deviations))

    def _character(self, numbers: Numbers, label_B: torch.Tensor, nudges_DB: torch.Tensor) -> torch.Tensor:
        """The label's character (B, 1, H, W) in [0, 1], upright within 15 degrees, 45 to 85 % of the image high."""
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
        """Any character (B, 1, H, W) in [0, 1], turned any way, anywhere."""
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

    def _colours(self, numbers: Numbers) -> list[torch.Tensor]:
        """Four colours (B, C, 1, 1): both ends of the ground, the clutter, and the character, which differs most."""
        light = numbers.between(0, 1)
        contrast = numbers.between(0.2, 0.5) * torch.where(light > 0.5, -1.0, 1.0)
        colours = []
        for low, high in ((-0.6, 0), (0, 0.3), (0.3, 0.6), (1, 1)):
            tint_BC = self._tint(numbers)
            colours.append(colour(light + contrast * numbers.between(low, high), tint_BC))
        return colours


def _characters(classes: int | None) -> str:
    characters = distinct_characters()
    if classes is not None and classes > len(characters):
        raise UserError(
            "data.classes", f"there are {len(characters)} characters, not {classes}", next_step="ask for fewer"
        )
    return characters[:classes]


def open_glyphs(settings: DataSettings) -> tuple[Glyphs, dict[str, np.ndarray]]:
    """The source and its splits, by shares and stratified. UserError: too few images to have each class in all splits."""
    source = Glyphs(settings)
    return source, complete_splits({"train": np.arange(settings.images)}, source, settings)
