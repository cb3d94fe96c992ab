"""Pictures in pairs of files: images with targets for restoration, and images with masks for segmentation.

Pairs are files of the same names in two folders, or rows of a list `pairs.csv` beside them.

Images with targets are PATH/input/* with PATH/target/*, or the same in folders train, val and test. Networks see a part
of each image, in their input size, and the same part of its target, which may be larger by a whole factor. Images are
not scaled, because scaling would remove the details to be restored, just as it removes noise.

Images with masks in PNG are PATH/images/* with PATH/masks/*.png, or the same in folders train, val and test. A pixel of
a mask, which is grey or has a palette, is the number of its class, or 255: unlabelled. Names of classes are the lines
of PATH/classes.txt, in order from 0; without that file they are the numbers. Images are scaled as a whole.

Legend: B batch, C channels, H height, W width, N images, K classes.
"""

import csv
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS

from tasks.base.errors import UserError, shortened
from tasks.data.images import UNDECODED, WHOLE_SCALING, Decoder, PixelBox, central_part, random_part, whole_box
from tasks.data.problems.restoration import CHANNELS, MOST_UPSCALE
from tasks.data.problems.segmentation import IGNORED
from tasks.data.settings import DataSettings
from tasks.data.source import Source, Splits, first_of, named_file, numbered, rarest_classes, split_folders

LIST_FILE = "pairs.csv"


class Side(NamedTuple):
    """One side of the pairs: the pictures or their partners. called: one of them, in messages and as the column of a list.

    folder: of their files, inside that of a split. suffixes: of their names.
    """

    called: str
    folder: str
    suffixes: tuple[str, ...] = tuple(IMG_EXTENSIONS)

    @property
    def suffix(self) -> str:
        """The suffix in patterns; "" if there are several."""
        return self.suffixes[0] if len(self.suffixes) == 1 else ""


class FilePair(NamedTuple):
    """A picture and its partner."""

    image: Path
    partner: Path


class PictureHead(NamedTuple):
    """Mode and size of a picture. mode: Pillow's, the content of a pixel."""

    mode: str
    width: int
    height: int


def file_pairs(settings: DataSettings, image: Side, partner: Side) -> tuple[list[FilePair], Splits]:
    """All pairs, and the pairs of each split that has its own folder.

    UserError: no folders or no pictures in them, a file without its partner, or a broken list.
    """
    found = {}
    for split, folder in split_folders(settings).items():
        given = folder / LIST_FILE
        own = _listed(given, image, partner, settings) if given.is_file() else _equally_named(folder, image, partner)
        found[split] = own
    return numbered(found)


def head_of(called: str, file: Path) -> PictureHead:
    """The head of a picture, without decoding it. UserError: it is not a picture."""
    try:
        with Image.open(file) as opened:
            return PictureHead(opened.mode, *opened.size)
    except UNDECODED as error:
        raise undecoded(called, file, error) from error


def undecoded(called: str, file: Path, error: Exception) -> UserError:
    """The error for a file that is not a picture."""
    got = f"cannot be decoded ({type(error).__name__})"
    return UserError(f"{called} '{file}'", got, next_step="remove or replace it")


def check_sizes(
    partner: Side,
    pair: FilePair,
    own: tuple[int, int],
    image: PictureHead,
    upscale: int = 1,
    next_step: str = "replace one of them",
) -> None:
    """UserError unless the partner is `upscale` times as wide and as high as its image. own: its width and height."""
    width, height = upscale * image.width, upscale * image.height
    if own != (width, height):
        got = f"{own[0]} x {own[1]} pixels, but '{pair.image}' has {image.width} x {image.height}"
        allowed = f"{width} x {height}, by data.upscale={upscale}" if upscale > 1 else ""
        raise UserError(f"{partner.called} '{pair.partner}'", got, allowed=allowed, next_step=next_step)


def _equally_named(folder: Path, image: Side, partner: Side) -> list[FilePair]:
    """The pairs of a split. UserError: no pictures, or a file without its partner."""
    images, partners = folder / image.folder, folder / partner.folder
    if not (images.is_dir() and partners.is_dir()):
        patterns = " and ".join(f"{side.folder}/*{side.suffix}" for side in (image, partner))
        raise UserError(
            f"data folder '{folder}'",
            f"no folders '{image.folder}' and '{partner.folder}'",
            allowed=f"{patterns} of the same names, or a list {LIST_FILE}",
            next_step="choose another with data.path=FOLDER",
        )
    left, right = _by_name(images.iterdir(), image), _by_name(partners.iterdir(), partner)
    for name, file in left.items():
        if name not in right:
            got = f"no {partner.called} '{partners / name}{partner.suffix or '.*'}'"
            raise UserError(f"{image.called} '{file}'", got, next_step="add or remove it")
    for name, file in right.items():
        if name not in left:
            got = f"no {image.called} of this name in '{images}'"
            raise UserError(f"{partner.called} '{file}'", got, next_step="add or remove it")
    if not left:
        raise UserError(f"data folder '{images}'", "no images", allowed=f"*{{{','.join(image.suffixes)}}}")
    return [FilePair(file, right[name]) for name, file in left.items()]


def _by_name(files: Iterable[Path], side: Side) -> dict[str, Path]:
    """Name without suffix -> the picture. UserError: two have the same name."""
    found: dict[str, Path] = {}
    for file in sorted(files):
        if file.suffix.lower() in side.suffixes and not file.name.startswith("."):
            if file.stem in found:
                got = f"'{found[file.stem].name}' has the same name"
                raise UserError(f"{side.called} '{file}'", got, next_step="rename or remove one of them")
            found[file.stem] = file
    return found


def _listed(file: Path, image: Side, partner: Side, settings: DataSettings) -> list[FilePair]:
    """The rows of a list. UserError: it cannot be read, or a row (numbered from 1) is invalid."""
    where, columns = f"list '{file}'", (image.called, partner.called)
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, strict=True)
            given = reader.fieldnames or ()
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(where, f"cannot be read ({shortened(error, 80)})", next_step="mend it") from error
    for column in columns:
        if column not in given:
            got = f"no column '{column}'"
            raise UserError(where, got, allowed=", ".join(columns), next_step="name both in its first row")
    if not rows:
        raise UserError(where, "has no rows", next_step="remove it")
    root = settings.path or file.parent
    return [
        FilePair(*(named_file(where, number, column, row[column], file.parent, root) for column in columns))
        for number, row in enumerate(rows, 1)
    ]


SIDES = Side("input", "input"), Side("target", "target")
MODES = {1: ("L",), 3: ("L", "RGB")}
"""Modes of Pillow, by channels of data: a byte for each pixel, or for each of its colours."""


class PairedPictures(Source):
    """Files with targets, decoded on demand. `class_names` are those of the output channels of networks.

    Heads of all files are read once. All images count alike for splits: `labels` (N,) are 0.
    """

    has_classes = False

    def __init__(self, settings: DataSettings) -> None:
        """UserError: missing folders, files that do not belong together, or a file that is not a picture of these channels, is
        smaller than the network's input, or does not fit its partner.
        """
        pairs, self.given = file_pairs(settings, *SIDES)
        self.class_names = CHANNELS[settings.channels]
        self.labels = np.zeros(len(pairs), dtype=np.int64)
        self._pairs = pairs
        parts = partial(central_part, settings.resolution), partial(random_part, settings.resolution)
        self._decoder = Decoder(settings, *parts)
        large = settings.model_copy(update={"resolution": settings.upscale * settings.resolution})
        plain, drawn = (partial(_part_of_target, settings.upscale, part) for part in parts)
        self._target_decoder = Decoder(large, plain, drawn)
        with ThreadPoolExecutor(settings.workers, thread_name_prefix="pairs") as pool:
            list(pool.map(partial(_check, settings), pairs))

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


UNLABELLED = 255
NAMES_FILE = "classes.txt"
MASK_SIDES = Side("image", "images"), Side("mask", "masks", (".png",))
MASK_MODES = ("L", "P")
"""Modes of Pillow with a byte per pixel: its brightness, or its index into a palette."""


class MaskedPictures(Source):
    """Files with masks, decoded on demand. labels: the rarest class of each image, if that has enough images.

    All masks are read once. occurring: the classes of each image, without `UNLABELLED`.
    """

    scaling = WHOLE_SCALING
    has_classes = False

    def __init__(self, settings: DataSettings) -> None:
        """UserError: files do not belong together, or a mask does not fit its image, or has a class without a name."""
        assert settings.path is not None
        files, self.given = file_pairs(settings, *MASK_SIDES)
        self._files, self._size = files, (settings.resolution, settings.resolution)
        self._decoder = Decoder(settings, whole_box)
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="masks")
        names = _names(settings.path)
        self.occurring = list(self._pool.map(partial(_classes_of, len(names) if names else UNLABELLED), files))
        count = 1 + max((int(own.max()) for own in self.occurring if len(own)), default=0)
        self.class_names = names or tuple(map(str, range(count)))
        self.labels = rarest_classes(self.occurring, len(self.class_names))
        if len(self.class_names) < 2:
            raise UserError(f"data folder '{settings.path}'", "masks of one class", allowed="two or more")

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Decoded images. They can be augmented only together with masks, so `draws` is None."""
        assert draws is None, "images are augmented together with their masks"
        return self._decoder.files([self._files[index].image for index in indices], None)

    def masked(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """x_BCHW float32 in [0, 1], and the class of each pixel y_BHW int64, from the nearest pixel of the mask."""
        masks = list(self._pool.map(self._scaled, indices))
        y_BHW = torch.from_numpy(np.stack(masks).astype(np.int64))
        return self.images(indices, None), torch.where(y_BHW == UNLABELLED, IGNORED, y_BHW)

    def splits(self, settings: DataSettings) -> Splits:
        """All splits. UserError for a class that is judged but not trained; notes list the classes that a split lacks."""
        splits = super().splits(settings)
        has = {split: {int(label) for index in own for label in self.occurring[index]} for split, own in splits.items()}
        nowhere = [name for label, name in enumerate(self.class_names) if not any(label in one for one in has.values())]
        if nowhere:
            self.notes += (f"data: no pixel of {first_of(nowhere)} in any mask",)
        for split, own in has.items():
            missing = [name for label, name in enumerate(self.class_names) if label not in own and name not in nowhere]
            if missing and split == "train":
                got = f"no pixel of {len(missing)} of {len(self.class_names)} classes in train: {first_of(missing)}"
                raise UserError(f"data '{settings.path}'", got, next_step="add images with each class")
            if missing:
                described = f"data: {split} has no pixel of {first_of(missing)}, and is judged by the other classes"
                self.notes += (described,)
        return splits

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
            if opened.mode in MASK_MODES:
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
    check_sizes(MASK_SIDES[1], pair, (width, height), head_of("image", pair.image))
    found = np.unique(mask_HW).astype(np.int64)
    if len(unknown := found[(found >= classes) & (found != UNLABELLED)]):
        row, column = np.argwhere(mask_HW == unknown[0])[0]
        got = f"row {row + 1}, column {column + 1}: class {unknown[0]}"
        allowed = f"0 to {classes - 1}, the lines of {NAMES_FILE}; {UNLABELLED} where nobody has labelled"
        raise UserError(f"mask '{pair.partner}'", got, allowed=allowed, next_step="mend it")
    return found[found != UNLABELLED]
