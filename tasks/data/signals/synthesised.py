"""The common part of synthesised signals. Legend: N classes, B batch, C channels, T samples, D draws."""

from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_runtime.samples.signals import Spectrogram
from tasks.base.errors import UserError
from tasks.data.images import DRAWS
from tasks.data.settings import DataSettings
from tasks.data.source import Scaling, complete_splits

PIECE = 16
"""Signals that a thread makes at once."""


class SynthesisedSignals:
    """Signals that follow from the seed and their number; the classes take turns. Subclasses make the signals."""

    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, names: Sequence[str], spectrogram: Spectrogram) -> None:
        if settings.classes is not None and settings.classes > len(names):
            got = f"there are {len(names)} kinds of {settings.kind}, not {settings.classes}"
            raise UserError("data.classes", got, next_step="ask for fewer")
        self.class_names = tuple(names[: settings.classes])
        self.labels = np.arange(settings.images, dtype=np.int64) % len(self.class_names)
        self.spectrogram, self.seed = spectrogram, settings.seed
        self.scaling = Scaling("none", "none", spectrogram)
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="synthesise")

    @abstractmethod
    def signals(self, indices_B: np.ndarray, nudges_BD: np.ndarray | None = None) -> NDArray[np.float32]:
        """Signals (B, C, T). nudges_BD: changes in [0, 1); 0.5 changes nothing."""

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since every signal is made on its own."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Spectrograms (B, C, H, W); `draws` change signals a little."""
        nudges = np.full((len(indices), DRAWS), 0.5, dtype=np.float32) if draws is None else draws
        starts = range(PIECE, len(indices), PIECE)
        pieces = zip(np.split(indices, starts), np.split(nudges, starts), strict=True)
        images = self._pool.map(lambda piece: self.spectrogram.of(self.signals(*piece)), pieces)
        return torch.from_numpy(np.concatenate(list(images)))


Signals = TypeVar("Signals", bound=SynthesisedSignals)


def with_splits(source: Signals, settings: DataSettings) -> tuple[Signals, dict[str, np.ndarray]]:
    """The source and its splits, by shares and stratified. UserError: too few signals to have each class in all splits."""
    return source, complete_splits({"train": np.arange(settings.images)}, source, settings)
