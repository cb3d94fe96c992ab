"""Folders of images: PATH/train/CLASS/*, PATH/val/CLASS/*, PATH/test/CLASS/*, or PATH/CLASS/* split by us."""

from pathlib import Path

import numpy as np
import torch
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from tasks.data.decode import Decoder
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits
from tasks.errors import UserError

SPLIT_FOLDERS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}


class Folder:
    """The files of all splits, decoded when asked for."""

    def __init__(self, settings: DataSettings, files: list[str], labels: list[int], names: list[str]) -> None:
        self.labels = np.asarray(labels, dtype=np.int64)
        self.class_names = tuple(names)
        self._files = [Path(file) for file in files]
        self._decoder = Decoder(settings)

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Any order: each image is a file of its own."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Decoded images; augmented by a random resized crop and a flip."""
        files = [self._files[index] for index in indices]
        return self._decoder.batch([(str(file), file.read_bytes) for file in files], draws)


def _scan(folder: Path) -> ImageFolder:
    try:
        return ImageFolder(str(folder))
    except FileNotFoundError as error:
        raise UserError(
            f"data folder '{folder}'",
            "no class folder with images in every one",
            allowed=f"CLASS/*{{{','.join(IMG_EXTENSIONS)}}}",
            next_step="choose another with data.path=FOLDER",
        ) from error


def _split_folders(root: Path) -> dict[str, Path]:
    found = {split: root / name for split, names in SPLIT_FOLDERS.items() for name in names if (root / name).is_dir()}
    return found if "train" in found else {"train": root}


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
        if found.classes != names:
            raise UserError(f"data folder '{folder}'", f"classes {found.classes[:5]}…", allowed=f"{names[:5]}…")
        splits[split] = np.arange(len(files), len(files) + len(found.samples))
        files += [file for file, _ in found.samples]
        labels += [label for _, label in found.samples]
    source = Folder(settings, files, labels, names)
    return source, complete_splits(splits, source.labels, settings)
