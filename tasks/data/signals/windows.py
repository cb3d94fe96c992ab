"""Windows of spectrograms: how much of a signal a column of the image shows."""

SOUND_WINDOW_S = 0.032
MOTION_WINDOW_S = 1.28
"""Rates of steps differ by less than one in a second."""
LEAST_SAMPLES = 8
MOST_SHARE = 4
"""A window is at most a quarter of a signal."""


def window_samples(window_s: float, sampling_rate_hz: float, samples: int) -> int:
    """Samples of a window in a signal of so many."""
    return max(LEAST_SAMPLES, min(round(window_s * sampling_rate_hz), samples // MOST_SHARE))
