"""Samples with several inputs on the device: one structured array for all inputs, and numbers beside images."""

from adaptive_runtime.samples.several.numbers import NumbersPreparation
from adaptive_runtime.samples.several.packed import input_forms, packed, sample_sizes, unpacked

__all__ = ["NumbersPreparation", "input_forms", "packed", "sample_sizes", "unpacked"]
