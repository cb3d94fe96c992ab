"""Statistics and samples of the images for which a bundle's SubNets were made: npz files without pickles.

Legend: A labelled images, C channels, H height, W width, F channels of all BatchNorms, N images of calibration, D statistics of
an image, P directions.
"""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains import ImagePreparation

Array = NDArray[np.float32]
LEVELS = 255.0
"""Levels of a colour in uint8."""
NEEDED = ("mean", "variance", "usual_mean", "usual_deviation", "calibration")
TOGETHER = (("directions", "distances"), ("usual_light", "light_deviations"))
"""Arrays of `AdaptationSource`: NEEDED are in every file; TOGETHER are pairs that files of earlier versions lack."""


def _written(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **dict(arrays))
    return stream.getvalue()


def _read(content: bytes, names: tuple[str, ...], where: str, newer: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    """Arrays by name. newer: names that files of earlier versions lack. AdaptiveError if one of `names` is missing."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in (*names, *(name for name in newer if name in arrays))}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise AdaptiveError(where, f"cannot be read ({error})", next_step="export the bundle again") from error


@dataclass(frozen=True, slots=True)
class SourceImages:
    """Labelled images (A, C, H, W) like those of training, in uint8 and the data's resolution; never used for training."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, x_ACHW: Array, labels_A: NDArray[np.int64], prepared: ImagePreparation) -> Self:
        """Convert images as a SubNet takes them, in the data's resolution; colours are rounded to levels of uint8."""
        mean, deviation = _by_channel(prepared)
        levels = np.rint((x_ACHW * deviation + mean) * LEVELS)
        return cls(np.clip(levels, 0, LEVELS).astype(np.uint8), labels_A)

    def normalised(self, prepared: ImagePreparation) -> Array:
        """Images (A, C, H, W) as a SubNet takes them, in the data's resolution."""
        mean, deviation = _by_channel(prepared)
        return ((self.images / np.float32(LEVELS) - mean) / deviation).astype(np.float32)

    def to_bytes(self) -> bytes:
        """The file's content."""
        return _written({"images": self.images, "labels": self.labels})

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> Self:
        """Read a file's content. AdaptiveError if it is no such file."""
        return cls(**_read(content, ("images", "labels"), where))


def _by_channel(prepared: ImagePreparation) -> tuple[Array, Array]:
    return tuple(np.array(each, np.float32).reshape(-1, 1, 1) for each in (prepared.mean, prepared.deviation))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class AdaptationSource:
    """The usual statistics for one SubNet.

    mean, variance (F,): of its BatchNorms, one after another. usual_mean, usual_deviation (2F,), directions (P, 2F): of the
    features of images (`adaptive_runtime.weights.UsualFeatures`). calibration (N, 3): statistics of images like those
    of training; distances (N,): the fourth statistic. usual_light (6, C), light_deviations (): of images in the SubNet's size
    (`adaptive_runtime.weights.ImageAlignment`). Files of version 0.6.0 have neither directions nor distances; files
    before version 0.12.0 have no light. Earlier run times ignore arrays that they do not know.
    """

    mean: Array
    variance: Array
    usual_mean: Array
    usual_deviation: Array
    calibration: NDArray[np.float64]
    directions: Array | None = None
    distances: NDArray[np.float64] | None = None
    usual_light: Array | None = None
    light_deviations: NDArray[np.float64] | None = None

    @property
    def calibration_ND(self) -> NDArray[np.float64]:
        """All statistics of the images of calibration."""
        return self.calibration if self.distances is None else np.column_stack([self.calibration, self.distances])

    def to_bytes(self) -> bytes:
        """The file's content."""
        arrays = {one.name: getattr(self, one.name) for one in fields(self)}
        return _written({name: array for name, array in arrays.items() if array is not None})

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> Self:
        """Read a file's content. AdaptiveError if it is no such file."""
        found = cls(**_read(content, NEEDED, where, newer=tuple(name for pair in TOGETHER for name in pair)))
        for pair in TOGETHER:
            if len({getattr(found, name) is None for name in pair}) > 1:
                raise AdaptiveError(where, f"has {' or '.join(pair)} alone", next_step="export the bundle again")
        return found
