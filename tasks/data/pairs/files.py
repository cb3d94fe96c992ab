"""Pictures with a partner each: files of the same names in two folders, or rows of a list `pairs.csv` beside them."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS

from tasks.base.errors import UserError, shortened
from tasks.data.decode import UNDECODED
from tasks.data.settings import DataSettings
from tasks.data.source import named_file, split_folders

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


def file_pairs(settings: DataSettings, image: Side, partner: Side) -> tuple[list[FilePair], dict[str, np.ndarray]]:
    """All pairs, and the pairs of each split that has its own folder.

    UserError: no folders or no pictures in them, a file without its partner, or a broken list.
    """
    pairs: list[FilePair] = []
    splits: dict[str, np.ndarray] = {}
    for split, folder in split_folders(settings).items():
        given = folder / LIST_FILE
        own = _listed(given, image, partner, settings) if given.is_file() else _equally_named(folder, image, partner)
        splits[split] = np.arange(len(pairs), len(pairs) + len(own))
        pairs += own
    return pairs, splits


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
