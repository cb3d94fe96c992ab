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
from tasks.data.source import complete_splits, first_of, split_folders

CIFAR = {"cifar10": CIFAR10, "cifar100": CIFAR100}
NEEDED = {
    "cifar10": (CIFAR10.base_folder,),
    "cifar100": (CIFAR100.base_folder,),
    "imagenet": ("meta.bin", "train", "val"),
}
NOT_READABLE = (RuntimeError, OSError, EOFError, KeyError, TypeError, pickle.UnpicklingError)


class Published:
    """The published training images, then the published held-out ones."""

    scaling = SCALING
    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, train: VisionDataset, held_out: VisionDataset) -> None:
        self.labels = np.asarray([*train.targets, *held_out.targets], dtype=np.int64)
        self.class_names = tuple(name if isinstance(name, str) else ", ".join(name) for name in train.classes)
        self._name = settings.name
        self._parts = (train, held_out)
        self._decoder = Decoder(settings)

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since images are in memory (CIFAR) or their own files (ImageNet)."""
        return rng.permutation(indices)

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


def open_published(settings: DataSettings) -> tuple[Published, dict[str, np.ndarray]]:
    """The source and its splits: the published held-out images are the test; validation is a share of the training images.

    Raises UserError for files that are missing or differ from the published ones.
    """
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
        train, held_out = _parts(settings.name, settings.path)
    except NOT_READABLE as error:
        raise UserError(
            f"data folder '{settings.path}'",
            f"the files of {settings.name} are incomplete or changed ({str(error)[:200]})",
            next_step="copy them anew or choose another folder with data.path=FOLDER",
        ) from error
    source = Published(settings, train, held_out)
    count = len(train.targets)
    splits = {"train": np.arange(count), "test": np.arange(count, len(source.labels))}
    return source, complete_splits(splits, source, settings)


class ClassFiles(NamedTuple):
    """All files with the number of their class, and the files of each split that has its own folder."""

    files: list[Path]
    labels: list[int]
    class_names: list[str]
    splits: dict[str, np.ndarray]


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
    files: list[Path] = []
    labels: list[int] = []
    names: list[str] = []
    splits: dict[str, np.ndarray] = {}
    for split, folder in split_folders(settings).items():
        found = _scan(folder, content, suffixes)
        names = names or found.classes
        _check_same(folder, names, found.classes)
        splits[split] = np.arange(len(files), len(files) + len(found.samples))
        files += [Path(file) for file, _ in found.samples]
        labels += [label for _, label in found.samples]
    return ClassFiles(files, labels, names, splits)


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


class Folder:
    """The files of all splits, decoded on demand."""

    scaling = SCALING
    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, files: list[Path], labels: list[int], names: list[str]) -> None:
        self.labels = np.asarray(labels, dtype=np.int64)
        self.class_names = tuple(names)
        self._files = files
        self._decoder = Decoder(settings)

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since each image is its own file."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Decoded images; augmented by a random resized crop and a flip."""
        return self._decoder.files([self._files[index] for index in indices], draws)


def open_folder(settings: DataSettings) -> tuple[Folder, dict[str, np.ndarray]]:
    """The source and its splits. Raises UserError for a missing or empty folder or classes that differ."""
    found = class_files(settings, "images", IMG_EXTENSIONS)
    source = Folder(settings, found.files, found.labels, found.class_names)
    return source, complete_splits(found.splits, source, settings)
