"""Characters as masks, drawn with the fonts that matplotlib ships.

Legend: F fonts, K characters, M side of a mask in pixels.
"""

import unicodedata
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font, LoadFlags
from scipy.ndimage import grey_dilation

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
