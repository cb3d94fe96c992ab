"""Signals over time, as sounds and motion are, as the images that networks take: spectrograms, in numpy."""

from adaptive_runtime.signals.spectrogram import Spectrogram, fitted

__all__ = ["Spectrogram", "fitted"]
