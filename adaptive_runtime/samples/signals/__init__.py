"""Signals over time, such as sound and motion, converted to images for networks: spectrograms, in numpy."""

from adaptive_runtime.samples.signals.spectrogram import Spectrogram, fitted

__all__ = ["Spectrogram", "fitted"]
