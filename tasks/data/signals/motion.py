"""Motion: signals of an accelerometer in ten kinds of motion, synthesised on demand; nothing is downloaded or stored.

The device is turned at random by up to 40 degrees, and its sensor adds noise. Legend: B batch, A three axes, T samples, D
draws.
"""

import math

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.samples.signals import Spectrogram
from tasks.data.drawn.numbers import uniforms
from tasks.data.settings import DataSettings
from tasks.data.signals.activities import ACTIVITIES, GRAVITY, NUMBERS
from tasks.data.signals.sound_events import Array
from tasks.data.signals.synthesised import SynthesisedSignals, with_splits
from tasks.data.signals.windows import MOTION_WINDOW_S, window_samples

SAMPLING_RATE_HZ = 50
NAMES = tuple(ACTIVITIES)
FULL_SCALE_G = 4.0
AXES = 3
MOST = NUMBERS + AXES + 3
"""Numbers of a signal: P, an angle for each axis, the start, the noise, and its place on the tape."""
NOISE_G = (0.01, 0.15)
MOST_TURNED = math.radians(40)
START_S = 10.0
TAPE = 1 << 16
LEAST_SAMPLES = 16


class SynthesisedMotion(SynthesisedSignals):
    """Synthesised signals, with a tape of noise in memory."""

    def __init__(self, settings: DataSettings) -> None:
        assert settings.clip_s is not None
        samples = max(LEAST_SAMPLES, round(settings.clip_s * SAMPLING_RATE_HZ))
        spectrogram = Spectrogram(
            sampling_rate_hz=SAMPLING_RATE_HZ,
            channels=AXES,
            samples=samples,
            window=window_samples(MOTION_WINDOW_S, SAMPLING_RATE_HZ, samples),
            bands=settings.resolution,
            full_scale=FULL_SCALE_G,
        )
        super().__init__(settings, NAMES, spectrogram)
        tape = np.random.default_rng(settings.seed).standard_normal(TAPE + AXES * samples, dtype=np.float32)
        self._tape = np.lib.stride_tricks.sliding_window_view(tape, AXES * samples)

    def signals(self, indices_B: np.ndarray, nudges_BD: np.ndarray | None = None) -> NDArray[np.float32]:
        """Signals (B, A, T) in g. nudges_BD: for the rate, two angles, the start, and the noise's place on the tape."""
        numbers_BM = uniforms(self.seed, indices_B, MOST).T.copy()
        if nudges_BD is not None:
            centred_BD = nudges_BD.astype(np.float32) - np.float32(0.5)
            numbers_BM[:, 0] += 0.1 * centred_BD[:, 0]
            numbers_BM[:, NUMBERS : NUMBERS + 2] += 0.1 * centred_BD[:, 1:3]
            np.clip(numbers_BM, 0, 1, out=numbers_BM)
            places = [NUMBERS + AXES, MOST - 1]
            numbers_BM[:, places] = (numbers_BM[:, places] + centred_BD[:, 3:]) % 1
        start_B, noise_B, offset_B = numbers_BM[:, NUMBERS + AXES :].T
        t_T = np.arange(self.spectrogram.samples, dtype=np.float32) / SAMPLING_RATE_HZ
        t_BT = t_T + START_S * start_B[:, None]
        labels_B, motion_BAT = self.labels[indices_B], np.empty((len(indices_B), AXES, len(t_T)), np.float32)
        for label in np.unique(labels_B):
            rows = labels_B == label
            motion_BAT[rows] = ACTIVITIES[NAMES[label]](t_BT[rows], numbers_BM[rows, :NUMBERS])
        turns_BAA = _turns(MOST_TURNED * (2 * numbers_BM[:, NUMBERS : NUMBERS + AXES] - 1))
        felt_BAT = turns_BAA @ (motion_BAT + GRAVITY[:, None])
        low, high = NOISE_G
        noise_BAT = self._tape[(offset_B * TAPE).astype(np.int64)].reshape(felt_BAT.shape)
        signals_BAT: NDArray[np.float32] = felt_BAT + (low + (high - low) * noise_B)[:, None, None] * noise_BAT
        return signals_BAT.astype(np.float32)


def _turns(angles_BA: Array) -> Array:
    """Rotations (B, A, A) around the three axes, one after the other."""
    turns_BAA = np.broadcast_to(np.eye(AXES, dtype=np.float32), (len(angles_BA), AXES, AXES))
    for axis in range(AXES):
        one, other = (axis + 1) % AXES, (axis + 2) % AXES
        turn_BAA = np.zeros((len(angles_BA), AXES, AXES), np.float32)
        cosine_B, sine_B = np.cos(angles_BA[:, axis]), np.sin(angles_BA[:, axis])
        turn_BAA[:, axis, axis] = 1
        turn_BAA[:, one, one] = turn_BAA[:, other, other] = cosine_B
        turn_BAA[:, one, other], turn_BAA[:, other, one] = -sine_B, sine_B
        turns_BAA = turn_BAA @ turns_BAA
    return turns_BAA


def open_motion(settings: DataSettings) -> tuple[SynthesisedMotion, dict[str, np.ndarray]]:
    """The source and its splits. UserError: too few signals, or too many kinds."""
    return with_splits(SynthesisedMotion(settings), settings)
