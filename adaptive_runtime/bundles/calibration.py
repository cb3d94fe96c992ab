"""Inputs with expected answers in a bundle, so that a device can check what it computes: an npz file without pickles.

Legend: N samples, C channels, H height, W width, E exits, K classes. `x.CxHxW` are inputs for all SubNets of this shape,
in half precision; `y.DIGEST` answers of a whole SubNet (N, K), `y.DIGEST.EXIT` those at an exit of its chain.
"""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.errors import AdaptiveError

Array = NDArray[np.float32]
CALIBRATION_FILE = "calibration.npz"
MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class CalibrationSample:
    """inputs: (N, C, H, W) by shape (C, H, W). answers: (N, K) by SubNet and exit; None: of the whole SubNet."""

    inputs: Mapping[tuple[int, ...], Array]
    answers: Mapping[tuple[str, str | None], Array]

    def to_bytes(self) -> bytes:
        """The file's content."""
        found: dict[str, NDArray[np.floating]] = {
            f"x.{'x'.join(map(str, shape))}": x.astype(np.float16) for shape, x in self.inputs.items()
        }
        for (digest, exit), y_NK in self.answers.items():
            found[f"y.{digest}" if exit is None else f"y.{digest}.{exit}"] = y_NK
        stream = io.BytesIO()
        np.savez_compressed(stream, allow_pickle=False, **found)
        return stream.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes, where: str = CALIBRATION_FILE) -> "CalibrationSample":
        """From a file's content. AdaptiveError: it is none."""
        inputs: dict[tuple[int, ...], Array] = {}
        answers: dict[tuple[str, str | None], Array] = {}
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                for name, array in arrays.items():
                    kind, _, rest = name.partition(".")
                    if kind == "x":
                        inputs[tuple(map(int, rest.split("x")))] = array.astype(np.float32)
                    else:
                        digest, _, exit = rest.partition(".")
                        answers[digest, exit or None] = array
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise AdaptiveError(where, f"is no calibration sample ({error})") from error
        return cls(inputs, answers)


def half(x_NCHW: Array) -> Array:
    """Inputs as they come back from a file: rounded to half precision."""
    return x_NCHW.astype(np.float16).astype(np.float32)
