"""Drawn pairs of images as files."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tasks.data import DataSettings
from tasks.data.drawn.noisy_glyphs import open_noisy_glyphs


def write_pairs(folder: Path, drawn: DataSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Files in input/ and target/ of `drawn`, of kind noisy_glyphs; what they have, (N, C, H, W) in [0, 1] each."""
    source, _ = open_noisy_glyphs(drawn)
    pairs = tuple((255 * one).round() for one in source.pairs(np.arange(drawn.images), None))
    for name, pixels_NCHW in zip(("input", "target"), pairs, strict=True):
        (folder / name).mkdir()
        for number, pixels_HWC in enumerate(pixels_NCHW.byte().movedim(1, -1).numpy()):
            Image.fromarray(pixels_HWC).save(folder / name / f"{number:04}.png")
    return pairs[0] / 255, pairs[1] / 255
