"""Sounds and motion with one class each, as spectrograms: synthesised, or from folders of WAV files and tables of series."""

from tasks.data.signals.series import SeriesWindows, open_series
from tasks.data.signals.sounds import SynthesisedSounds, WavFolder, open_sounds, open_wavfolder
from tasks.data.signals.synthesised import SynthesisedMotion, open_motion

__all__ = [
    "SeriesWindows",
    "SynthesisedMotion",
    "SynthesisedSounds",
    "WavFolder",
    "open_motion",
    "open_series",
    "open_sounds",
    "open_wavfolder",
]
