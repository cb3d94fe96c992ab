"""Samples with several inputs as one structured array: `len`, slices and masks apply to samples.

Legend: N samples.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError


def packed(inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Structured array (N,) with a field per input (N, …), in their order; a single input is returned as it is.

    AdaptiveError: they have different N.
    """
    if len(inputs) == 1:
        return next(iter(inputs.values()))
    counts = {name: len(values) if values.ndim else 0 for name, values in inputs.items()}
    if len(set(counts.values())) != 1:
        told = ", ".join(f"{name}: {count}" for name, count in counts.items()) or "none"
        raise AdaptiveError("inputs", f"samples of {told}", allowed="as many of each input")
    found = np.empty(next(iter(counts.values())), [(name, one.dtype, one.shape[1:]) for name, one in inputs.items()])
    for name, values in inputs.items():
        found[name] = values
    return found


def input_forms(x_N: NDArray[Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Type and shape of one sample of each input."""
    if x_N.dtype.names is None:
        return [(x_N.dtype.name, x_N.shape[1:])]
    return [(x_N.dtype[name].base.name, x_N.dtype[name].shape) for name in x_N.dtype.names] if x_N.ndim == 1 else []


def sample_sizes(x_N: NDArray[Any]) -> tuple[int, ...]:
    """The sizes of one sample; several inputs are concatenated."""
    return tuple(size for _, shape in input_forms(x_N) for size in shape)


def unpacked(x_N: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """The inputs (N, …) in order, each a contiguous copy; for samples with one input the array itself."""
    if x_N.dtype.names is None:
        return (x_N,)
    return tuple(x_N[name].copy() for name in x_N.dtype.names)  # a single sample is contiguous, but may be misaligned
