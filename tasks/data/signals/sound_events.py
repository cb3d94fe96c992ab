"""Kinds of sound events, as waves. Legend: N sounds, T samples, P numbers that determine a sound, each in [0, 1).

A wave (N, T) is made from the times (N, T) since its start in seconds, negative before it, and from numbers (N, P).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def _rising(t_NT: Array, p_NP: Array) -> Array:
    return _sweep(t_NT, between(p_NP[:, 0], 200, 1000), between(p_NP[:, 1], 1, 3))


def _falling(t_NT: Array, p_NP: Array) -> Array:
    return _sweep(t_NT, between(p_NP[:, 0], 800, 4000), -between(p_NP[:, 1], 1, 3))


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


def _buzz(t_NT: Array, p_NP: Array) -> Array:
    """All harmonics of a pitch."""
    pitch = between(p_NP[:, 0], 90, 400)
    return np.add.reduce([sine(pitch * number * t_NT) / number for number in range(1, HARMONICS + 1)])


def _hollow(t_NT: Array, p_NP: Array) -> Array:
    """Only the odd harmonics of a pitch."""
    pitch = between(p_NP[:, 0], 90, 400)
    return np.add.reduce([sine(pitch * number * t_NT) / number for number in range(1, 2 * HARMONICS, 2)])


def _knocks(t_NT: Array, p_NP: Array) -> Array:
    """A low pitch that fades and is struck again."""
    since_NT = t_NT % (1 / between(p_NP[:, 1], 3, 9))
    return sine(between(p_NP[:, 0], 100, 500) * since_NT) * np.exp(-between(p_NP[:, 2], 25, 60) * since_NT)


EVENTS: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "tone": _tone,
        "rising": _rising,
        "falling": _falling,
        "siren": _siren,
        "tremolo": _tremolo,
        "beeps": _beeps,
        "bell": _bell,
        "buzz": _buzz,
        "hollow": _hollow,
        "knocks": _knocks,
    }
)
"""Waves by class."""
