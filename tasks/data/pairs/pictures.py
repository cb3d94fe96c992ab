"""Images with targets, both in files: PATH/input/* with PATH/target/* of the same names, or in folders train, val and test.

A list of them may replace the two folders (`tasks.data.pairs.files`). Networks see a part of each image, in their input size,
and the same part of its target, which may be larger by a whole factor. Images are not scaled, because scaling would remove what
is to be restored, just as it removes noise. Legend: B batch, C channels, H height, W width, N images.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tasks.base.errors import UserError
from tasks.data.decode import Decoder
from tasks.data.images import PixelBox, central_part, random_part
from tasks.data.pairs.files import FilePair, PictureHead, Side, check_sizes, file_pairs, head_of
from tasks.data.problems.restoration import CHANNELS, MOST_UPSCALE
from tasks.data.settings import DataSettings
from tasks.data.source import Scaling, complete_splits

SIDES = Side("input", "input"), Side("target", "target")
MODES = {1: ("L",), 3: ("L", "RGB")}
"""Modes of Pillow, by channels of data: a byte for each pixel, or for each of its colours."""


class PairedPictures:
    """Files with targets, decoded on demand. `class_names` are those of the output channels of networks.

    Heads of all files are read once. All images count alike for splits: `labels` (N,) are 0.
    """

    scaling = Scaling("none", "none")
    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, pairs: Sequence[FilePair]) -> None:
        """UserError: a file is not a picture of these channels, is smaller than the network's input, or does not fit its
        partner.
        """
        self.class_names = CHANNELS[settings.channels]
        self.labels = np.zeros(len(pairs), dtype=np.int64)
        self._pairs = pairs
        parts = partial(central_part, settings.resolution), partial(random_part, settings.resolution)
        self._decoder = Decoder(settings, *parts)
        large = settings.model_copy(update={"resolution": settings.upscale * settings.resolution})
        self._target_decoder = Decoder(large, *(partial(_part_of_target, settings.upscale, part) for part in parts))
        with ThreadPoolExecutor(settings.workers, thread_name_prefix="pairs") as pool:
            list(pool.map(partial(_check, settings), pairs))

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since each image is its own file."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """The middles of images; `draws` choose other parts, and flip them."""
        return self._decoder.files([self._pairs[index].image for index in indices], draws)

    def pairs(self, indices: np.ndarray, draws: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and targets, (B, C, H, W) in [0, 1]: the same parts of both, flipped alike."""
        targets = [self._pairs[index].partner for index in indices]
        return self.images(indices, draws), self._target_decoder.files(targets, draws)


def _part_of_target(
    upscale: int, part: Callable[..., PixelBox], height: int, width: int, *draws_D: np.ndarray
) -> PixelBox:
    """The part of a target that shows the same as `part` of the image; the target is `upscale` times as high and wide."""
    top, left, rows, columns = part(height // upscale, width // upscale, *draws_D)
    return upscale * top, upscale * left, upscale * rows, upscale * columns


def _check(settings: DataSettings, pair: FilePair) -> None:
    image, target = (_checked(side, file, settings.channels) for side, file in zip(SIDES, pair, strict=True))
    own, advice = (target.width, target.height), "replace one of them"
    factor = target.width // image.width
    if own == (factor * image.width, factor * image.height) and factor in range(1, MOST_UPSCALE + 1):
        advice += f", or set data.upscale={factor}"
    check_sizes(SIDES[1], pair, own, image, settings.upscale, advice)
    least = settings.resolution
    if min(image.width, image.height) < least:
        raise UserError(
            f"input '{pair.image}'",
            f"{image.width} x {image.height} pixels",
            allowed=f"{least} x {least} or more, of data.resolution",
            next_step="remove it with its target, or set data.resolution",
        )


def _checked(side: Side, file: Path, channels: int) -> PictureHead:
    head = head_of(side.called, file)
    if head.mode not in MODES[channels]:
        raise UserError(
            f"{side.called} '{file}'",
            f"is a picture of mode {head.mode}",
            allowed=f"{' or '.join(MODES[channels])}, of 8 bits, with data.channels={channels}",
            next_step="convert it, or set data.channels",
        )
    return head


def open_pairs(settings: DataSettings) -> tuple[PairedPictures, dict[str, np.ndarray]]:
    """The source and its splits; splits without a folder are shares of the training images.

    UserError: missing folders, files that do not belong together, or too few of them.
    """
    pairs, splits = file_pairs(settings, *SIDES)
    source = PairedPictures(settings, pairs)
    return source, complete_splits(splits, source, settings)
