"""Folders of images, one for each class (`tasks.data.folders`)."""

from pathlib import Path

import numpy as np
import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from tasks.data.decode import SCALING, Decoder
from tasks.data.folders import class_files
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits


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
