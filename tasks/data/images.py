"""Arithmetic on batches of images, and decoding of image files into one tensor, on threads.

Pillow releases the interpreter lock while it decodes. Texts only change their length.

Legend: B batch, C channels, H height, W width, D draws, T words; pixels in [0, 1].
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.nn import functional

from adaptive_runtime.samples.inputs import PADDING
from tasks.base.errors import UserError
from tasks.data.batches import Inputs, each
from tasks.data.samples import Size
from tasks.data.settings import DataSettings
from tasks.data.source import Scaling

DRAWS = 5
"""Uniform numbers per image and epoch for augmentation (independent of worker and rank)."""
PixelBox = tuple[int, int, int, int]
"""(top, left, height, width) of a part of an image, in pixels."""
InputsT = TypeVar("InputsT", bound=Inputs)
INTERPOLATION = "bilinear, antialiased"
"""The interpolation of `resize`."""
MOST_CHANNELS = 4
"""Images with at most so many numbers along the last axis may have their channels there."""


def resize(x: InputsT, size: Size) -> InputsT:
    """Scale images to (height, width), bilinear with anti-aliasing; cut texts (B, T), or pad them with `PADDING`.

    Images are (B, C, H, W), or (B, H, W, C) with few channels, if height and width then have the ratio of `size`. Among several
    inputs the images are scaled. Tensors that already have the size are returned unchanged.
    """
    is_single = isinstance(x, torch.Tensor)
    return each(x, lambda one: _resized(one, size) if is_single or one.ndim == 4 else one)


def _resized(x: torch.Tensor, size: Size) -> torch.Tensor:
    has_size = tuple(x.shape[x.ndim - len(size) :]) == tuple(size)
    if has_size or (x.ndim == 4 and x.shape[3] in (1, 3) and tuple(x.shape[1:3]) == tuple(size)):  # channels last
        return x
    if len(size) == 1:
        return functional.pad(x, (0, size[0] - x.shape[1]), value=PADDING)  # a negative number cuts
    if _has_channels_last(tuple(x.shape[1:]), size):
        return x if tuple(x.shape[1:3]) == tuple(size) else _resized(x.movedim(3, 1), size).movedim(1, 3).contiguous()
    return functional.interpolate(x, size=list(size), mode="bilinear", align_corners=False, antialias=True)


def _has_channels_last(shape: tuple[int, ...], size: Size) -> bool:
    """Whether a size has the ratio of the first two axes of images, rather than of the last two, before few channels."""
    ratios = [
        abs(math.log(size[0] * one / (size[1] * other))) for one, other in zip(shape[1:], shape[:-1], strict=True)
    ]
    return shape[-1] <= MOST_CHANNELS and ratios[0] < ratios[1]


def jitter(x_BCHW: torch.Tensor, draws_BD: np.ndarray) -> torch.Tensor:
    """Shift up to 8 %, turn up to 12 degrees, scale by 0.9 to 1.1; no flips, since they change digits."""
    spread = torch.from_numpy(draws_BD.astype(np.float32)) * 2 - 1
    angle = spread[:, 0] * math.radians(12)
    scale = 1 / (1 + spread[:, 1] * 0.1)
    shift = spread[:, 2:4] * 0.16
    cosine, sine = torch.cos(angle) * scale, torch.sin(angle) * scale
    rows = [torch.stack([cosine, -sine, shift[:, 0]], 1), torch.stack([sine, cosine, shift[:, 1]], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(x_BCHW.shape), align_corners=False)
    return functional.grid_sample(x_BCHW, grid, padding_mode="border", align_corners=False)


def random_box(height: int, width: int, draws_D: np.ndarray) -> PixelBox:
    """A box with 25 to 100 % of the area, ratio 3/4 to 4/3, cut to fit the image."""
    area = height * width * (0.25 + 0.75 * draws_D[0])
    ratio = math.exp((2 * draws_D[1] - 1) * math.log(4 / 3))
    box_width = min(width, max(1, round(math.sqrt(area * ratio))))
    box_height = min(height, max(1, round(math.sqrt(area / ratio))))
    top = int(draws_D[2] * (height - box_height + 1))
    left = int(draws_D[3] * (width - box_width + 1))
    return top, left, box_height, box_width


def central_box(height: int, width: int) -> PixelBox:
    """The largest centred square."""
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def whole_box(height: int, width: int) -> PixelBox:
    """The whole image."""
    return 0, 0, height, width


def central_part(side: int, height: int, width: int) -> PixelBox:
    """A centred square of `side` pixels."""
    return (height - side) // 2, (width - side) // 2, side, side


def random_part(side: int, height: int, width: int, draws_D: np.ndarray) -> PixelBox:
    """A square of `side` pixels anywhere."""
    down, right = (float(draw) for draw in draws_D[2:4])  # products in float32 may be rounded up
    return int(down * (height - side + 1)), int(right * (width - side + 1)), side, side


SCALING = Scaling("central square", "bilinear, antialiased")
"""The scaling of images without augmentation."""
WHOLE_SCALING = Scaling("none", "bilinear, antialiased")
"""The scaling of images with boxes, which are scaled as a whole."""
UNDECODED = (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError)
"""Errors of Pillow for files that are not images."""
Content = tuple[str, Callable[[], Image.Image]]
"""The name of an image in messages, such as a file in quotes with its row, and a function that opens it."""


def decoded(content: Content, mode: str) -> Image.Image:
    """The image in a mode of Pillow: "RGB" or "L". UserError: it cannot be decoded."""
    described, open_image = content
    try:
        with open_image() as opened:
            return opened.convert(mode)
    except UNDECODED as error:
        raise UserError(
            f"image {described}", f"cannot be decoded ({type(error).__name__})", next_step="remove or replace it"
        ) from error


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
        image = decoded(content, self._mode)
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
