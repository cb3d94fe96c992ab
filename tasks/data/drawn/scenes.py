"""Scenes of glyphs with masks: several characters before a ground, and the class of each pixel.

A scene has up to `OBJECTS` characters in many fonts, each placed, turned, scaled and sheared at random and in a colour of its
own; a later one covers those before it. Class 0 is the background. Everything about scene number i follows from the seed and
i. The classes take turns: the first character of scene i is of class i modulo their number, and is left out where that is 0.
Legend: B batch, C channels, H height, W width; positions in an image go from -1 to 1.
"""

import math

import numpy as np
import torch

from tasks.data.drawn.characters import CharacterImages, colour
from tasks.data.drawn.numbers import Numbers
from tasks.data.drawn.placing import Placing, per_image, placed
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits
from tasks.errors import UserError

BACKGROUND = "background"
CHARACTERS = "0123456789ABCDEFGHJKLMNPRSTUVWXYZ"
"""All that there are: without letters that look like digits or each other."""
DEFAULT_CHARACTERS = 10
OBJECTS = 3
PRESENCE = 0.7
"""Share of the scenes that have a second character, and of those that have a third one."""
NUMBERS = 72
"""Random numbers that a scene can be made from."""
INK = 0.5
"""The least share of a character in a pixel of its class."""


class GlyphScenes(CharacterImages):
    """Scenes of several characters; class k is the character number k, and class 0 the background."""

    def __init__(self, settings: DataSettings) -> None:
        characters = _characters(settings.classes or DEFAULT_CHARACTERS)
        super().__init__(settings, characters, (BACKGROUND, *characters))

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """The images of scenes. Without masks they cannot be augmented: `draws` is None."""
        assert draws is None, "scenes are augmented together with their masks"
        return self.masked(indices)[0]

    def masked(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """x_BCHW float32 in [0, 1], and the class of each pixel y_BHW int64."""
        x_BCHW = torch.empty(len(indices), self._channels, self._size, self._size)
        y_BHW = torch.zeros(len(indices), self._size, self._size, dtype=torch.int64)
        self._in_pieces(self._draw, indices, x_BCHW, y_BHW)
        return x_BCHW, y_BHW

    def _draw(self, indices_B: np.ndarray, out_BCHW: torch.Tensor, y_BHW: torch.Tensor) -> None:
        numbers = Numbers(self._seed, indices_B, NUMBERS)
        light_B = numbers.between(0, 1)
        near = colour(light_B + numbers.between(-0.2, 0), self._tint(numbers))
        far = colour(light_B + numbers.between(0, 0.2), self._tint(numbers))
        x_BCHW = torch.lerp(near, far, self._ground.drawn(numbers))
        label_B = torch.from_numpy(self.labels[indices_B])
        for number in range(OBJECTS):
            drawn_B = numbers.below(len(self.class_names) - 1) + 1
            is_there_B = numbers.between(0, 1) < PRESENCE
            class_B = torch.where(is_there_B, drawn_B, 0) if number else label_B
            x_BCHW = self._add(x_BCHW, y_BHW, class_B, light_B, numbers)
        grain = self._grain.stretches(numbers.between(0, 1))
        x_BCHW.addcmul_(grain, per_image(numbers.between(0.02, 0.06)))
        torch.clamp(x_BCHW, 0, 1, out=out_BCHW)

    def _add(
        self, x_BCHW: torch.Tensor, y_BHW: torch.Tensor, class_B: torch.Tensor, light_B: torch.Tensor, numbers: Numbers
    ) -> torch.Tensor:
        """The images with a character of each class, which is entered in `y_BHW`; none where the class is 0."""
        contrast_B = numbers.between(0.35, 0.7) * torch.where(light_B > 0.5, -1.0, 1.0)
        own_colour = colour(light_B + contrast_B, self._tint(numbers))
        font_B, character_B = numbers.below(len(self._masks_FKMM)), (class_B - 1).clamp_min(0)
        ink_B1HW = placed(self._ink(font_B, character_B), _placing(numbers), self._size) * per_image(
            (class_B > 0).float()
        )
        y_BHW.copy_(torch.where(ink_B1HW[:, 0] >= INK, class_B[:, None, None], y_BHW))
        return torch.lerp(x_BCHW, own_colour, ink_B1HW)


def _characters(classes: int) -> str:
    if classes > len(CHARACTERS):
        got = f"there are {len(CHARACTERS)} characters in scenes, not {classes}"
        raise UserError("data.classes", got, next_step="ask for fewer")
    return CHARACTERS[:classes]


def _placing(numbers: Numbers) -> Placing:
    """Upright within 15 degrees, 30 to 55 % of the image high, wholly inside or nearly so."""
    half, stretch = numbers.between(0.3, 0.55), numbers.between(-0.15, 0.15).exp()
    room = 1 - half
    return Placing(
        half_width=half * stretch,
        half_height=half / stretch,
        shear=numbers.between(-0.2, 0.2),
        angle=numbers.between(-1, 1) * math.radians(15),
        x=room * numbers.between(-1, 1),
        y=room * numbers.between(-1, 1),
    )


def open_scenes(settings: DataSettings) -> tuple[GlyphScenes, dict[str, np.ndarray]]:
    """The source and its splits, by shares and stratified. Raises UserError for too few images to have each class in all."""
    source = GlyphScenes(settings)
    return source, complete_splits({"train": np.arange(settings.images)}, source, settings)
