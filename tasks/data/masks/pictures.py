"""Images with masks in PNG: PATH/images/* with PATH/masks/*.png of the same names, or the same in folders train, val and test.

A list `pairs.csv` may replace the two folders (`tasks.data.pairs.files`). A pixel of a mask, which is grey or has a palette, is
the number of its class, or 255: unlabelled. Names of classes are the lines of PATH/classes.txt, in order from 0; without that
file they are the numbers. Images are scaled as a whole. Legend: B batch, H height, W width, K classes.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tasks.base.errors import UserError
from tasks.data.decode import UNDECODED, WHOLE_SCALING, Decoder
from tasks.data.images import whole_box
from tasks.data.pairs.files import FilePair, Side, check_sizes, file_pairs, head_of, undecoded
from tasks.data.problems.segmentation import IGNORED
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits, first_of
from tasks.data.stratified import rarest_classes

UNLABELLED = 255
NAMES_FILE = "classes.txt"
SIDES = Side("image", "images"), Side("mask", "masks", (".png",))
MODES = ("L", "P")
"""Modes of Pillow with a byte per pixel: its brightness, or its index into a palette."""


class MaskedPictures:
    """Files with masks, decoded on demand. labels: the rarest class of each image, if that has enough images.

    All masks are read once. occurring: the classes of each image, without `UNLABELLED`.
    """

    scaling = WHOLE_SCALING

    def __init__(self, settings: DataSettings, files: Sequence[FilePair]) -> None:
        """UserError: a mask does not fit its image, or has a class without a name."""
        assert settings.path is not None
        self.notes: tuple[str, ...] = ()
        self._files, self._size = files, (settings.resolution, settings.resolution)
        self._decoder = Decoder(settings, whole_box)
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="masks")
        names = _names(settings.path)
        self.occurring = list(self._pool.map(partial(_classes_of, len(names) if names else UNLABELLED), files))
        count = 1 + max((int(own.max()) for own in self.occurring if len(own)), default=0)
        self.class_names = names or tuple(map(str, range(count)))
        self.labels = rarest_classes(self.occurring, len(self.class_names))

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since each image is its own file."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Decoded images. They can be augmented only together with masks, so `draws` is None."""
        assert draws is None, "images are augmented together with their masks"
        return self._decoder.files([self._files[index].image for index in indices], None)

    def masked(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """x_BCHW float32 in [0, 1], and the class of each pixel y_BHW int64, from the nearest pixel of the mask."""
        masks = list(self._pool.map(self._scaled, indices))
        y_BHW = torch.from_numpy(np.stack(masks).astype(np.int64))
        return self.images(indices, None), torch.where(y_BHW == UNLABELLED, IGNORED, y_BHW)

    def _scaled(self, index: int) -> NDArray[np.uint8]:
        mask = Image.fromarray(_mask(self._files[index].partner))
        return np.asarray(mask.resize(self._size, Image.Resampling.NEAREST), dtype=np.uint8)


def _names(root: Path) -> tuple[str, ...]:
    """Names of the classes; () without a file of names. UserError: two names are equal, or the number of names is wrong."""
    file = root / NAMES_FILE
    if not file.is_file():
        return ()
    try:
        names = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"names '{file}'", f"cannot be read ({type(error).__name__})", next_step="mend it") from error
    if not 2 <= len(names) <= UNLABELLED:
        raise UserError(f"names '{file}'", f"{len(names)} lines", allowed=f"2 to {UNLABELLED}, one for each class")
    for row, name in enumerate(names):
        if name in names[:row]:
            got = f"row {row + 1}: '{name}' is there twice"
            raise UserError(f"names '{file}'", got, allowed="each class once")
    return names


def _mask(file: Path) -> NDArray[np.uint8]:
    """A mask (H, W) as stored. UserError: it cannot be decoded, or does not have one byte per pixel."""
    try:
        with Image.open(file) as opened:
            if opened.mode in MODES:
                return np.array(opened, dtype=np.uint8)
            mode = opened.mode
    except UNDECODED as error:
        raise undecoded("mask", file, error) from error
    allowed = "a grey image or one with a palette, of 8 bits a pixel, whose values are the numbers of classes"
    raise UserError(f"mask '{file}'", f"is a picture of mode {mode}", allowed=allowed, next_step="convert it")


def _classes_of(classes: int, pair: FilePair) -> NDArray[np.int64]:
    """The class numbers in a mask, ascending. UserError: a number is of no class, or the image has another size."""
    mask_HW = _mask(pair.partner)
    height, width = mask_HW.shape
    check_sizes(SIDES[1], pair, (width, height), head_of("image", pair.image))
    found = np.unique(mask_HW).astype(np.int64)
    if len(unknown := found[(found >= classes) & (found != UNLABELLED)]):
        row, column = np.argwhere(mask_HW == unknown[0])[0]
        got = f"row {row + 1}, column {column + 1}: class {unknown[0]}"
        allowed = f"0 to {classes - 1}, the lines of {NAMES_FILE}; {UNLABELLED} where nobody has labelled"
        raise UserError(f"mask '{pair.partner}'", got, allowed=allowed, next_step="mend it")
    return found[found != UNLABELLED]


def open_masks(settings: DataSettings) -> tuple[MaskedPictures, dict[str, np.ndarray]]:
    """The source and its splits; splits without a folder are shares of the training images.

    UserError: missing folders, files that do not belong together, or a class without a training image.
    """
    files, splits = file_pairs(settings, *SIDES)
    source = MaskedPictures(settings, files)
    if len(source.class_names) < 2:
        raise UserError(f"data folder '{settings.path}'", "masks of one class", allowed="two or more")
    splits = complete_splits(splits, source, settings)
    _check_classes(source, splits, settings)
    return source, splits


def _check_classes(source: MaskedPictures, splits: dict[str, np.ndarray], settings: DataSettings) -> None:
    """UserError for a class that is judged but not trained. Notes list the classes that a split lacks."""
    has = {split: {int(label) for index in own for label in source.occurring[index]} for split, own in splits.items()}
    nowhere = [name for label, name in enumerate(source.class_names) if not any(label in one for one in has.values())]
    if nowhere:
        source.notes += (f"data: no pixel of {first_of(nowhere)} in any mask",)
    for split, own in has.items():
        missing = [name for label, name in enumerate(source.class_names) if label not in own and name not in nowhere]
        if missing and split == "train":
            got = f"no pixel of {len(missing)} of {len(source.class_names)} classes in train: {first_of(missing)}"
            raise UserError(f"data '{settings.path}'", got, next_step="add images with each class")
        if missing:
            source.notes += (f"data: {split} has no pixel of {first_of(missing)}, and is judged by the other classes",)
