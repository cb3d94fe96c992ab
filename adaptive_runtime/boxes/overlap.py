"""How much boxes overlap, and the boxes that stay where many tell of one object. Legend: N and M boxes (x0, y0, x1, y1)."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


def areas(boxes_N4: Floats) -> Floats:
    """(N,)."""
    return (boxes_N4[:, 2] - boxes_N4[:, 0]) * (boxes_N4[:, 3] - boxes_N4[:, 1])


def intersections(boxes_N4: Floats, others_M4: Floats) -> Floats:
    """The areas (N, M) that are in both boxes."""
    low_NM2 = np.maximum(boxes_N4[:, None, :2], others_M4[None, :, :2])
    high_NM2 = np.minimum(boxes_N4[:, None, 2:], others_M4[None, :, 2:])
    sides_NM2 = np.maximum(high_NM2 - low_NM2, 0)
    found_NM: Floats = sides_NM2[..., 0] * sides_NM2[..., 1]
    return found_NM


def iou(boxes_N4: Floats, others_M4: Floats) -> Floats:
    """Intersection over union (N, M), in [0, 1]; 0 for two boxes without area."""
    both_NM = intersections(boxes_N4, others_M4)
    either_NM = areas(boxes_N4)[:, None] + areas(others_M4)[None] - both_NM
    return np.divide(both_NM, either_NM, out=np.zeros_like(both_NM), where=either_NM > 0)


def suppressed(boxes_N4: Floats, scores_N: Floats, classes_N: Integers, most_iou: float, most: int) -> Integers:
    """Places of the boxes that stay, best score first: `most` at most, no two of one class with an IoU above `most_iou`.

    A box goes where a better one of its class stays; of two with the same score the first is better.
    """
    left = np.argsort(-scores_N, kind="stable")
    kept: list[int] = []
    while len(left) and len(kept) < most:
        best, left = left[0], left[1:]
        kept.append(int(best))
        stays = np.ones(len(left), dtype=bool)
        same = np.flatnonzero(classes_N[left] == classes_N[best])
        stays[same] = iou(boxes_N4[best][None], boxes_N4[left[same]])[0] <= most_iou
        left = left[stays]
    return np.array(kept, dtype=np.int64)
