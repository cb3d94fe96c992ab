"""Sounds and motion with one class each, as spectrograms: synthesised, or from folders of WAV files and tables of series."""

from tasks.data.signals.series import SeriesWindows
from tasks.data.signals.sounds import SynthesisedSounds, WavFolder
from tasks.data.signals.synthesised import SynthesisedMotion
