"""The protocol of all kinds of data: labels at once, images on demand."""

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np

from adaptive_runtime.several import NumbersPreparation
from adaptive_runtime.signals import Spectrogram
from adaptive_runtime.texts import TextPreparation, Vocabulary
from tasks.artifacts import digest_of
from tasks.data.batches import Inputs
from tasks.data.settings import WITHOUT_FILES, DataSettings
from tasks.data.stratified import TooFewError, stratified
from tasks.errors import UserError

WITH_CLASS_FOLDERS = ("imagefolder", "wavfolder")
"""Kinds with a folder for each class."""
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}
"""How folders and files of splits may be called."""


OtherInput = NumbersPreparation | Spectrogram | TextPreparation
"""What is done with an input that is no image: numbers, a sound, which becomes one, or a text."""


class Scaling(NamedTuple):
    """The way of an image to the base resolution: the part that is cut out first, and the interpolation.

    spectrogram: what makes an image of a signal, in that resolution; None: data are no signals. vocabulary: of texts, which are
    cut or filled up to the base number of words; None: there are no texts. inputs: of samples with several inputs, by name in
    their order; an image comes to the base resolution by crop and interpolation (None), and others are prepared otherwise.
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
    """The scaling by which `images` makes images without `draws`."""
    notes: tuple[str, ...]
    """What the user should know about the data, a line each."""

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """`indices` in a random order in which batches of `batch_size`, and equal slices of them, are read fast."""
        ...

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> Inputs:
        """x_BCHW float32 in [0, 1] at the base resolution; augmented by `draws` (B, DRAWS) in [0, 1).

        Of texts: numbers of words (B, T) int64. Of samples with several inputs: such images and texts, and numbers (B, …) as
        they are.
        """
        ...


def check_classes(source: Source, splits: Mapping[str, np.ndarray], settings: DataSettings) -> None:
    """Raises UserError for a split that lacks a class."""
    check_labels(source.labels, source.class_names, splits, settings)


def check_labels(
    labels: np.ndarray, names: Sequence[str], splits: Mapping[str, np.ndarray], settings: DataSettings
) -> None:
    """The same of labels (N,) and the names of their classes; also for a class alone, of which nothing can be learned."""
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
    """The names for a message, only the first ones of many."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def unreadable(file: Path, error: OSError) -> UserError:
    """The error of a file of the user's data that is no file, such as a link to nothing."""
    got = "is a link to nothing" if file.is_symlink() and not file.exists() else f"cannot be read ({error.strerror})"
    return UserError(f"data file '{file}'", got, next_step="mend or remove it")


def named_file(where: str, row: int, column: str, name: str | None, folder: Path, root: Path) -> Path:
    """The file that a row of a table names, relative to the table's folder. where: the table; row: from 1 on.

    UserError: there is none, or it is elsewhere than below `root`, where it would change unseen.
    """
    if not name:
        raise UserError(where, f"row {row}: nothing in column '{column}'", next_step="fill or remove it")
    got = f"row {row}: column '{column}' names '{name}'"
    if not Path(os.path.normpath(folder / name)).is_relative_to(os.path.normpath(root)):
        raise UserError(where, got, allowed=f"files below '{root}'", next_step="mend or remove it")
    if not os.path.isfile(folder / name):  # no error for a name that cannot be
        raise UserError(where, f"{got}, which is no file in '{folder}'", next_step="mend or remove it")
    return folder / name


def check_folder(settings: DataSettings) -> None:
    """UserError: the folder of the data is not there, is empty, or has no folders of classes where the kind asks for them."""
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
    """The folder of each split in `settings.path`; that one alone where there is none for training.

    Raises UserError where it does not exist.
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
    """(kept, held out), both sorted, stratified by class and fixed by `settings.seed`.

    Raises UserError when a class has too few images to be in both.
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
    """Give every missing one of validation and test its share of the training images."""
    total = len(splits["train"])
    for name, share in (("test", settings.test_share), ("validation", settings.validation_share)):
        if name not in splits:
            left = share * total / len(splits["train"])
            splits["train"], splits[name] = split_by_shares(splits["train"], source, left, settings, name)
    return splits


def require_folder(root: Path) -> None:
    """UserError where a folder of data does not exist."""
    if not root.is_dir():
        got = "is no folder" if root.exists() else "does not exist"
        raise UserError(f"data folder '{root}'", got, next_step="choose another with data.path=FOLDER")


def check_files(root: Path, above: Sequence[os.stat_result] = ()) -> None:
    """UserError for what no reader can take: a name that is not UTF-8, a pipe or a device, which would be waited for.

    Links that lead in a circle are such, too. above: of the folders that `root` is in.
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
    """UserError for a path that is not UTF-8: no JSON, no page and no card could name it."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"data file '{path}'", "has a name that is not UTF-8", next_step="rename it") from error


def listing_of(root: Path) -> str:
    """A digest of all files of a folder, by relative name, size and time of change.

    UserError: one cannot be looked at, as a link to nothing.
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
