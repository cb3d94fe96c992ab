"""The base of all kinds of data (labels at once, images on demand), stratified splits, and batches of samples.

Splits are drawn as by scikit-learn's `train_test_split`; importing it takes more than a second in each rank. Samples
have one input or several.

Legend: B batch, C channels, H height, W width.
"""

from __future__ import annotations

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.samples.inputs import (
    GivenPreparation,
    NumbersPreparation,
    Spectrogram,
    TextPreparation,
    Vocabulary,
    packed,
)
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.data.batches import Inputs
from tasks.data.settings import KINDS, DataSettings
from tasks.data.torch_later import torch

_Integers = NDArray[np.int64]
FEWEST = 12
"""Splits have about the same share of each class that is the rarest one of at least this many images."""


class TooFewError(Exception):
    """A class has too few members to be in both parts."""


def stratified(labels: _Integers, held: int, seed: int) -> tuple[_Integers, _Integers]:
    """Sorted places of the kept and of `held` other samples, with about the same share of each class.

    labels: (N,) class of each sample. The draws equal those of scikit-learn with the same seed. TooFewError if scikit-learn
    would refuse.
    """
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if min(held, len(labels) - held) < max(len(sizes), 1) or sizes.min() < 2:
        raise TooFewError
    rng = np.random.RandomState(seed)
    kept_of = _apportioned(sizes, len(labels) - held, rng)
    held_of = _apportioned(sizes - kept_of, held, rng)
    parts: tuple[list[_Integers], list[_Integers]] = [], []
    for number, (size, first, second) in enumerate(zip(sizes, kept_of, held_of, strict=True)):
        drawn = np.flatnonzero(classes == number)[rng.permutation(size)]
        parts[0].append(drawn[:first])
        parts[1].append(drawn[first : first + second])
    kept, others = (np.sort(np.concatenate(part)) for part in parts)
    return kept, others


def _apportioned(sizes: _Integers, total: int, rng: np.random.RandomState) -> _Integers:
    """`total` distributed in proportion to `sizes`: rounded down; the rest goes to the largest remainders, ties at random."""
    exact = sizes / sizes.sum() * total
    found = np.floor(exact)
    remainders, left = exact - found, int(total - found.sum())
    for remainder in np.unique(remainders)[::-1]:
        if left <= 0:
            break
        tied = np.flatnonzero(remainders == remainder)
        winners = rng.choice(tied, size=min(len(tied), left), replace=False)
        found[winners] += 1
        left -= len(winners)
    return found.astype(np.int64)


def rarest_classes(occurring: Sequence[_Integers], classes: int) -> _Integers:
    """The class (images,) by which splits of images with several classes are balanced; 0 for an image without classes.

    occurring: the classes of each image, repeated by their weight. The class is the image's rarest, unless fewer than `FEWEST`
    images share it.
    """
    everywhere = np.bincount(np.concatenate(occurring), minlength=classes)
    labels = np.array([min(own, key=lambda label: everywhere[label], default=0) for own in occurring], dtype=np.int64)
    counts = np.bincount(labels, minlength=classes)
    return np.where(counts[labels] < FEWEST, counts.argmax(), labels).astype(np.int64)


def arrays(x: Inputs, names: Sequence[str]) -> NDArray[Any]:
    """A batch in numpy; several inputs are packed under their names (`adaptive_runtime.samples.inputs`)."""
    if isinstance(x, torch.Tensor):
        return x.cpu().numpy()
    return packed({name: one.cpu().numpy() for name, one in zip(names, x, strict=True)})


WITH_CLASS_FOLDERS = ("imagefolder", "wavfolder")
"""Kinds with a folder for each class."""
IN_A_FILE = ("parquet", "unlabelled")
"""Kinds whose path may be a file."""
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}
"""Allowed names of folders and files of splits."""


OtherInput = NumbersPreparation | Spectrogram | TextPreparation | GivenPreparation
"""The preparation of an input other than an image: numbers, a sound (which becomes an image), a text, or none."""


class Scaling(NamedTuple):
    """The scaling of an image to the base resolution: the part that is cut out first, and the interpolation.

    spectrogram: the conversion of a signal to an image in that resolution; None: no signals. vocabulary: for texts, which are
    cut or padded to the base number of words; None: no texts. inputs: for samples with several inputs, by name in their order;
    an image (None) is scaled by crop and interpolation, others have their own preparation. given: samples that networks take as
    their owner gives them; None: others.
    """

    crop: Literal["central square", "none"]
    interpolation: Literal["bilinear, antialiased", "bicubic, antialiased", "none"]
    spectrogram: Spectrogram | None = None
    vocabulary: Vocabulary | None = None
    inputs: Mapping[str, OtherInput | None] | None = None
    given: GivenPreparation | None = None


UNSCALED = Scaling("none", "none")
"""Images that come in the base resolution."""
Splits = dict[str, np.ndarray]
"""The indices of the samples of each split."""


class Source(ABC):
    """All samples of one kind of data; a split is a set of indices into it.

    labels: (N,) int64, the class of every sample. has_classes: whether each split needs all classes; else the source checks its
    splits itself. given: the splits that the data have; None: all samples are for training. scaling: of images without `draws`.
    notes: warnings for the user about the data, one line each.
    """

    labels: np.ndarray
    class_names: tuple[str, ...]
    has_classes: bool = True
    given: Splits | None = None
    scaling: Scaling = UNSCALED
    notes: tuple[str, ...] = ()
    run_length: int = 1
    """Number of samples that follow one another and stay together, in the same split and in one batch of an evaluation."""
    unroll: int = 1
    """Number of samples that follow one another in a batch of training; divides `run_length`."""
    outputs: Mapping[str, str | None] | None = None
    """Names of the network's outputs, and how each is compared, if options name them."""

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """`indices` in a random order in which batches of `batch_size`, and equal slices of them, are read fast."""
        return rng.permutation(indices)

    @abstractmethod
    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> Inputs:
        """x_BCHW float32 in [0, 1] at the base resolution; augmented by `draws` (B, DRAWS) in [0, 1).

        For texts: numbers of words (B, T) int64. For samples with several inputs: such images and texts, and numbers (B, …)
        unscaled.
        """

    def labelled(self, indices: np.ndarray, draws: np.ndarray | None) -> tuple[Inputs, torch.Tensor]:
        """Samples and their classes (B,)."""
        return self.images(indices, draws), torch.from_numpy(self.labels[indices])

    def splits(self, settings: DataSettings) -> Splits:
        """All splits; missing ones are shares of the training samples. UserError: a class has too few samples."""
        return complete_splits(dict(self.given or {"train": np.arange(len(self.labels))}), self, settings)


def check_labels(
    labels: np.ndarray, names: Sequence[str], splits: Mapping[str, np.ndarray], settings: DataSettings
) -> None:
    """UserError for a split that lacks a class, and for a single class, which teaches nothing. labels: (N,)."""
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


Names = TypeVar("Names", str, tuple[str, ...])


def first_classes(classes: Names, count: int | None, called: str) -> Names:
    """The first `count` of all classes; None: all. UserError: there are fewer. called: the classes in the message."""
    if count is not None and count > len(classes):
        got = f"there are {len(classes)} {called}, not {count}"
        raise UserError("data.classes", got, next_step="ask for fewer")
    return classes[:count]


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


Item = TypeVar("Item")


def consecutive(counts: Mapping[str, int]) -> Splits:
    """The indices of samples that follow each other split by split. counts: of the samples of each split."""
    ends = np.cumsum(list(counts.values()))
    return dict(zip(counts, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))


def numbered(parts: Mapping[str, Sequence[Item]]) -> tuple[list[Item], Splits]:
    """The items of all splits in one list, and their indices by split."""
    items = [item for part in parts.values() for item in part]
    return items, consecutive({split: len(part) for split, part in parts.items()})


def files_of_splits(settings: DataSettings, suffixes: Sequence[str], called: str) -> dict[str, list[Path]]:
    """The files directly in the folder of each split, sorted. UserError: none has one of the suffixes. called: the files."""
    found = {}
    for split, folder in split_folders(settings).items():
        found[split] = sorted(file for file in folder.iterdir() if file.suffix in suffixes)
        if not found[split]:
            allowed = f"*{{{','.join(suffixes)}}}" if len(suffixes) > 1 else f"*{suffixes[0]}"
            raise UserError(f"data folder '{folder}'", f"no {called}", allowed=allowed)
    return found


def check_folder(settings: DataSettings) -> None:
    """UserError: the data folder does not exist, is empty, or lacks folders of classes if the kind needs them."""
    root, another = settings.path, "choose another with data.path=FOLDER"
    if root is None or not KINDS[settings.kind].has_files or (settings.kind in IN_A_FILE and root.is_file()):
        return
    require_folder(root)
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


def _of_classes(source: Source, labels: np.ndarray) -> str:
    """The classes with fewest images: names of classes without any, or the smallest class with its number."""
    names = source.class_names
    counts = np.bincount(labels, minlength=len(names))
    if empty := [names[label] for label in np.flatnonzero(counts == 0)]:
        return f"of {len(names)} classes, none of {first_of(empty)}"
    smallest = int(counts.argmin())
    return f"of {len(names)} classes, {counts[smallest]} of the smallest, {names[smallest]}"


def complete_splits(splits: Splits, source: Source, settings: DataSettings) -> Splits:
    """Give validation and test, if missing, their shares of the training images: stratified by class, fixed by `settings.seed`.

    UserError: a class has too few images to be in both.
    """
    total = len(splits["train"])
    for name, share in (("test", settings.test_share), ("validation", settings.validation_share)):
        if name not in splits:
            indices = splits["train"]
            left, labels = share * total / len(indices), source.labels[indices]
            try:
                kept, held = stratified(labels, round(left * len(indices)), settings.seed)
            except TooFewError as error:
                own = "" if settings.kind == "pairs" else f" {_of_classes(source, labels)}"
                raise UserError(
                    f"data '{settings.path or settings.kind}'",
                    f"{len(indices)} {settings.sample}s{own}: too few to hold out {left:.0%} for {name}",
                    next_step=f"add {settings.sample}s or give a {name} folder",
                ) from error
            splits["train"], splits[name] = np.sort(indices[kept]), np.sort(indices[held])
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
    """A digest of a file, or of all files of a folder, by relative name, size and time of change.

    A file is listed alone. UserError: a file cannot be read, e.g. a broken link.
    """
    is_file, rows = root.is_file(), list[list[str | int]]()
    if not is_file:
        require_folder(root)
    alone: list[tuple[str, list[str], list[str]]] = [(str(root.parent), [], [root.name])]
    for folder, folders, names in alone if is_file else os.walk(root, followlinks=True):
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
            name = file.name if is_file else str(file.relative_to(root))
            rows.append([name, status.st_size, status.st_mtime_ns])
    return digest_of(rows)
