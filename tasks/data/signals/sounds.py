"""Sounds as spectrograms: synthesised events of ten kinds, and the user's WAV files, in one folder per class.

A synthesised sound is an event with a random start, length, pitch and loudness, over a fainter event of any kind, in
noise that is from 20 dB softer to 5 dB louder than the event. Their number has no limit; nothing is downloaded or
stored. WAV files are cut into clips of one length, and several channels are averaged; `tasks.data.folders` has the
layout of folders.

Legend: B batch, T samples, D draws, P numbers of an event.
"""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.io import wavfile
from scipy.signal import lfilter

from adaptive_runtime.samples.inputs import fitted
from tasks.base.errors import UserError
from tasks.data.drawn.variation import uniforms
from tasks.data.folders import class_files
from tasks.data.settings import DataSettings
from tasks.data.signals.synthesised import EVENTS, NUMBERS, SOUND_WINDOW_S, Array, SynthesisedSignals, spectrogram_of
from tasks.data.source import UNSCALED, Source

SAMPLING_RATE_HZ = 16_000
NAMES = tuple(EVENTS)
OF_EVENT = NUMBERS + 3
"""Numbers of an event: P, and its start, length and loudness."""
MOST = 2 * OF_EVENT + 3
"""Numbers of a sound: two events, the kind of the fainter one, the loudness of the noise, and its start on the tape."""
NOISE_DB, FAINTER_DB, LOUDEST = (-20.0, 5.0), (-20.0, -6.0), (0.05, 0.5)
"""Relative to the event: the noise, and the fainter event. Then the event's amplitude."""
EDGE_S = 0.02
"""Time in which an event fades in, and out."""
TAPE_S = 20


class SynthesisedSounds(SynthesisedSignals):
    """Synthesised sounds, with a tape of noise in memory."""

    def __init__(self, settings: DataSettings) -> None:
        assert settings.clip_s is not None
        samples = round(settings.clip_s * SAMPLING_RATE_HZ)
        spectrogram = spectrogram_of(SOUND_WINDOW_S, SAMPLING_RATE_HZ, samples, settings.resolution)
        super().__init__(settings, NAMES, spectrogram)
        self._clip_s = settings.clip_s
        white = np.random.default_rng(settings.seed).standard_normal(samples + TAPE_S * SAMPLING_RATE_HZ)
        tape = (white + lfilter([0.3], [1, -0.95], white)).astype(np.float32)
        self._tape = tape / tape.std()

    def signals(self, indices_B: np.ndarray, nudges_BD: np.ndarray | None = None) -> NDArray[np.float32]:
        """Sounds (B, 1, T) in [-1, 1]. nudges_BD: for pitch, start, length, loudness, and the noise's place on the tape."""
        numbers_BM = uniforms(self.seed, indices_B, MOST).T.copy()
        kind_B, noise_B, start_B = numbers_BM[:, 2 * OF_EVENT :].T
        if nudges_BD is not None:
            centred_DB = nudges_BD.T.astype(np.float32) - np.float32(0.5)
            numbers_BM[:, 0] += 0.1 * centred_DB[0]
            numbers_BM[:, NUMBERS : NUMBERS + 3] += 0.2 * centred_DB[1:4].T
            start_B = (start_B + centred_DB[4]) % 1
        np.clip(numbers_BM, 0, 1, out=numbers_BM)
        event_BT = self._events(self.labels[indices_B], numbers_BM[:, :OF_EVENT])
        others_B = (kind_B * len(self.class_names)).astype(np.int64)
        other_BT = self._events(others_B, numbers_BM[:, OF_EVENT : 2 * OF_EVENT])
        fainter_B = _decibels(numbers_BM[:, 2 * OF_EVENT - 1], *FAINTER_DB)
        offsets_B = (start_B * TAPE_S * SAMPLING_RATE_HZ).astype(np.int64)
        noise_BT = np.stack([self._tape[offset : offset + self.spectrogram.samples] for offset in offsets_B])
        mixed_BT = event_BT + fainter_B[:, None] * other_BT + 0.5 * _decibels(noise_B, *NOISE_DB)[:, None] * noise_BT
        low, high = LOUDEST
        loud_B = low * (high / low) ** numbers_BM[:, OF_EVENT - 1]
        return np.clip(loud_B[:, None] * mixed_BT, -1, 1).astype(np.float32)[:, None]

    def _events(self, labels_B: np.ndarray, numbers_BP: Array) -> Array:
        """Events of classes (B, T), equally loud: their mean power is 1/2 while they sound."""
        start_B, length_B = numbers_BP[:, NUMBERS], numbers_BP[:, NUMBERS + 1]
        length_B = self._clip_s * (0.4 + 0.4 * length_B)
        start_B = start_B * (self._clip_s - length_B)
        t_BT = np.arange(self.spectrogram.samples, dtype=np.float32) / SAMPLING_RATE_HZ - start_B[:, None]
        wave_BT = np.empty_like(t_BT)
        for label in np.unique(labels_B):
            rows = labels_B == label
            wave_BT[rows] = EVENTS[NAMES[label]](t_BT[rows], numbers_BP[rows, :NUMBERS])
        edges_BT = np.clip(np.minimum(t_BT, length_B[:, None] - t_BT) / EDGE_S, 0, 1)
        wave_BT *= edges_BT
        power_B = np.square(wave_BT).sum(1) / (edges_BT > 0).sum(1)
        wave_BT /= np.sqrt(2 * power_B)[:, None]
        return wave_BT


def _decibels(share_B: Array, low: float, high: float) -> Array:
    """Amplitudes from `low` to `high` decibels."""
    return np.power(np.float32(10), (low + (high - low) * share_B) / 20)


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
        rate_hz = same_rate(files, names, self._pool)
        samples = round(settings.clip_s * rate_hz)
        self.spectrogram = spectrogram_of(SOUND_WINDOW_S, rate_hz, samples, settings.resolution)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Spectrograms (B, 1, H, W) of the middle of each sound; `draws` change the part and the loudness."""
        rows = [None] * len(indices) if draws is None else list(draws)
        return torch.from_numpy(np.concatenate(list(self._pool.map(self._one, indices, rows))))

    def _one(self, index: int, draws_D: np.ndarray | None) -> NDArray[np.float32]:
        sound_T, _ = read_sound(self._files[index], self._names[index])
        place, loudness = (0.5, 0.5) if draws_D is None else draws_D[:2]
        clip_T = fitted(sound_T, self.spectrogram.samples, place) * np.float32(LOUDER ** (2 * loudness - 1))
        return self.spectrogram.of(np.clip(clip_T, -1, 1)[None])


def same_rate(files: Sequence[Path], names: Sequence[str], pool: ThreadPoolExecutor) -> int:
    """The sampling rate of all files [Hz]. UserError: one has another rate than the first, or the rate is out of range."""
    rates_hz = list(pool.map(_rate_hz, files, names))
    first_hz = rates_hz[0]
    for name, rate_hz in zip(names, rates_hz, strict=True):
        if rate_hz != first_hz:
            allowed = f"{first_hz} Hz, as {names[0]}"
            raise UserError(f"sound {name}", f"{rate_hz} Hz", allowed=allowed, next_step="resample it")
    if not 1000 <= first_hz <= 192_000:
        raise UserError(f"sound {names[0]}", f"{first_hz} Hz", allowed="1000 to 192000 Hz", next_step="resample it")
    return first_hz


def read_sound(file: Path, name: str) -> tuple[NDArray[np.float32], int]:
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
        return read_sound(file, name)[1]


SUFFIXES = (".wav", ".wave")


class WavFolder(WavClips, Source):
    """The files of all splits, decoded on demand."""

    def __init__(self, settings: DataSettings) -> None:
        """UserError: a missing or empty folder, classes that differ, or a broken file."""
        files, self.labels, self.class_names, self.given = class_files(settings, "sounds", SUFFIXES)
        super().__init__(settings, files, [f"'{file}'" for file in files])
        self.scaling = UNSCALED._replace(spectrogram=self.spectrogram)
