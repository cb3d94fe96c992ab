"""The protocol of all kinds of data: labels at once, images on demand."""

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np

from adaptive_runtime.samples.several import NumbersPreparation
from adaptive_runtime.samples.signals import Spectrogram
from adaptive_runtime.samples.texts import TextPreparation, Vocabulary
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.data.batches import Inputs
from tasks.data.settings import WITHOUT_FILES, DataSettings
from tasks.data.stratified import TooFewError, stratified

WITH_CLASS_FOLDERS = ("imagefolder", "wavfolder")
"""Kinds with a folder for each class."""
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}
"""Allowed names of folders and files of splits."""


OtherInput = NumbersPreparation | Spectrogram | TextPreparation
"""The preparation of an input other than an image: numbers, a sound (which becomes an image), or a text."""


class Scaling(NamedTuple):
    """The scaling of an image to the base resolution: the part that is cut out first, and the interpolation.

    spectrogram: the conversion of a signal to an image in that resolution; None: no signals. vocabulary: for texts, which are
    cut or padded to the base number of words; None: no texts. inputs: for samples with several inputs, by name in their order;
    an image (None) is scaled by crop and interpolation, others have their own preparation.
    """

    crop: Literal["central square", "none"]
    interpolation: Literal["bilinear, antialiased", "bicubic, antialiased", "none"]
    spectrogram: Spectrogram | None = None
    vocabulary: Vocabulary | None = None
    inputs: Mapping[str, OtherInput | None] | None = None


class Source(Protocol):
    """All images of one kind of data; a split is a set of indices into it."""

    labels: np.ndarray
    """(N,) int64 class of every image."""
    class_names: tuple[str, ...]
    scaling: Scaling
    """The scaling of images without `draws`."""
    notes: tuple[str, ...]
    """Warnings for the user about the data, one line each."""

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """`indices` in a random order in which batches of `batch_size`, and equal slices of them, are read fast."""
        ...

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> Inputs:
        """x_BCHW float32 in [0, 1] at the base resolution; augmented by `draws` (B, DRAWS) in [0, 1).

        For texts: numbers of words (B, T) int64. For samples with several inputs: such images and texts, and numbers (B, …)
        unscaled.
        """
        ...


def check_classes(source: Source, splits: Mapping[str, np.ndarray], settings: DataSettings) -> None:
    """UserError for a split that lacks a class."""
    check_labels(source.labels, source.class_names, splits, settings)


def check_labels(
    labels: np.ndarray, names: Sequence[str], splits: Mapping[str, np.ndarray], settings: DataSettings
) -> None:
    """Like `check_classes`, for labels (N,) and class names; also refuses a single class, which teaches nothing."""
    if len(names) == 1:
        raise UserError(
            f"data '{settings.path or settings.kind}'",
            f"one class alone, {names[0]}: there is nothing to tell it from",
            allowed="2 classes or more",
            next_step=f"add {settings.sample}s of another class",
        )
    for name, indices in splits.items():
        counts = np.bincount(labels[indices], minlength=len(names))
        missing = [names[label] for label in np.flatnonzero(counts == 0).tolist()]
        if missing:
            raise UserError(
                f"data '{settings.path or settings.kind}'",
                f"no {settings.sample} of {len(missing)} of {len(counts)} classes in {name}: {first_of(missing)}",
                next_step=f"add {settings.sample}s of each class",
            )


def first_of(names: Sequence[str], most: int = 5) -> str:
    """The names for a message; only the first few of many."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def unreadable(file: Path, error: OSError) -> UserError:
    """The error for a file of the user's data that cannot be read, such as a broken link."""
    got = "is a link to nothing" if file.is_symlink() and not file.exists() else f"cannot be read ({error.strerror})"
    return UserError(f"data file '{file}'", got, next_step="mend or remove it")


def named_file(where: str, row: int, column: str, name: str | None, folder: Path, root: Path) -> Path:
    """The file named in a row of a table, relative to the table's folder. where: the table; row: from 1 on.

    UserError: it does not exist, or is not below `root`, where changes would go unnoticed.
    """
    if not name:
        raise UserError(where, f"row {row}: nothing in column '{column}'", next_step="fill or remove it")
    got = f"row {row}: column '{column}' names '{name}'"
    if not Path(os.path.normpath(folder / name)).is_relative_to(os.path.normpath(root)):
        raise UserError(where, got, allowed=f"files below '{root}'", next_step="mend or remove it")
    if not os.path.isfile(folder / name):  # os.path.isfile raises no error for impossible names
        raise UserError(where, f"{got}, which is no file in '{folder}'", next_step="mend or remove it")
    return folder / name


def check_folder(settings: DataSettings) -> None:
    """UserError: the data folder does not exist, is empty, or lacks folders of classes if the kind needs them."""
    root, another = settings.path, "choose another with data.path=FOLDER"
    if root is None or settings.kind in WITHOUT_FILES or (settings.kind == "parquet" and root.is_file()):
        return
    if not root.is_dir():
        got = "is no folder" if root.exists() else "does not exist"
        raise UserError(f"data folder '{root}'", got, next_step=another)
    if not os.access(root, os.R_OK | os.X_OK):
        raise UserError(f"data folder '{root}'", "cannot be read (Permission denied)", next_step=another)
    if not any(root.iterdir()):
        raise UserError(f"data folder '{root}'", "is empty", next_step=another)
    for folder in split_folders(settings).values() if settings.kind in WITH_CLASS_FOLDERS else ():
        if not any(one.is_dir() and not one.name.startswith(".") for one in folder.iterdir()):
            allowed = f"CLASS/FILES: a folder for each class of {settings.sample}s"
            raise UserError(f"data folder '{folder}'", "no class folder", allowed=allowed, next_step=another)


def split_folders(settings: DataSettings) -> dict[str, Path]:
    """The folder of each split in `settings.path`; only that path, as "train", if there is no folder for training.

    UserError if the path does not exist.
    """
    root = settings.path
    assert root is not None
    require_folder(root)
    check_files(root)
    found = {split: root / name for split, names in SPLIT_NAMES.items() for name in names if (root / name).is_dir()}
    return found if "train" in found else {"train": root}


def split_by_shares(
    indices: np.ndarray, source: Source, share: float, settings: DataSettings, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """The kept and the held-out indices, both sorted, stratified by class and fixed by `settings.seed`.

    Raises UserError if a class has too few images to be in both.
    """
    labels = source.labels[indices]
    try:
        kept, held = stratified(labels, round(share * len(indices)), settings.seed)
    except TooFewError as error:
        own = "" if settings.kind == "pairs" else f" {_of_classes(source, labels)}"
        raise UserError(
            f"data '{settings.path or settings.kind}'",
            f"{len(indices)} {settings.sample}s{own}: too few to hold out {share:.0%} for {name}",
            next_step=f"add {settings.sample}s or give a {name} folder",
        ) from error
    return np.sort(indices[kept]), np.sort(indices[held])


def _of_classes(source: Source, labels: np.ndarray) -> str:
    """The classes with fewest images: names of classes without any, or the smallest class with its number."""
    names = source.class_names
    counts = np.bincount(labels, minlength=len(names))
    if empty := [names[label] for label in np.flatnonzero(counts == 0)]:
        return f"of {len(names)} classes, none of {first_of(empty)}"
    smallest = int(counts.argmin())
    return f"of {len(names)} classes, {counts[smallest]} of the smallest, {names[smallest]}"


def complete_splits(splits: dict[str, np.ndarray], source: Source, settings: DataSettings) -> dict[str, np.ndarray]:
    """Give validation and test, if missing, their shares of the training images."""
    total = len(splits["train"])
    for name, share in (("test", settings.test_share), ("validation", settings.validation_share)):
        if name not in splits:
            left = share * total / len(splits["train"])
            splits["train"], splits[name] = split_by_shares(splits["train"], source, left, settings, name)
    return splits


def require_folder(root: Path) -> None:
    """UserError if a data folder does not exist."""
    if not root.is_dir():
        got = "is no folder" if root.exists() else "does not exist"
        raise UserError(f"data folder '{root}'", got, next_step="choose another with data.path=FOLDER")


def check_files(root: Path, above: Sequence[os.stat_result] = ()) -> None:
    """UserError for entries that no reader can take: names that are not UTF-8, pipes and devices, which would block.

    Circular links are refused, too. above: folders that contain `root`.
    """
    try:
        own = root.stat()
        if any(os.path.samestat(own, one) for one in above):
            raise OSError(errno.ELOOP, "", str(root))
        with os.scandir(root) as entries:
            for entry in entries:
                check_name(entry.path)
                if entry.is_dir():
                    check_files(Path(entry.path), (*above, own))
                elif not entry.is_file() and Path(entry.path).exists():
                    raise UserError(f"data file '{entry.path}'", "is a pipe, socket or device", next_step="remove it")
    except OSError as error:
        file = Path(error.filename or root)
        if error.errno != errno.ELOOP:
            raise unreadable(file, error) from error
        allowed = "a folder whose links lead to files and to other folders"
        raise UserError(
            "data.path", f"link '{file}' leads in a circle", allowed=allowed, next_step="remove it"
        ) from error


def check_name(path: str) -> None:
    """UserError for a path that is not UTF-8: JSON, pages and cards could not name it."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"data file '{path}'", "has a name that is not UTF-8", next_step="rename it") from error


def listing_of(root: Path) -> str:
    """A digest of all files of a folder, by relative name, size and time of change.

    UserError: a file cannot be read, e.g. a broken link.
    """
    require_folder(root)
    rows = []
    for folder, folders, names in os.walk(root, followlinks=True):
        folders.sort()
        for name in sorted(names):
            file = Path(folder) / name
            check_name(str(file))
            try:
                status = file.stat()
            except OSError as error:
                raise unreadable(file, error) from error
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"data file '{file}'", "is a pipe, socket or device", next_step="remove it")
            rows.append([str(file.relative_to(root)), status.st_size, status.st_mtime_ns])
    return digest_of(rows)
