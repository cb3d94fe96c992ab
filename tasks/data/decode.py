"""Decode image files into one tensor, on threads (Pillow releases the interpreter lock while it decodes)."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from tasks.base.errors import UserError
from tasks.data.images import PixelBox, central_box, random_box
from tasks.data.settings import DataSettings
from tasks.data.source import Scaling

SCALING = Scaling("central square", "bilinear, antialiased")
"""The scaling of images without augmentation."""
WHOLE_SCALING = Scaling("none", "bilinear, antialiased")
"""The scaling of images with boxes, which are scaled as a whole."""
UNDECODED = (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError)
"""Errors of Pillow for files that are not images."""
Content = tuple[str, Callable[[], Image.Image]]
"""The name of an image in messages, such as a file in quotes with its row, and a function that opens it."""


class Decoder:
    """Images of any size (PNG, JPEG, …) -> x_BCHW float32 in [0, 1] at the base resolution."""

    def __init__(
        self,
        settings: DataSettings,
        plain_box: Callable[[int, int], PixelBox] = central_box,
        drawn_box: Callable[[int, int, np.ndarray], PixelBox] = random_box,
    ) -> None:
        """Set how to choose the scaled part of an image (height, width). plain_box: without augmentation; drawn_box: from
        draws.
        """
        self._plain_box, self._drawn_box = plain_box, drawn_box
        self._size = (settings.resolution, settings.resolution)
        self._mode = "L" if settings.channels == 1 else "RGB"
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="decode")

    def batch(self, contents: Sequence[Content], draws: np.ndarray | None) -> torch.Tensor:
        """Decode and scale images; with `draws`, take a random box and flip."""
        rows = [None] * len(contents) if draws is None else list(draws)
        pixels_BHWC = np.stack(list(self._pool.map(self._one, contents, rows)))
        return torch.from_numpy(pixels_BHWC).permute(0, 3, 1, 2).to(torch.float32).div_(255)

    def files(self, files: Sequence[Path], draws: np.ndarray | None) -> torch.Tensor:
        """Like `batch`, for files, which messages name."""
        return self.batch([(f"'{file}'", partial(Image.open, file)) for file in files], draws)

    def _one(self, content: Content, draws_D: np.ndarray | None) -> np.ndarray:
        told, open_image = content
        try:
            with open_image() as opened:
                image = opened.convert(self._mode)
        except UNDECODED as error:
            raise UserError(
                f"image {told}", f"cannot be decoded ({type(error).__name__})", next_step="remove or replace it"
            ) from error
        top, left, height, width = (
            self._plain_box(image.height, image.width)
            if draws_D is None
            else self._drawn_box(image.height, image.width, draws_D)
        )
        image = image.resize(self._size, Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
        if draws_D is not None and draws_D[4] < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(image, dtype=np.uint8)
        return pixels[:, :, None] if pixels.ndim == 2 else pixels
