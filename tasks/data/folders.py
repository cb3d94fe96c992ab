"""Files in one folder per class, and CIFAR-10, CIFAR-100 and ImageNet through torchvision; nothing is downloaded.

Folders are PATH/train/CLASS/*, PATH/val/CLASS/*, PATH/test/CLASS/*, or PATH/CLASS/* split by shares. torchvision reads
the user's files, and compares CIFAR's with the published checksums before it unpickles them.
"""

import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100, DatasetFolder, ImageNet, VisionDataset
from torchvision.datasets.folder import IMG_EXTENSIONS

from tasks.base.errors import UserError
from tasks.data.images import SCALING, Decoder
from tasks.data.settings import DataSettings
from tasks.data.source import Source, Splits, first_of, numbered, split_folders

CIFAR = {"cifar10": CIFAR10, "cifar100": CIFAR100}
NEEDED = {
    "cifar10": (CIFAR10.base_folder,),
    "cifar100": (CIFAR100.base_folder,),
    "imagenet": ("meta.bin", "train", "val"),
}
NOT_READABLE = (RuntimeError, OSError, EOFError, KeyError, TypeError, pickle.UnpicklingError)


class Published(Source):
    """The published training images, then the published held-out ones, which are the test split."""

    scaling = SCALING

    def __init__(self, settings: DataSettings) -> None:
        """UserError: files are missing or differ from the published ones."""
        train, held_out = self._parts = _opened(settings)
        self.labels = np.asarray([*train.targets, *held_out.targets], dtype=np.int64)
        self.class_names = tuple(name if isinstance(name, str) else ", ".join(name) for name in train.classes)
        self.given = {"train": np.arange(len(train)), "test": np.arange(len(train), len(self.labels))}
        self._name = settings.name
        self._decoder = Decoder(settings)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Scaled images; augmented by a random resized crop and a flip."""
        contents = [(f"'{self._name} {index}'", partial(self._image, int(index))) for index in indices]
        return self._decoder.batch(contents, draws)

    def _image(self, index: int) -> Image.Image:
        train, held_out = self._parts
        image: Image.Image = (train[index] if index < len(train) else held_out[index - len(train)])[0]
        return image


def _parts(name: str, path: Path) -> tuple[VisionDataset, VisionDataset]:
    if name in CIFAR:
        return CIFAR[name](path, train=True), CIFAR[name](path, train=False)
    train, held_out = ImageNet(path, "train"), ImageNet(path, "val")
    if train.wnids != held_out.wnids:
        raise RuntimeError("train and val have different class folders")
    return train, held_out


def _opened(settings: DataSettings) -> tuple[VisionDataset, VisionDataset]:
    """The published training and held-out images."""
    assert settings.path is not None
    assert settings.name is not None
    missing = [name for name in NEEDED[settings.name] if not (settings.path / name).exists()]
    if missing:
        raise UserError(
            f"data folder '{settings.path}'",
            f"{settings.name} needs {', '.join(missing)} in it",
            next_step="choose another with data.path=FOLDER; nothing is downloaded",
        )
    try:
        return _parts(settings.name, settings.path)
    except NOT_READABLE as error:
        raise UserError(
            f"data folder '{settings.path}'",
            f"the files of {settings.name} are incomplete or changed ({str(error)[:200]})",
            next_step="copy them anew or choose another folder with data.path=FOLDER",
        ) from error


class ClassFiles(NamedTuple):
    """All files with the number of their class, and the files of each split that has its own folder."""

    files: list[Path]
    labels: np.ndarray
    class_names: tuple[str, ...]
    splits: Splits


class _Classes(DatasetFolder):
    """Folders of files; hidden folders, such as `.git`, are not classes."""

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        """Names of the classes, and their numbers."""
        names, _ = super().find_classes(directory)
        visible = [name for name in names if not name.startswith(".")]
        return visible, {name: number for number, name in enumerate(visible)}


def class_files(settings: DataSettings, content: str, suffixes: Sequence[str]) -> ClassFiles:
    """The files of the folder `settings.path`. content: their content, for messages; suffixes: of their names.

    Raises UserError for a missing or empty folder, or classes that differ.
    """
    folders = split_folders(settings)
    found = {split: _scan(folder, content, suffixes) for split, folder in folders.items()}
    names = found["train"].classes
    for split, one in found.items():
        _check_same(folders[split], names, one.classes)
    samples, splits = numbered({split: one.samples for split, one in found.items()})
    labels = np.asarray([label for _, label in samples], dtype=np.int64)
    return ClassFiles([Path(file) for file, _ in samples], labels, tuple(names), splits)


def _scan(folder: Path, content: str, suffixes: Sequence[str]) -> DatasetFolder:
    try:
        found = _Classes(str(folder), loader=Path, extensions=tuple(suffixes), allow_empty=True)
    except FileNotFoundError:
        found = None
    if found is None or not found.samples:
        raise UserError(
            f"data folder '{folder}'",
            f"no class folder with {content}",
            allowed=f"CLASS/*{{{','.join(suffixes)}}}",
            next_step="choose another with data.path=FOLDER",
        )
    return found


def _check_same(folder: Path, names: list[str], found: list[str]) -> None:
    differing = {
        "no folder for": [name for name in names if name not in found],
        "a folder for": [name for name in found if name not in names],
    }
    said = [f"{what} {first_of(classes)}" for what, classes in differing.items() if classes]
    if said:
        raise UserError(f"data folder '{folder}'", " and ".join(said), allowed="the classes of train, all of them")


class Folder(Source):
    """The files of all splits, decoded on demand."""

    scaling = SCALING

    def __init__(self, settings: DataSettings) -> None:
        """UserError: a missing or empty folder, or classes that differ."""
        self._files, self.labels, self.class_names, self.given = class_files(settings, "images", IMG_EXTENSIONS)
        self._decoder = Decoder(settings)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Decoded images; augmented by a random resized crop and a flip."""
        return self._decoder.files([self._files[index] for index in indices], draws)
