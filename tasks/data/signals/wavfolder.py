"""Folders of WAV files, one for each class (`tasks.data.folders`).

All files have the sampling rate of the first one. Several channels are averaged. Legend: B batch, T samples, D draws.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.io import wavfile

from adaptive_runtime.signals import fitted
from tasks.data.folders import class_files
from tasks.data.settings import DataSettings
from tasks.data.signals.sounds import sound_spectrogram
from tasks.data.source import Scaling, complete_splits
from tasks.errors import UserError

SUFFIXES = (".wav", ".wave")
LOUDER = 2.0
"""By so much, or by its inverse, sounds of training are louder at most."""


class WavFolder:
    """The files of all splits, decoded when asked for."""

    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, files: list[Path], labels: list[int], names: list[str]) -> None:
        assert settings.clip_s is not None
        self.labels = np.asarray(labels, dtype=np.int64)
        self.class_names = tuple(names)
        self._files = files
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="decode")
        rate_hz = _same_rate(files, list(self._pool.map(_rate_hz, files)))
        samples = round(settings.clip_s * rate_hz)
        self.spectrogram = sound_spectrogram(rate_hz, samples, settings.resolution)
        self.scaling = Scaling("none", "none", self.spectrogram)

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Any order: each sound is a file of its own."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Spectrograms (B, 1, H, W) of the middle of each sound; `draws` take another part, and another loudness."""
        rows = [None] * len(indices) if draws is None else list(draws)
        sounds = self._pool.map(self._one, [self._files[index] for index in indices], rows)
        return torch.from_numpy(np.concatenate(list(sounds)))

    def _one(self, file: Path, draws_D: np.ndarray | None) -> NDArray[np.float32]:
        sound_T, _ = _read(file)
        place, loudness = (0.5, 0.5) if draws_D is None else draws_D[:2]
        clip_T = fitted(sound_T, self.spectrogram.samples, place) * np.float32(LOUDER ** (2 * loudness - 1))
        return self.spectrogram.of(np.clip(clip_T, -1, 1)[None])


def _read(file: Path) -> tuple[NDArray[np.float32], int]:
    """(T,) the sound in [-1, 1], and its sampling rate in Hz. UserError: it cannot be read, or is empty."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # of parts of the file that are not the sound
            rate_hz, content = wavfile.read(file)
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise UserError(
            f"sound '{file}'", f"cannot be decoded ({type(error).__name__})", next_step="remove or replace it"
        ) from error
    if not content.size:
        raise UserError(f"sound '{file}'", "has no samples", next_step="remove or replace it")
    sound_T = (content if content.ndim == 1 else content.mean(1)).astype(np.float32)
    if content.dtype == np.uint8:
        sound_T = (sound_T - 128) / 128
    elif content.dtype.kind == "i":
        sound_T /= -float(np.iinfo(content.dtype).min)
    if not np.isfinite(sound_T).all():
        raise UserError(f"sound '{file}'", "has samples that are no numbers", next_step="remove or replace it")
    return sound_T, rate_hz


def _rate_hz(file: Path) -> int:
    """Of the head of a file alone, where that is possible: samples of 24 bits cannot be mapped."""
    try:
        return int(wavfile.read(file, mmap=True)[0])
    except (OSError, ValueError, EOFError, TypeError):
        return _read(file)[1]


def _same_rate(files: list[Path], rates_hz: list[int]) -> int:
    """The sampling rate of all files. UserError: one has another, or none that is of use."""
    first_hz = rates_hz[0]
    for file, rate_hz in zip(files, rates_hz, strict=True):
        if rate_hz != first_hz:
            got = f"{rate_hz} Hz"
            allowed = f"{first_hz} Hz, as '{files[0]}'"
            raise UserError(f"sound '{file}'", got, allowed=allowed, next_step="resample it")
    if not 1000 <= first_hz <= 192_000:
        raise UserError(f"sound '{files[0]}'", f"{first_hz} Hz", allowed="1000 to 192000 Hz", next_step="resample it")
    return first_hz


def open_wavfolder(settings: DataSettings) -> tuple[WavFolder, dict[str, np.ndarray]]:
    """The source and its splits. Raises UserError for an absent or empty folder, classes that differ, or a broken file."""
    found = class_files(settings, "sounds", SUFFIXES)
    source = WavFolder(settings, found.files, found.labels, found.class_names)
    return source, complete_splits(found.splits, source, settings)
