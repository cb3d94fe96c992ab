"""Glyphs: images, scenes and pairs of characters in many fonts, drawn on demand; nothing is downloaded or stored.

Everything about image, scene or pair number i follows from the seed and i. An image is a character, moved, turned,
scaled and sheared at random, over a gradient with a texture and a second, fainter character, with noise; the classes
take turns.

Scenes have masks or boxes: a class for each pixel, a box for each character. A scene has up to `OBJECTS` characters in
many fonts, each moved, turned, scaled and sheared at random and in its own colour; a later character covers earlier
characters. Class 0 is the background. The first character of scene i is of class i modulo their number, and is left out
if that is 0. A box surrounds the visible part of a character. Scenes with masks and with boxes have the same pixels.

Pairs are for restoration: with and without noise, or small and large.

Legend: B batch, C channels, D draws, H height, W width, O characters of a scene; positions in an image go from -1 to 1,
brightness from 0 to 1.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from tasks.data.drawn.characters import CharacterImages, colour, distinct_characters
from tasks.data.drawn.variation import Numbers, Placing, per_image, placed
from tasks.data.images import DRAWS
from tasks.data.problems.detection import COLUMNS, packed
from tasks.data.problems.restoration import CHANNELS
from tasks.data.problems.segmentation import moved
from tasks.data.settings import DataSettings
from tasks.data.source import Source, Splits, first_classes

BACKGROUND = "background"
CHARACTERS = "0123456789ABCDEFGHJKLMNPRSTUVWXYZ"
"""All characters in use, without letters that look like digits or each other."""
DEFAULT_CHARACTERS = 10
OBJECTS = 3
PRESENCE = 0.7
"""Share of the scenes with a second character, and share with a third one."""
NUMBERS = 72
"""Limit of random numbers per scene."""
INK = 0.5
"""Least share of a character in a pixel of its class."""
SEEN = 0.25
"""Least visible share of a character's pixels for it to have a box."""


class _Scenes(NamedTuple):
    """Images; the number of the visible character in each pixel (from 1; 0: none); class and pixels of each character."""

    x_BCHW: torch.Tensor
    seen_BHW: torch.Tensor
    class_BO: torch.Tensor
    pixels_BO: torch.Tensor


class GlyphScenes(CharacterImages):
    """Scenes of several characters; class k is the character number k, and class 0 the background."""

    def __init__(self, settings: DataSettings) -> None:
        characters = first_classes(CHARACTERS, settings.classes or DEFAULT_CHARACTERS, "characters in scenes")
        super().__init__(settings, characters, (BACKGROUND, *characters))

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """The images of scenes. They can be augmented only together with masks, so `draws` is None."""
        assert draws is None, "scenes are augmented together with their masks"
        return self.masked(indices)[0]

    def masked(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """x_BCHW float32 in [0, 1], and the class of each pixel y_BHW int64."""
        scenes = self._scenes(indices)
        y_BHW = scenes.class_BO.gather(1, (scenes.seen_BHW - 1).clamp_min(0).flatten(1)).view_as(scenes.seen_BHW)
        return scenes.x_BCHW, torch.where(scenes.seen_BHW > 0, y_BHW, 0)

    def boxed(self, indices: np.ndarray, draws: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
        """x_BCHW float32 in [0, 1], and a target of detection (B, O, 5); `draws` transform both alike."""
        scenes = self._scenes(indices)
        x_BCHW, seen_BHW = scenes.x_BCHW, scenes.seen_BHW
        if draws is not None:
            x_BCHW, seen_BHW = moved(x_BCHW, seen_BHW, draws)
        rows = []
        for seen_HW, class_O, pixels_O in zip(seen_BHW.numpy(), scenes.class_BO.numpy(), scenes.pixels_BO, strict=True):
            own = [
                _row(seen_HW == number, label, SEEN * float(pixels))
                for number, (label, pixels) in enumerate(zip(class_O, pixels_O, strict=True), start=1)
            ]
            rows.append(np.array([row for row in own if row], dtype=np.float32).reshape(-1, COLUMNS))
        return x_BCHW, packed(rows)

    def _scenes(self, indices: np.ndarray) -> "_Scenes":
        count, size = len(indices), self._size
        scenes = _Scenes(
            torch.empty(count, self._channels, size, size),
            torch.zeros(count, size, size, dtype=torch.int64),
            torch.zeros(count, OBJECTS, dtype=torch.int64),
            torch.zeros(count, OBJECTS, dtype=torch.int64),
        )
        self._in_pieces(self._draw, indices, *scenes)
        return scenes

    def _draw(self, indices_B: np.ndarray, *parts: torch.Tensor) -> None:
        scenes = _Scenes(*parts)
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
            scenes.class_BO[:, number] = class_B
            x_BCHW = self._add(x_BCHW, scenes, number, light_B, numbers)
        grain = self._grain.stretches(numbers.between(0, 1))
        x_BCHW.addcmul_(grain, per_image(numbers.between(0.02, 0.06)))
        torch.clamp(x_BCHW, 0, 1, out=scenes.x_BCHW)

    def _add(
        self, x_BCHW: torch.Tensor, scenes: "_Scenes", number: int, light_B: torch.Tensor, numbers: Numbers
    ) -> torch.Tensor:
        """The images with a character of each class added and recorded in `scenes`; class 0 adds none."""
        class_B = scenes.class_BO[:, number]
        contrast_B = numbers.between(0.35, 0.7) * torch.where(light_B > 0.5, -1.0, 1.0)
        own_colour = colour(light_B + contrast_B, self._tint(numbers))
        font_B, character_B = numbers.below(len(self._masks_FKMM)), (class_B - 1).clamp_min(0)
        ink_B1HW = placed(self._ink(font_B, character_B), _placing(numbers), self._size) * per_image(
            (class_B > 0).float()
        )
        is_ink_BHW = ink_B1HW[:, 0] >= INK
        scenes.seen_BHW[is_ink_BHW] = number + 1
        scenes.pixels_BO[:, number] = is_ink_BHW.sum((1, 2))
        return torch.lerp(x_BCHW, own_colour, ink_B1HW)


def _row(is_seen_HW: np.ndarray, label: int, least_pixels: float) -> tuple[float, ...] | None:
    """A row of a target: the class, and the box around pixels as shares of the image. None if there are too few pixels."""
    if is_seen_HW.sum() < max(1, least_pixels):
        return None
    rows, columns = np.flatnonzero(is_seen_HW.any(1)), np.flatnonzero(is_seen_HW.any(0))
    height, width = is_seen_HW.shape
    return label, columns[0] / width, rows[0] / height, (columns[-1] + 1) / width, (rows[-1] + 1) / height


def _placing(numbers: Numbers) -> Placing:
    """A placing upright within 15 degrees, 30 to 55 % of the image high, wholly inside the image or nearly so."""
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


FAINT_NOISE, NOISE = (0.02, 0.12), (0.1, 0.3)
"""Least and largest deviation of an image's noise: for images to be classified, and for noise to be removed."""


class Glyphs(CharacterImages):
    """Images of one character each; a class is a character."""

    def __init__(self, settings: DataSettings) -> None:
        characters = first_classes(distinct_characters(), settings.classes, "characters")
        super().__init__(settings, characters, tuple(characters))

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Drawn images; `draws` turn, scale and move the character a little and change the noise."""
        (x_BCHW,) = self._drawn(self._draw, indices, draws)
        return x_BCHW

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


class GlyphPairs(Source):
    """Images and their targets: with and without noise, or small and large, whose small pixels are means of large ones.

    Each split has the same characters. `class_names` are those of the output channels of networks.
    """

    has_classes = False

    def __init__(self, settings: DataSettings) -> None:
        self._upscale = settings.upscale
        self._glyphs = Glyphs(settings.model_copy(update={"resolution": settings.upscale * settings.resolution}))
        self.labels, self.class_names = self._glyphs.labels, CHANNELS[settings.channels]

    def pairs(self, indices: np.ndarray, draws: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and targets, (B, C, H, W) in [0, 1]; draws move the character and change the noise."""
        noisy_BCHW, clean_BCHW = self._glyphs.pairs(indices, draws)
        return noisy_BCHW if self._upscale == 1 else functional.avg_pool2d(clean_BCHW, self._upscale), clean_BCHW

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Images without their targets."""
        return self.pairs(indices, draws)[0]

    def splits(self, settings: DataSettings) -> Splits:
        """By shares of each character. UserError: too few images to have each character in all splits."""
        return self._glyphs.splits(settings)
