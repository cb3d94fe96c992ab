"""Synthesised signals: sound events as waves, and motions as an accelerometer feels them.

Nothing is downloaded or stored. A wave (N, T) is made from the times (N, T) since its start in seconds, negative before
it, and from numbers (N, P). A motion (N, A, T) of ten kinds is made from times (N, T) in seconds and numbers (N, P), in
g. Its last axis is vertical, without gravity, unless the kind turns it. Rates and amplitudes are plausible, not
measured. The device is turned at random by up to 40 degrees, and its sensor adds noise. A column of a spectrogram shows
a window, a stretch of the signal.

Legend: N signals, sounds or classes, B batch, C channels, T samples, D draws, P numbers that determine a signal, each
in [0, 1), A three axes.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_runtime.samples.inputs import Spectrogram
from tasks.data.drawn.variation import uniforms
from tasks.data.images import DRAWS
from tasks.data.settings import DataSettings
from tasks.data.source import UNSCALED, Source, first_classes

SOUND_WINDOW_S = 0.032
MOTION_WINDOW_S = 1.28
"""A window that separates step rates that differ by less than one per second."""
LEAST_WINDOW_SAMPLES = 8
MOST_SHARE = 4
"""A window is at most a quarter of a signal."""


def spectrogram_of(window_s: float, rate_hz: float, samples: int, bands: int, **options: Any) -> Spectrogram:
    """The spectrogram of signals of `samples`. rate_hz: sampling rate. options: other fields of `Spectrogram`."""
    window = max(LEAST_WINDOW_SAMPLES, min(round(window_s * rate_hz), samples // MOST_SHARE))
    return Spectrogram(sampling_rate_hz=rate_hz, samples=samples, window=window, bands=bands, **options)


Array = NDArray[np.floating[Any]]
NUMBERS = 4
"""P: pitch, and three for properties of a kind."""
PARTIALS = (1.0, 2.76, 5.4)
"""Partials of a struck bar (Fletcher and Rossing, The Physics of Musical Instruments, 1998, §2.15)."""
HARMONICS = 6


def between(share_N: Array, low: float, high: float) -> Array:
    """Numbers (N, 1) from `low` to `high`, evenly spread by ratio: as pitches and rates are heard."""
    numbers_N1: Array = np.float32(low) * np.float32(high / low) ** share_N[:, None]
    return numbers_N1


def sine(cycles_NT: Array) -> Array:
    """The sine of phases in cycles."""
    wave_NT: Array = np.sin(np.float32(2 * np.pi) * (cycles_NT % 1))
    return wave_NT


def _tone(t_NT: Array, p_NP: Array) -> Array:
    return sine(between(p_NP[:, 0], 250, 2500) * t_NT)


def _sweep(t_NT: Array, low_N1: Array, octaves: Array | float) -> Array:
    """A tone whose pitch rises by `octaves` per second."""
    rate = np.float32(np.log(2)) * octaves
    return sine(low_N1 * (np.exp(rate * t_NT) - 1) / rate)


def _siren(t_NT: Array, p_NP: Array) -> Array:
    """A tone whose pitch goes up and down."""
    pitch, rate = between(p_NP[:, 0], 400, 1800), between(p_NP[:, 1], 2, 6)
    swing = between(p_NP[:, 2], 0.12, 0.4) * pitch / rate
    return sine(pitch * t_NT - swing / np.float32(2 * np.pi) * np.cos(np.float32(2 * np.pi) * rate * t_NT))


def _tremolo(t_NT: Array, p_NP: Array) -> Array:
    """A tone whose loudness goes up and down."""
    return _tone(t_NT, p_NP) * (1 + sine(between(p_NP[:, 1], 4, 12) * t_NT)) / 2


def _beeps(t_NT: Array, p_NP: Array) -> Array:
    return _tone(t_NT, p_NP) * (between(p_NP[:, 1], 4, 12) * t_NT % 1 < 0.5)


def _bell(t_NT: Array, p_NP: Array) -> Array:
    """Partials that fade, the higher ones sooner."""
    pitch, fading = between(p_NP[:, 0], 250, 1200), between(p_NP[:, 1], 3, 9)
    since_NT = np.maximum(t_NT, 0)
    parts = (sine(pitch * ratio * t_NT) * np.exp(-fading * ratio**0.5 * since_NT) / ratio**0.5 for ratio in PARTIALS)
    return np.add.reduce(list(parts))


def _harmonic(t_NT: Array, p_NP: Array, numbers: Sequence[int]) -> Array:
    """Harmonics of a pitch by their numbers."""
    pitch = between(p_NP[:, 0], 90, 400)
    return np.add.reduce([sine(pitch * number * t_NT) / number for number in numbers])


def _knocks(t_NT: Array, p_NP: Array) -> Array:
    """A low pitch that fades and is struck again."""
    since_NT = t_NT % (1 / between(p_NP[:, 1], 3, 9))
    return sine(between(p_NP[:, 0], 100, 500) * since_NT) * np.exp(-between(p_NP[:, 2], 25, 60) * since_NT)


EVENTS: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "tone": _tone,
        "rising": lambda t_NT, p_NP: _sweep(t_NT, between(p_NP[:, 0], 200, 1000), between(p_NP[:, 1], 1, 3)),
        "falling": lambda t_NT, p_NP: _sweep(t_NT, between(p_NP[:, 0], 800, 4000), -between(p_NP[:, 1], 1, 3)),
        "siren": _siren,
        "tremolo": _tremolo,
        "beeps": _beeps,
        "bell": _bell,
        "buzz": partial(_harmonic, numbers=range(1, HARMONICS + 1)),
        "hollow": partial(_harmonic, numbers=range(1, 2 * HARMONICS, 2)),
        "knocks": _knocks,
    }
)
"""Waves by class."""


"""P: the rate, and three for properties of a kind."""
GRAVITY = np.array([0.0, 0.0, 1.0], np.float32)


def _axes(*axes_NT: Array) -> Array:
    return np.stack(axes_NT, 1)


def _still(t_NT: Array, p_NP: Array) -> Array:
    """Breathing only."""
    breath = 0.01 * sine(between(p_NP[:, 0], 0.2, 0.35) * t_NT)
    return _axes(0 * t_NT, breath, breath)


def _gait(t_NT: Array, p_NP: Array, rate: tuple[float, float], height: tuple[float, float], impact: float) -> Array:
    """A gait: two steps are a stride, from side to side at half the rate of steps; impacts add harmonics of the steps."""
    steps, strong = between(p_NP[:, 0], *rate), between(p_NP[:, 1], *height)
    cycles = steps * t_NT
    up = sine(cycles) + impact * sine(2 * cycles + p_NP[:, 2:3]) + impact**2 * sine(3 * cycles + p_NP[:, 3:4])
    return _axes(0.35 * strong * sine(cycles / 2), 0.4 * strong * sine(cycles + 0.25), strong * up)


def _jumping(t_NT: Array, p_NP: Array) -> Array:
    """Jumps: no gravity in the air, and a short impact at landing."""
    since = between(p_NP[:, 0], 1.3, 2.2) * t_NT % 1
    flight = -1.0 * (since < between(p_NP[:, 1], 0.25, 0.45))
    landing = between(p_NP[:, 2], 1.0, 2.0) * np.exp(-np.square((since - 0.6) / 0.12))
    return _axes(0.1 * flight, 0.1 * landing, flight + landing)


def _cycling(t_NT: Array, p_NP: Array) -> Array:
    """Pedalling in two axes, on a road that shakes."""
    cycles = between(p_NP[:, 0], 0.9, 1.6) * t_NT
    round_ = between(p_NP[:, 1], 0.1, 0.25)
    road = between(p_NP[:, 2], 0.03, 0.1) * (sine(13.1 * t_NT + p_NP[:, 3:4]) + sine(17.7 * t_NT))
    return _axes(0.2 * round_ * sine(cycles), round_ * sine(cycles + 0.25), round_ * sine(cycles) + road)


def _driving(t_NT: Array, p_NP: Array) -> Array:
    """An engine, and bends."""
    engine = between(p_NP[:, 1], 0.01, 0.05) * sine(between(p_NP[:, 0], 14, 23) * t_NT)
    bends = between(p_NP[:, 2], 0.05, 0.2) * sine(between(p_NP[:, 3], 0.1, 0.4) * t_NT)
    return _axes(bends, engine, engine)


def _shaking(t_NT: Array, p_NP: Array) -> Array:
    """Motion to and fro along one axis."""
    there = between(p_NP[:, 1], 0.5, 1.5) * sine(between(p_NP[:, 0], 3.5, 6.5) * t_NT)
    return _axes(there, 0.2 * there, 0.1 * there)


def _turning(t_NT: Array, p_NP: Array) -> Array:
    """Gravity that turns from the vertical axis to another one and back."""
    angle = between(p_NP[:, 1], 0.4, 1.3) * sine(between(p_NP[:, 0], 0.3, 0.8) * t_NT + p_NP[:, 2:3])
    return _axes(np.sin(angle), 0 * angle, np.cos(angle) - 1)


ACTIVITIES: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "still": _still,
        "walking": partial(_gait, rate=(1.6, 2.1), height=(0.18, 0.4), impact=0.35),
        "running": partial(_gait, rate=(2.3, 3.2), height=(0.6, 1.3), impact=0.45),
        "upstairs": partial(_gait, rate=(1.2, 1.7), height=(0.14, 0.3), impact=0.2),
        "downstairs": partial(_gait, rate=(1.7, 2.3), height=(0.25, 0.5), impact=0.75),
        "jumping": _jumping,
        "cycling": _cycling,
        "driving": _driving,
        "shaking": _shaking,
        "turning": _turning,
    }
)
"""Motion by class."""


PIECE = 16
"""Signals that a thread makes at once."""


class SynthesisedSignals(Source):
    """Signals that follow from the seed and their number; the classes take turns. Subclasses make the signals."""

    def __init__(self, settings: DataSettings, names: Sequence[str], spectrogram: Spectrogram) -> None:
        self.class_names = first_classes(tuple(names), settings.classes, f"kinds of {settings.kind}")
        self.labels = np.arange(settings.images, dtype=np.int64) % len(self.class_names)
        self.spectrogram, self.seed = spectrogram, settings.seed
        self.scaling = UNSCALED._replace(spectrogram=spectrogram)
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="synthesise")

    @abstractmethod
    def signals(self, indices_B: np.ndarray, nudges_BD: np.ndarray | None = None) -> NDArray[np.float32]:
        """Signals (B, C, T). nudges_BD: changes in [0, 1); 0.5 changes nothing."""

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Spectrograms (B, C, H, W); `draws` change signals a little."""
        nudges = np.full((len(indices), DRAWS), 0.5, dtype=np.float32) if draws is None else draws
        starts = range(PIECE, len(indices), PIECE)
        pieces = zip(np.split(indices, starts), np.split(nudges, starts), strict=True)
        images = self._pool.map(lambda piece: self.spectrogram.of(self.signals(*piece)), pieces)
        return torch.from_numpy(np.concatenate(list(images)))


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
        axes = {"channels": AXES, "full_scale": FULL_SCALE_G}
        spectrogram = spectrogram_of(MOTION_WINDOW_S, SAMPLING_RATE_HZ, samples, settings.resolution, **axes)
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
