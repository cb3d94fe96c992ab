"""Anchors: the boxes from which a detector's regressions start. Legend: P anchors, A anchors at a position.

Grids are the sizes (rows, columns) of the feature maps, finest first; a size is (height, width) [px]; boxes are
(x0, y0, x1, y1) [px]. Anchors go by grid, row and column, and then by their shapes at a position.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Size = tuple[int, int]
Floats = NDArray[np.float32]


def grids_of(size: Size, strides: Sequence[int]) -> tuple[Size, ...]:
    """Sizes of the feature maps of an image; each stride divides rows and columns and rounds up."""
    height, width = size
    return tuple((-(-height // stride), -(-width // stride)) for stride in strides)


def pyramid_anchors(
    grids: Sequence[Size], size: Size, sides_px: Sequence[Sequence[int]], ratios: Sequence[float]
) -> Floats:
    """(P, 4) around the corners of cells, with fixed sides for each grid.

    ratios: height over width. Shapes at a position are ordered by ratio, then by side; their half sides are rounded. Source:
    Feature Pyramid Networks (CVPR 2017) §4.1, Focal Loss for Dense Object Detection (ICCV 2017) §4.
    """
    found = []
    tall_R = np.sqrt(np.asarray(ratios, dtype=np.float32))
    for (rows, columns), sides in zip(grids, sides_px, strict=True):
        side_S = np.asarray(sides, dtype=np.float32)
        width_A = ((1 / tall_R)[:, None] * side_S[None]).ravel()
        height_A = (tall_R[:, None] * side_S[None]).ravel()
        shape_A4 = np.round(np.stack([-width_A, -height_A, width_A, height_A], 1) / 2)
        corner_HW2 = _lattice(
            np.arange(rows, dtype=np.float32) * (size[0] // rows),
            np.arange(columns, dtype=np.float32) * (size[1] // columns),
        )
        corner_P14 = np.tile(corner_HW2.reshape(-1, 1, 2), 2)
        found.append((corner_P14 + shape_A4).reshape(-1, 4))
    return np.concatenate(found)


def default_boxes(
    grids: Sequence[Size], size: Size, ratios: Sequence[float], least_scale: float, largest_scale: float
) -> Floats:
    """(P, 4) around the centres of cells, with one scale per grid, as a share of the image.

    ratios: width over height, each also inverted, besides two squares. Source: SSD (ECCV 2016) §2.2.
    """
    last = max(1, len(grids) - 1)
    scales = [*(least_scale + (largest_scale - least_scale) * number / last for number in range(len(grids))), 1.0]
    image_2 = np.array([size[1], size[0]], dtype=np.float32)
    found = []
    for (rows, columns), scale, coarser in zip(grids, scales[:-1], scales[1:], strict=True):
        between = np.sqrt(scale * coarser)
        pairs = [(scale, scale), (between, between)]
        for ratio in ratios:
            long, short = scale * np.sqrt(ratio), scale / np.sqrt(ratio)
            pairs += [(long, short), (short, long)]
        shape_A2 = np.clip(np.array(pairs, dtype=np.float32), 0, 1)
        y_H = ((np.arange(rows, dtype=np.float32) + np.float32(0.5)) / np.float32(rows)).astype(np.float32)
        x_W = ((np.arange(columns, dtype=np.float32) + np.float32(0.5)) / np.float32(columns)).astype(np.float32)
        centre_P12 = _lattice(y_H, x_W).reshape(-1, 1, 2)
        half_A2 = np.float32(0.5) * shape_A2
        low_PA2, high_PA2 = (centre_P12 - half_A2) * image_2, (centre_P12 + half_A2) * image_2
        found.append(np.concatenate([low_PA2, high_PA2], -1).reshape(-1, 4))
    return np.concatenate(found)


def _lattice(y_H: Floats, x_W: Floats) -> Floats:
    """Grid (H, W, 2) of coordinates (x, y)."""
    x_HW, y_HW = np.meshgrid(x_W, y_H)
    return np.stack([x_HW, y_HW], -1)
