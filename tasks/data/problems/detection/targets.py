"""Targets of detection: boxes with classes. Legend: B batch, M boxes of an image at most, N boxes of an image.

A target (B, M, 5) float32 has rows of a class and a box (x0, y0, x1, y1), in shares of the image's width and height, so that it
fits images of all resolutions. Classes are numbered from 1, since 0 is the background; rows without a box have `ABSENT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from importing.lazy import Later

if TYPE_CHECKING:
    import torch
else:
    torch = Later("torch")

ABSENT = -1
COLUMNS = 5
Rows = NDArray[np.float32]
"""Boxes of an image (N, 5)."""


def packed(images: Sequence[Rows]) -> torch.Tensor:
    """The target (B, M, 5) of images; M is at least 1."""
    most = max([1, *map(len, images)])
    target_BM5 = np.full((len(images), most, COLUMNS), ABSENT, dtype=np.float32)
    for own_M5, rows_N5 in zip(target_BM5, images, strict=True):
        own_M5[: len(rows_N5)] = rows_N5
    return torch.from_numpy(target_BM5)


def present(target_M5: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes (N,) int64 and boxes (N, 4) of an image."""
    rows_N5 = target_M5[target_M5[:, 0] > ABSENT]
    return rows_N5[:, 0].long(), rows_N5[:, 1:]


def within(rows_N5: Rows, window: tuple[float, float, float, float], least_share: float) -> Rows:
    """Boxes as shares of a window (left, top, width, height) of the image, cut at its edges.
    Boxes with less than `least_share` of their area inside are left out.
    """
    left, top, width, height = window
    scale, start = np.array([width, height] * 2, dtype=np.float32), np.array([left, top] * 2, dtype=np.float32)
    moved_N4 = (rows_N5[:, 1:] - start) / scale
    cut_N4 = np.clip(moved_N4, 0, 1)
    whole_N, inside_N = _area(moved_N4), _area(cut_N4)
    stays_N = (inside_N > 0) & (inside_N >= least_share * whole_N)
    return np.concatenate([rows_N5[:, :1], cut_N4], 1)[stays_N].astype(np.float32)


def flipped(rows_N5: Rows) -> Rows:
    """Boxes of the horizontally flipped image."""
    return np.stack([rows_N5[:, 0], 1 - rows_N5[:, 3], rows_N5[:, 2], 1 - rows_N5[:, 1], rows_N5[:, 4]], 1)


def _area(boxes_N4: NDArray[np.float32]) -> NDArray[np.float32]:
    area: NDArray[np.float32] = (boxes_N4[:, 2] - boxes_N4[:, 0]) * (boxes_N4[:, 3] - boxes_N4[:, 1])
    return area
