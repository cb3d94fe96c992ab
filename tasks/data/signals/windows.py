"""Windows of spectrograms: the stretch of a signal that a column of the image shows."""

SOUND_WINDOW_S = 0.032
MOTION_WINDOW_S = 1.28
"""A window that separates step rates that differ by less than one per second."""
LEAST_SAMPLES = 8
MOST_SHARE = 4
"""A window is at most a quarter of a signal."""


def window_samples(window_s: float, sampling_rate_hz: float, samples: int) -> int:
    """Samples of a window in a signal of `samples`."""
    return max(LEAST_SAMPLES, min(round(window_s * sampling_rate_hz), samples // MOST_SHARE))
