"""Small real image files: one colour per class, so that labels can be read off the pixels."""

import io

import numpy as np
from PIL import Image

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


def encoded(colour: tuple[int, int, int], size: tuple[int, int] = (40, 30), file_format: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((size[1], size[0], 3), colour, dtype=np.uint8)).save(stream, file_format, quality=95)
    return stream.getvalue()
