"""The user's own images, with or without labels: an .npz file, or a folder of .npy files that is read piece by piece.

Images are never written. Legend: N samples, C channels, H height, W width.
"""

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError

ALLOWED = "x float32 (N, C, H, W), prepared as blocks.json says; y whole numbers (N,), or none"
PIECE = 256


@dataclass(frozen=True, slots=True)
class OwnImages:
    """images (N, C, H, W), float32; labels (N,), or None."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64] | None

    @classmethod
    def read(cls, source: Path | IO[bytes], shape: tuple[int, ...], classes: int) -> Self:
        """Read `x` and `y` from an .npz file, or `x.npy` and `y.npy` from a folder. AdaptiveError: they do not fit.

        shape: (C, H, W) of the network's input. classes: number of possible labels.
        """
        where = str(source) if isinstance(source, Path) else "images"
        try:
            images, labels = _folder(source) if isinstance(source, Path) and source.is_dir() else _archive(source)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise AdaptiveError(where, f"cannot be read ({error})", allowed=ALLOWED) from error
        if images.dtype != np.float32 or images.ndim != 4 or images.shape[1:] != shape or not len(images):
            got = f"x is {images.dtype} {images.shape}".replace("'", "")
            raise AdaptiveError(where, got, allowed=f"float32 (N, {', '.join(map(str, shape))}), N from 1 on")
        if labels is None:
            return cls(images, None)
        if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
            got = f"y is {labels.dtype} {labels.shape}"
            raise AdaptiveError(where, got, allowed=f"whole numbers ({len(images)},)")
        if labels.min() < 0 or labels.max() >= classes:
            raise AdaptiveError(where, f"y from {labels.min()} to {labels.max()}", allowed=f"0 to {classes - 1}")
        return cls(images, labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def digest(self) -> str:
        """Hash that identifies these images; they cannot be restored from it."""
        found = hashlib.sha256(repr(self.images.shape).encode())
        for start in range(0, len(self.images), PIECE):
            found.update(np.ascontiguousarray(self.images[start : start + PIECE]).data)
        if self.labels is not None:
            found.update(self.labels.tobytes())
        return found.hexdigest()


def _folder(folder: Path) -> tuple[np.ndarray, np.ndarray | None]:
    file = folder / "y.npy"
    labels = np.load(file, allow_pickle=False) if file.exists() else None
    return np.load(folder / "x.npy", mmap_mode="r", allow_pickle=False), labels


def _archive(source: Path | IO[bytes]) -> tuple[np.ndarray, np.ndarray | None]:
    with np.load(source, allow_pickle=False) as arrays:
        return arrays["x"], arrays.get("y")
