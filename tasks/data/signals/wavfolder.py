"""Folders of WAV files, one for each class (`tasks.data.folders`). Legend: B batch, D draws."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tasks.data.folders import class_files
from tasks.data.settings import DataSettings
from tasks.data.signals.clips import WavClips
from tasks.data.source import Scaling, complete_splits

SUFFIXES = (".wav", ".wave")


class WavFolder:
    """The files of all splits, decoded on demand."""

    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, files: Sequence[Path], labels: list[int], names: list[str]) -> None:
        self.labels = np.asarray(labels, dtype=np.int64)
        self.class_names = tuple(names)
        self._clips = WavClips(settings, files, [f"'{file}'" for file in files])
        self.spectrogram = self._clips.spectrogram
        self.scaling = Scaling("none", "none", self.spectrogram)

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since each sound is its own file."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Spectrograms (B, 1, H, W) of the middle of each sound; `draws` change the part and the loudness."""
        return self._clips.images(indices, draws)


def open_wavfolder(settings: DataSettings) -> tuple[WavFolder, dict[str, np.ndarray]]:
    """The source and its splits. UserError: a missing or empty folder, classes that differ, or a broken file."""
    found = class_files(settings, "sounds", SUFFIXES)
    source = WavFolder(settings, found.files, found.labels, found.class_names)
    return source, complete_splits(found.splits, source, settings)
