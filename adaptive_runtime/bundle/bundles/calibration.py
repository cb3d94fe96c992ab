"""Inputs with expected answers in a bundle, so that a device can check its computations: an npz file without pickles.

Legend: N samples, C channels, H height, W width, T words, E exits, K classes. `x.CxHxW` are images for all SubNets of this
shape, in half precision, and `x.T` texts of T words. For several inputs, the name after `x.` has the sizes of all, and the
array has a field for each. `y.DIGEST` are answers of a whole SubNet (N, K), `y.DIGEST.EXIT` those at an exit of its chain.
"""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError

Array = NDArray[np.float32]
CALIBRATION_FILE = "calibration.npz"
MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class CalibrationSample:
    """inputs: (N, C, H, W) by shape (C, H, W), texts (N, T) int64 by (T,), or several inputs (N,) by the sizes of all.

    answers: (N, K) by SubNet and exit; exit None: the whole SubNet.
    """

    inputs: Mapping[tuple[int, ...], NDArray[Any]]
    answers: Mapping[tuple[str, str | None], Array]

    def to_bytes(self) -> bytes:
        """The file's content."""
        found: dict[str, NDArray[Any]] = {
            f"x.{'x'.join(map(str, shape))}": x.astype(_stored(x)) for shape, x in self.inputs.items()
        }
        for (digest, exit), y_NK in self.answers.items():
            found[f"y.{digest}" if exit is None else f"y.{digest}.{exit}"] = y_NK
        stream = io.BytesIO()
        np.savez_compressed(stream, allow_pickle=False, **found)
        return stream.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes, where: str = CALIBRATION_FILE) -> "CalibrationSample":
        """Read a file's content. AdaptiveError if it is no calibration sample."""
        inputs: dict[tuple[int, ...], NDArray[Any]] = {}
        answers: dict[tuple[str, str | None], Array] = {}
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                for name, array in arrays.items():
                    kind, _, rest = name.partition(".")
                    if kind == "x":
                        inputs[tuple(map(int, rest.split("x")))] = array.astype(_loaded(array))
                    else:
                        digest, _, exit = rest.partition(".")
                        answers[digest, exit or None] = array
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise AdaptiveError(where, f"is no calibration sample ({error})") from error
        return cls(inputs, answers)


def half(x: NDArray[Any]) -> NDArray[Any]:
    """Inputs as they come back from a file: images rounded to half precision, numbers of words unchanged."""
    stored = x.astype(_stored(x))
    return stored.astype(_loaded(stored))


def _stored(x: NDArray[Any]) -> np.dtype[Any]:
    return _with_floats(x.dtype, np.float16)


def _loaded(x: NDArray[Any]) -> np.dtype[Any]:
    return _with_floats(x.dtype, np.float32)


def _with_floats(given: np.dtype[Any], floats: type[np.floating[Any]]) -> np.dtype[Any]:
    """The type with floats replaced, also in the fields of several inputs; whole numbers become 64 bits."""
    if given.names is not None:
        return np.dtype([(name, _with_floats(given[name].base, floats), given[name].shape) for name in given.names])
    return np.dtype(floats if np.issubdtype(given, np.floating) else np.int64)
