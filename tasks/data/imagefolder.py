"""Folders of images: PATH/train/CLASS/*, PATH/val/CLASS/*, PATH/test/CLASS/*, or PATH/CLASS/* split by us."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from tasks.data.decode import SCALING, Decoder
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits, first_of
from tasks.errors import UserError

SPLIT_FOLDERS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}


class Folder:
    """The files of all splits, decoded when asked for."""

    scaling = SCALING
    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, files: list[str], labels: list[int], names: list[str]) -> None:
        self.labels = np.asarray(labels, dtype=np.int64)
        self.class_names = tuple(names)
        self._files = [Path(file) for file in files]
        self._decoder = Decoder(settings)

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Any order: each image is a file of its own."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Decoded images; augmented by a random resized crop and a flip."""
        files = [self._files[index] for index in indices]
        return self._decoder.batch([(str(file), partial(Image.open, file)) for file in files], draws)


class _Classes(ImageFolder):
    """Folders of images; hidden folders, such as `.git`, are no classes."""

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        """Names of the classes, and their numbers."""
        names, _ = super().find_classes(directory)
        visible = [name for name in names if not name.startswith(".")]
        return visible, {name: number for number, name in enumerate(visible)}


def _scan(folder: Path) -> ImageFolder:
    try:
        found = _Classes(str(folder), allow_empty=True)
    except FileNotFoundError:
        found = None
    if found is None or not found.samples:
        raise UserError(
            f"data folder '{folder}'",
            "no class folder with images",
            allowed=f"CLASS/*{{{','.join(IMG_EXTENSIONS)}}}",
            next_step="choose another with data.path=FOLDER",
        )
    return found


def _split_folders(root: Path) -> dict[str, Path]:
    found = {split: root / name for split, names in SPLIT_FOLDERS.items() for name in names if (root / name).is_dir()}
    return found if "train" in found else {"train": root}


def _check_same(folder: Path, names: list[str], found: list[str]) -> None:
    differing = {
        "no folder for": [name for name in names if name not in found],
        "a folder for": [name for name in found if name not in names],
    }
    said = [f"{what} {first_of(classes)}" for what, classes in differing.items() if classes]
    if said:
        raise UserError(f"data folder '{folder}'", " and ".join(said), allowed="the classes of train, all of them")


def open_folder(settings: DataSettings) -> tuple[Folder, dict[str, np.ndarray]]:
    """The source and its splits. Raises UserError for an absent or empty folder or classes that differ."""
    assert settings.path is not None
    if not settings.path.is_dir():
        raise UserError(
            f"data folder '{settings.path}'",
            "does not exist",
            next_step="choose another with data.path=FOLDER",
        )
    files: list[str] = []
    labels: list[int] = []
    names: list[str] = []
    splits: dict[str, np.ndarray] = {}
    for split, folder in _split_folders(settings.path).items():
        found = _scan(folder)
        names = names or found.classes
        _check_same(folder, names, found.classes)
        splits[split] = np.arange(len(files), len(files) + len(found.samples))
        files += [file for file, _ in found.samples]
        labels += [label for _, label in found.samples]
    source = Folder(settings, files, labels, names)
    return source, complete_splits(splits, source, settings)
