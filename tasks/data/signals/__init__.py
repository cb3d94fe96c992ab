"""Sounds and motion with one class each, as spectrograms: synthesised, or from folders of WAV files and tables of series."""

from tasks.data.signals.motion import SynthesisedMotion, open_motion
from tasks.data.signals.series import SeriesWindows, open_series
from tasks.data.signals.sounds import SynthesisedSounds, open_sounds
from tasks.data.signals.wavfolder import WavFolder, open_wavfolder

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
