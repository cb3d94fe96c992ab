"""Images of characters in front of a ground: masks of characters, grounds, and the threads that draw into memory.

Everything about image number i follows from the seed and i; the classes take turns. Fonts are the fonts that matplotlib
ships.

Legend: B batch, C channels, H height, W width, F fonts, K characters, M side of a mask or a texture in pixels, T
textures.
"""

import math
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.ft2font import FT2Font, LoadFlags
from scipy.ndimage import grey_dilation
from torch.nn import functional

from tasks.data.drawn.variation import Grain, Numbers, Placing, centres, outer_sum, per_image, placed, rows
from tasks.data.settings import DataSettings
from tasks.data.source import Source

FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol")),
)
BLOCKS = (
    range(0x21, 0x7F),  # ASCII
    range(0xA1, 0x100),  # Latin-1
    range(0x391, 0x400),  # Greek
    range(0x400, 0x460),  # Cyrillic
    range(0x2010, 0x2070),  # punctuation
    range(0x2200, 0x2300),  # mathematical operators
)
WITH_INK = frozenset(("Lu", "Ll", "Lt", "Lo", "Nd", "Nl", "No", *(f"P{kind}" for kind in "cdseifo"), "Sm", "Sc", "So"))
COMPARED_SIDE = 48
TOLERANCE = 2
"""Distance [pixels], at `COMPARED_SIDE`, by which outlines must differ."""


@cache
def distinct_characters() -> str:
    """The characters that every font has and draws unlike any other character, in the order of `BLOCKS`.

    Two characters are alike if in some font, scaled to the same size, neither has ink further than `TOLERANCE` pixels from the
    other's ink; then the first one is kept. So only one is kept of A (Latin), Α (Greek) and А (Cyrillic), and of o and O, and
    there is no I beside l.
    """
    faces = [_face(font) for font in FONTS]
    shared = set.intersection(*(set(face.get_charmap()) for face in faces))
    candidates = "".join(
        chr(code)
        for block in BLOCKS
        for code in block
        if code in shared and unicodedata.category(chr(code)) in WITH_INK
    )
    alike_KK = np.zeros((len(candidates),) * 2, dtype=bool)
    for face in faces:
        alike_KK |= _alike(np.stack([_mask(face, character, COMPARED_SIDE) for character in candidates]))
    kept: list[int] = []
    for index in range(len(candidates)):
        if not alike_KK[index, kept].any():
            kept.append(index)
    return "".join(candidates[index] for index in kept)


def masks(characters: str, side: int) -> np.ndarray:
    """Masks (F, K, M, M) uint8, 255 = ink; each character fills the square `side` in height or width and is centred."""
    faces = [_face(font) for font in FONTS]
    return np.stack([np.stack([_mask(face, character, side) for character in characters]) for face in faces])


def _face(font: str) -> FT2Font:
    return FT2Font(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"))


def _mask(face: FT2Font, character: str, side: int) -> np.ndarray:
    face.set_size(side, 72)
    glyph = face.load_char(ord(character), LoadFlags.NO_HINTING)
    longest = max(glyph.width, glyph.height, 1) / 64
    face.set_size(side * (side - 1) / longest, 72)
    face.set_text(character, 0.0, flags=LoadFlags.NO_HINTING)
    face.draw_glyphs_to_bitmap(antialiased=True)
    ink = np.asarray(face.get_image())[:side, :side]
    top, left = (side - ink.shape[0]) // 2, (side - ink.shape[1]) // 2
    mask = np.zeros((side, side), dtype=np.uint8)
    mask[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return mask


def _alike(masks_KMM: np.ndarray) -> np.ndarray:
    """Whether two characters have no ink far from each other's (a Hausdorff distance up to `TOLERANCE`), (K, K)."""
    ink_KP = (masks_KMM > 127).reshape(len(masks_KMM), -1).astype(np.float32)
    window = (1, 2 * TOLERANCE + 1, 2 * TOLERANCE + 1)
    near_KP = (grey_dilation(masks_KMM, size=window) > 127).reshape(ink_KP.shape).astype(np.float32)
    far_KK = ink_KP @ (1 - near_KP).T
    return (far_KK == 0) & (far_KK.T == 0)


TEXTURES, TEXTURE_SIDE = 32, 64


class Ground:
    """Gradients with a texture, in squares with sides of `size` pixels."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self._textures_T1MM = _textures(rng)
        self._size = size

    def drawn(self, numbers: Numbers) -> torch.Tensor:
        """Grounds (B, 1, H, W) in [0, 1]; takes 10 numbers of each image."""
        half = numbers.between(0.8, 3)
        placing = Placing(
            half_width=half,
            half_height=half * numbers.between(-0.7, 0.7).exp(),
            shear=numbers.between(-0.5, 0.5),
            angle=numbers.between(0, 2 * math.pi),
            x=numbers.between(-1, 1),
            y=numbers.between(-1, 1),
        )
        squares = self._textures_T1MM[numbers.below(TEXTURES)]
        texture = placed(squares, placing, self._size, padding="reflection")
        direction, steepness = numbers.between(0, 2 * math.pi), numbers.between(0, 0.5)
        axis = centres(self._size)
        gradient = outer_sum(rows(direction.cos() * steepness) * axis, rows(direction.sin() * steepness) * axis)
        return texture.mul_(per_image(numbers.between(0, 0.6))).add_(gradient[:, None] + 0.5).clamp_(0, 1)


def _textures(rng: np.random.Generator) -> torch.Tensor:
    """Textures (T, 1, M, M), about -1 to 1: noise of four octaves, the coarser ones stronger."""
    size = (TEXTURE_SIDE, TEXTURE_SIDE)
    octaves = [
        functional.interpolate(
            torch.from_numpy(rng.standard_normal((TEXTURES, 1, side, side), dtype=np.float32)), size, mode="bicubic"
        )
        * (4 / side)
        for side in (4, 8, 16, 32)
    ]
    texture_T1MM = torch.stack(octaves).sum(0)
    return texture_T1MM / texture_T1MM.abs().amax((1, 2, 3), keepdim=True)


PIECE = 32
"""Images that a thread draws at once."""
MOST_PIXELS = 128
"""Largest side of a mask."""


class CharacterImages(Source):
    """Masks of some characters, textures and noise in memory; subclasses draw the images."""

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
