"""Sounds: events of ten kinds, synthesised on demand, in any number; nothing is downloaded or stored.

A sound is an event with a random start, length, pitch and loudness, over a fainter event of any kind, in noise that is from 20
dB softer to 5 dB louder than the event. Legend: B batch, T samples, D draws, P numbers of an event.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from adaptive_runtime.samples.signals import Spectrogram
from tasks.data.drawn.numbers import uniforms
from tasks.data.settings import DataSettings
from tasks.data.signals.sound_events import EVENTS, NUMBERS, Array
from tasks.data.signals.synthesised import SynthesisedSignals, with_splits
from tasks.data.signals.windows import SOUND_WINDOW_S, window_samples

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


def sound_spectrogram(sampling_rate_hz: int, samples: int, bands: int) -> Spectrogram:
    """The spectrogram of sounds in [-1, 1]."""
    window = window_samples(SOUND_WINDOW_S, sampling_rate_hz, samples)
    return Spectrogram(sampling_rate_hz=sampling_rate_hz, samples=samples, window=window, bands=bands)


class SynthesisedSounds(SynthesisedSignals):
    """Synthesised sounds, with a tape of noise in memory."""

    def __init__(self, settings: DataSettings) -> None:
        assert settings.clip_s is not None
        samples = round(settings.clip_s * SAMPLING_RATE_HZ)
        super().__init__(settings, NAMES, sound_spectrogram(SAMPLING_RATE_HZ, samples, settings.resolution))
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


def open_sounds(settings: DataSettings) -> tuple[SynthesisedSounds, dict[str, np.ndarray]]:
    """The source and its splits. UserError: too few sounds, or too many kinds."""
    return with_splits(SynthesisedSounds(settings), settings)
