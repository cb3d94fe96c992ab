"""Detections from the raw outputs of a batch. Legend: B images, P anchors, K classes, N detections of an image."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.samples.boxes.anchors import Floats, Size
from adaptive_runtime.samples.boxes.heads import DetectionHead
from adaptive_runtime.samples.boxes.overlap import Integers, suppressed


@dataclass(frozen=True, slots=True, kw_only=True)
class Detections:
    """Detections of one image, the highest score first. boxes: (x0, y0, x1, y1) [px], inside the image. scores: in [0, 1]."""

    boxes_N4: Floats
    scores_N: Floats
    classes_N: Integers


def detect(head: DetectionHead, raw_BPC: Floats, size: Size) -> list[Detections]:
    """The detections of each image.

    raw_BPC: raw output of the network, in the layout of `heads`. size: (height, width) [px] of the network's input. The
    detections equal those of torchvision's network with the head's name. AdaptiveError: the raw output is of another head or
    size.
    """
    check_raw(head, raw_BPC.shape, size)
    anchors_P4 = head.anchors_of(size)
    return [_detected(head, raw_PC, anchors_P4, size) for raw_PC in raw_BPC]


def check_raw(head: DetectionHead, shape: tuple[int, ...], size: Size) -> None:
    """AdaptiveError if the shape is not that of a head's raw output for images of (height, width)."""
    positions, least = head.positions(size), head.columns(2)
    if len(shape) != 3 or shape[1] != positions or shape[2] < least:
        raise AdaptiveError(
            f"raw output of {head.name} for {size[0]} x {size[1]} pixels",
            f"a tensor {shape}",
            allowed=f"(B, {positions}, C), C at least {least}",
            next_step="give the size of the network's input",
        )


def _detected(head: DetectionHead, raw_PC: Floats, anchors_P4: Floats, size: Size) -> Detections:
    """The detections of one image."""
    scores_PK = head.scores(raw_PC)
    places_N, classes_N = (
        _best_of_each_class(head, scores_PK) if head.by_class else _best_of_grids(head, scores_PK, size)
    )
    first = scores_PK.shape[1]
    boxes_N4 = head.boxes(raw_PC[places_N, first : first + 4], anchors_P4[places_N])
    boxes_N4 = np.clip(boxes_N4, 0, np.array([size[1], size[0], size[1], size[0]], dtype=np.float32))
    scores_N = scores_PK[places_N, classes_N]
    kept = suppressed(boxes_N4, scores_N, classes_N, head.most_iou, head.most)
    return Detections(boxes_N4=boxes_N4[kept], scores_N=scores_N[kept], classes_N=classes_N[kept])


def _best_of_each_class(head: DetectionHead, scores_PK: Floats) -> tuple[Integers, Integers]:
    """Anchors and classes of the candidates: the best scores of each class."""
    found = [_best(scores_PK[:, label], head) for label in range(head.first_class, scores_PK.shape[1])]
    labels = [np.full(len(places), head.first_class + number) for number, places in enumerate(found)]
    return _joined(found), _joined(labels)


def _best_of_grids(head: DetectionHead, scores_PK: Floats, size: Size) -> tuple[Integers, Integers]:
    """Anchors and classes of the candidates: the best scores of each grid."""
    classes, start, found = scores_PK.shape[1], 0, []
    for rows, columns in head.grids(size):
        end = start + head.shapes * rows * columns
        found.append(_best(scores_PK[start:end].ravel(), head) + start * classes)
        start = end
    places, labels = np.divmod(_joined(found), classes)
    return places, labels


def _best(scores: Floats, head: DetectionHead) -> Integers:
    """Indices of the candidates among scores, best first."""
    over = np.flatnonzero(scores > head.least_score)
    return over[np.argsort(-scores[over], kind="stable")[: head.candidates]]


def _joined(parts: Sequence[Integers]) -> Integers:
    return np.concatenate([*parts, np.empty(0, dtype=np.int64)]).astype(np.int64)
