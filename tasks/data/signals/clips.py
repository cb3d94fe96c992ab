"""WAV files as spectrograms of clips of one length. Several channels are averaged. Legend: B batch, T samples, D draws."""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.io import wavfile

from adaptive_runtime.samples.signals import fitted
from tasks.base.errors import UserError
from tasks.data.settings import DataSettings
from tasks.data.signals.sounds import sound_spectrogram

LOUDER = 2.0
"""Largest factor by which training sounds are made louder or softer."""


class WavClips:
    """Files with the sampling rate of the first one, decoded on demand. spectrogram: of a clip of each file."""

    def __init__(self, settings: DataSettings, files: Sequence[Path], names: Sequence[str]) -> None:
        """names: the files in messages, each in quotes, with its row if it has one.

        UserError: a file has another sampling rate than the first, or the rate is out of range.
        """
        assert settings.clip_s is not None
        self._files, self._names = files, names
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="decode")
        rate_hz = self._same_rate(list(self._pool.map(_rate_hz, files, names)))
        self.spectrogram = sound_spectrogram(rate_hz, round(settings.clip_s * rate_hz), settings.resolution)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Spectrograms (B, 1, H, W) of the middle of each sound; `draws` change the part and the loudness."""
        rows = [None] * len(indices) if draws is None else list(draws)
        return torch.from_numpy(np.concatenate(list(self._pool.map(self._one, indices, rows))))

    def _one(self, index: int, draws_D: np.ndarray | None) -> NDArray[np.float32]:
        sound_T, _ = _read(self._files[index], self._names[index])
        place, loudness = (0.5, 0.5) if draws_D is None else draws_D[:2]
        clip_T = fitted(sound_T, self.spectrogram.samples, place) * np.float32(LOUDER ** (2 * loudness - 1))
        return self.spectrogram.of(np.clip(clip_T, -1, 1)[None])

    def _same_rate(self, rates_hz: Sequence[int]) -> int:
        """The sampling rate of all files."""
        first_hz = rates_hz[0]
        for name, rate_hz in zip(self._names, rates_hz, strict=True):
            if rate_hz != first_hz:
                allowed = f"{first_hz} Hz, as {self._names[0]}"
                raise UserError(f"sound {name}", f"{rate_hz} Hz", allowed=allowed, next_step="resample it")
        if not 1000 <= first_hz <= 192_000:
            where, got = f"sound {self._names[0]}", f"{first_hz} Hz"
            raise UserError(where, got, allowed="1000 to 192000 Hz", next_step="resample it")
        return first_hz


def _read(file: Path, name: str) -> tuple[NDArray[np.float32], int]:
    """The sound (T,) in [-1, 1], and its sampling rate in Hz. UserError: it cannot be read, or is empty."""
    where, mend = f"sound {name}", "remove or replace it"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # for parts of the file other than the sound
            rate_hz, content = wavfile.read(file)
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise UserError(where, f"cannot be decoded ({type(error).__name__})", next_step=mend) from error
    if not content.size:
        raise UserError(where, "has no samples", next_step=mend)
    sound_T = (content if content.ndim == 1 else content.mean(1)).astype(np.float32)
    if content.dtype == np.uint8:
        sound_T = (sound_T - 128) / 128
    elif content.dtype.kind == "i":
        sound_T /= -float(np.iinfo(content.dtype).min)
    if not np.isfinite(sound_T).all():
        raise UserError(where, "has samples that are no numbers", next_step=mend)
    return sound_T, rate_hz


def _rate_hz(file: Path, name: str) -> int:
    """The sampling rate from the head of a file; files with 24-bit samples cannot be mapped and are read whole."""
    try:
        return int(wavfile.read(file, mmap=True)[0])
    except (OSError, ValueError, EOFError, TypeError):
        return _read(file, name)[1]
