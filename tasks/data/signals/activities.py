"""Kinds of motion, as an accelerometer on the body feels them, in g. Legend: N signals, T samples, P numbers, A three axes.

A motion (N, A, T) is made from times (N, T) in seconds and numbers (N, P) in [0, 1). Its last axis is the vertical one, without
gravity, unless the kind turns it. Rates and amplitudes are plausible, not measured.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from tasks.data.signals.sound_events import Array, between, sine

NUMBERS = 4
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


def _walking(t_NT: Array, p_NP: Array) -> Array:
    return _gait(t_NT, p_NP, (1.6, 2.1), (0.18, 0.4), 0.35)


def _running(t_NT: Array, p_NP: Array) -> Array:
    return _gait(t_NT, p_NP, (2.3, 3.2), (0.6, 1.3), 0.45)


def _upstairs(t_NT: Array, p_NP: Array) -> Array:
    return _gait(t_NT, p_NP, (1.2, 1.7), (0.14, 0.3), 0.2)


def _downstairs(t_NT: Array, p_NP: Array) -> Array:
    return _gait(t_NT, p_NP, (1.7, 2.3), (0.25, 0.5), 0.75)


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
        "walking": _walking,
        "running": _running,
        "upstairs": _upstairs,
        "downstairs": _downstairs,
        "jumping": _jumping,
        "cycling": _cycling,
        "driving": _driving,
        "shaking": _shaking,
        "turning": _turning,
    }
)
"""Motion by class."""
