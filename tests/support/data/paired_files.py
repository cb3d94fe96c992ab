"""Pictures with a partner each, in files: of targets that tell where their pixels are, of masks, and of drawn pairs."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tasks.base.errors import UserError
from tasks.data import DataSettings, load_splits
from tasks.data.drawn.glyphs import GlyphPairs

WIDTH, HEIGHT, SIDE = 40, 30, 20
"""Of pictures, and of what networks see of them."""
DOWN, RIGHT = 8, 6
"""By so much the first two colours of a target grow from row to row and from column to column of its image."""
COLOURS = np.array([[0, 0, 0], [200, 0, 0], [0, 200, 0]], np.uint8)
"""Of the background, of squares and of bars."""


def settings(kind: str, path: Path, **options: object) -> DataSettings:
    told = {"kind": kind, "path": path, "resolution": SIDE, "mean": (0.0,), "deviation": (1.0,), **options}
    return DataSettings.model_validate(told)


def target(number: int) -> np.ndarray:
    """(H, W, 3): a pixel's colours are its place and its image."""
    row, column = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack((DOWN * row, RIGHT * column, np.full_like(row, number)), 2).astype(np.uint8)


def write_targets(root: Path, count: int = 24, upscale: int = 1) -> Path:
    """Targets with so many equal pixels in both directions, and their negatives as images."""
    for name in ("input", "target"):
        (root / name).mkdir(parents=True)
    for number in range(count):
        Image.fromarray(255 - target(number)).save(root / "input" / f"{number}.png")
        large = target(number).repeat(upscale, 0).repeat(upscale, 1)
        Image.fromarray(large).save(root / "target" / f"{number}.png")
    return root


def write_masks(root: Path, count: int = 48) -> Path:
    """Images whose colours are the classes of their masks, with a row that is not labelled; every other mask has a palette."""
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        mask_HW = np.zeros((HEIGHT, WIDTH), np.uint8)
        top, left = rng.integers(0, (12, 20))
        mask_HW[top : top + 12, left : left + 12] = 1
        if number % 3 == 0:
            mask_HW[24:30] = 2
        Image.fromarray(COLOURS[mask_HW]).save(root / "images" / f"{number}.png")
        mask_HW[0] = 255
        mask = Image.fromarray(mask_HW)
        if number % 2:
            mask.putpalette([*COLOURS.ravel().tolist(), *[0] * (255 * 3 - COLOURS.size), 255, 255, 255])
        mask.save(root / "masks" / f"{number}.png")
    (root / "classes.txt").write_text("background\nsquare\nbar\n")
    return root


def write_drawn(folder: Path, drawn: DataSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Files in input/ and target/ of pairs of glyphs; what they have, (N, C, H, W) in [0, 1] each."""
    inputs, targets = ((255 * one).round() for one in GlyphPairs(drawn).pairs(np.arange(drawn.images), None))
    for name, pixels_NCHW in (("input", inputs), ("target", targets)):
        (folder / name).mkdir()
        for number, pixels_HWC in enumerate(pixels_NCHW.byte().movedim(1, -1).numpy()):
            Image.fromarray(pixels_HWC).save(folder / name / f"{number:04}.png")
    return inputs / 255, targets / 255


def put(file: Path, content: bytes | np.ndarray | None) -> None:
    """Give a file other bytes, or another picture; None: remove it, also where it is a folder."""
    if content is None:
        (shutil.rmtree if file.is_dir() else Path.unlink)(file)
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        Image.fromarray(content).save(file)


def assert_refused(data: DataSettings, told: str) -> None:
    """Loading ends with one line that has `told`, a pattern."""
    with pytest.raises(UserError, match=told) as found:
        load_splits(data)
    assert "\n" not in str(found.value)
