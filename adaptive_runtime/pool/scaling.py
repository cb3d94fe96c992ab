"""Samples in a SubNet's size: images scaled bilinearly with anti-aliasing, as in training, and the first words of texts.

Legend: N samples, C channels, H height, W width; O output size, I input size.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains import InputPreparation, InputsPreparation, SamplePreparation
from adaptive_runtime.samples.several import NumbersPreparation, packed
from adaptive_runtime.samples.texts import TextPreparation, of_length

Array = NDArray[Any]
BILINEAR = "bilinear, antialiased"


def scaling(before: tuple[int, int], after: tuple[int, int], interpolation: str) -> Callable[[Array], Array] | None:
    """A function that scales images (N, C, *before) to (N, C, *after); None if not needed. AdaptiveError: another method."""
    if before == after:
        return None
    if interpolation != BILINEAR:
        raise AdaptiveError("preparation", f"size_interpolation '{interpolation}'", allowed=BILINEAR)
    rows_OI, columns_OI = (_weights(*sizes) for sizes in zip(before, after, strict=True))
    columns_IO = np.ascontiguousarray(columns_OI.T)

    def scaled(x_NCHW: Array) -> Array:
        return np.ascontiguousarray(rows_OI @ (x_NCHW @ columns_IO))

    return scaled


def scaling_of(preparation: SamplePreparation, input_shape: tuple[int, ...]) -> Callable[[Array], Array] | None:
    """A function that scales samples of the data's own size for a SubNet with this input shape; None if not needed."""
    if isinstance(preparation, TextPreparation):
        return _scaling_of_input(preparation)
    if isinstance(preparation, InputsPreparation):
        scales = {name: _scaling_of_input(one) for name, one in preparation.inputs.items()}
        return partial(_scaled_inputs, scales) if any(scales.values()) else None
    height, width = input_shape[-2:]
    return scaling((preparation.resolution,) * 2, (height, width), preparation.size_interpolation)


def _scaling_of_input(one: InputPreparation) -> Callable[[Array], Array] | None:
    if isinstance(one, NumbersPreparation):
        return None
    if isinstance(one, TextPreparation):
        (length,) = one.size
        return None if length == one.length else partial(of_length, length=length)
    return scaling((one.resolution,) * 2, one.size, one.size_interpolation)


def _scaled_inputs(scales: Mapping[str, Callable[[Array], Array] | None], x_N: Array) -> Array:
    return packed({name: x_N[name] if scale is None else scale(x_N[name]) for name, scale in scales.items()})


def _weights(before: int, after: int) -> Array:
    """The share of each input pixel in each output pixel (O, I): a triangle as wide as two pixels of the coarser grid."""
    scale = before / after
    width = max(scale, 1.0)
    centres_O1 = (np.arange(after)[:, None] + 0.5) * scale
    distance_OI = np.abs(np.arange(before) + 0.5 - centres_O1) / width
    found_OI = np.maximum(0.0, 1.0 - distance_OI)
    return (found_OI / found_OI.sum(1, keepdims=True)).astype(np.float32)
