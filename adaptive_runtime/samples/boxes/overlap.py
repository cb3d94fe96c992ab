"""Overlap of boxes and non-maximum suppression. Legend: N and M boxes (x0, y0, x1, y1)."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
BLOCK = 64
"""Number of boxes that are compared with each other at once."""


def areas(boxes_N4: Floats) -> Floats:
    """Areas (N,) of boxes."""
    return (boxes_N4[:, 2] - boxes_N4[:, 0]) * (boxes_N4[:, 3] - boxes_N4[:, 1])


def intersections(boxes_N4: Floats, others_M4: Floats) -> Floats:
    """Areas (N, M) of the intersections."""
    left_N1, top_N1, right_N1, bottom_N1 = boxes_N4.T[:, :, None]
    left_1M, top_1M, right_1M, bottom_1M = others_M4.T[:, None]
    width_NM = np.minimum(right_N1, right_1M) - np.maximum(left_N1, left_1M)
    height_NM = np.minimum(bottom_N1, bottom_1M) - np.maximum(top_N1, top_1M)
    found_NM: Floats = np.maximum(width_NM, 0) * np.maximum(height_NM, 0)
    return found_NM


def iou(boxes_N4: Floats, others_M4: Floats) -> Floats:
    """Intersection over union (N, M), in [0, 1]; 0 for two boxes without area."""
    both_NM = intersections(boxes_N4, others_M4)
    either_NM = areas(boxes_N4)[:, None] + areas(others_M4)[None] - both_NM
    return np.divide(both_NM, either_NM, out=np.zeros_like(both_NM), where=either_NM > 0)


def suppressed(boxes_N4: Floats, scores_N: Floats, classes_N: Integers, most_iou: float, most: int) -> Integers:
    """Indices of the boxes that stay, best score first: `most` at most, no two of one class with an IoU above `most_iou`.

    A box is dropped if a better box of its class stays; of two with the same score the first is better.
    """
    order_N = np.argsort(-scores_N, kind="stable")
    kept = np.empty(0, dtype=np.int64)
    for start in range(0, len(order_N), BLOCK):
        if len(kept) >= most:
            break
        block = order_N[start : start + BLOCK]
        block = block[~_same_object(boxes_N4, classes_N, block, kept, most_iou).any(1)]
        again = _same_object(boxes_N4, classes_N, block, block, most_iou)
        stays = np.ones(len(block), dtype=bool)
        for place in range(len(block)):
            if stays[place]:
                stays[place + 1 :] &= ~again[place, place + 1 :]
        kept = np.concatenate([kept, block[stays]])
    return kept[:most]


def _same_object(
    boxes_N4: Floats, classes_N: Integers, some: Integers, others: Integers, most_iou: float
) -> NDArray[np.bool_]:
    """Pairs of boxes, by their indices, that belong to one object: (some, others)."""
    same = classes_N[some][:, None] == classes_N[others][None]
    return same & (iou(boxes_N4[some], boxes_N4[others]) > most_iou)
