"""Pictures of single images, as the network gets them: small PNG files."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tasks.base.artifacts import write_bytes
from tasks.data import Batch

MOST_PIXELS = 64
"""Largest width and height of a picture."""


def write_pictures(batches: Iterable[Batch], files: Mapping[int, Sequence[Path]]) -> None:
    """Write each image whose number, counted over all batches, is in `files` into its files."""
    first, last = 0, max(files, default=-1)
    for x_BCHW, _ in batches:
        for row in range(len(x_BCHW)):
            for file in files.get(first + row, ()):
                file.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(file, png(x_BCHW[row]))
        first += len(x_BCHW)
        if first > last:
            break


def png(x_CHW: torch.Tensor) -> bytes:
    """One image as PNG, its darkest value black and its brightest white. Only the first channel is shown if there are not 3."""
    values = x_CHW.detach().float().cpu().numpy()
    values = values if len(values) == 3 else values[:1]
    low, high = float(values.min()), float(values.max())
    bytes_CHW = ((values - low) / max(high - low, 1e-9) * 255).round().astype(np.uint8)
    picture = Image.fromarray(bytes_CHW.transpose(1, 2, 0) if len(bytes_CHW) == 3 else bytes_CHW[0])
    picture.thumbnail((MOST_PIXELS, MOST_PIXELS))
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return stream.getvalue()
