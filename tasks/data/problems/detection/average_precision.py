"""Average precision, as in COCO. Legend: D detections of an image, M its boxes, T thresholds of IoU, K classes, R recalls.

A detection is right at a threshold if its overlap with a box of its class reaches the threshold and no better detection has
taken the box. The precision at a recall is the largest one at any recall not below it; it is averaged over 101 recalls.
Sources: The PASCAL Visual Object Classes Challenge (IJCV 2010) §4.2; Microsoft COCO: Common Objects in Context (ECCV 2014), and
the rules on cocodataset.org.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.samples.boxes import Detections, iou

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]
THRESHOLDS: tuple[float, ...] = tuple(np.linspace(0.5, 0.95, 10).tolist())
RECALLS = np.linspace(0, 1, 101)
MOST_DETECTIONS = 100
"""Largest number of detections per class and image; the best ones count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedImage:
    """The detections of an image, best first within each class, and whether they are right. boxes_M: the class of each box.
    T: one entry for each threshold passed to `judged`.
    """

    scores_D: Floats
    classes_D: Integers
    right_TD: NDArray[np.bool_]
    boxes_M: Integers


def judged(
    detections: Detections, classes_M: Integers, boxes_M4: Floats, thresholds: Sequence[float] = THRESHOLDS
) -> JudgedImage:
    """The judgement of an image's detections; boxes are in the unit of its detections."""
    places, rights = [np.empty(0, dtype=np.int64)], [np.empty((len(thresholds), 0), dtype=bool)]
    for label in np.unique(detections.classes_N):
        own = np.flatnonzero(detections.classes_N == label)
        own = own[np.argsort(-detections.scores_N[own], kind="stable")][:MOST_DETECTIONS]
        places.append(own)
        rights.append(_right(iou(detections.boxes_N4[own], boxes_M4[classes_M == label]), thresholds))
    place_D = np.concatenate(places)
    return JudgedImage(
        scores_D=detections.scores_N[place_D],
        classes_D=detections.classes_N[place_D],
        right_TD=np.concatenate(rights, 1),
        boxes_M=classes_M,
    )


def _right(iou_DM: Floats, thresholds: Sequence[float]) -> NDArray[np.bool_]:
    """Right detections (T, D): each detection in turn takes the free box that it overlaps most with."""
    found_TD = np.zeros((len(thresholds), len(iou_DM)), dtype=bool)
    for right_D, threshold in zip(found_TD, thresholds, strict=True):
        left_DM = iou_DM.copy()
        for place in np.flatnonzero((iou_DM >= threshold).any(1)):
            best = int(left_DM[place].argmax())
            if left_DM[place, best] >= threshold:
                right_D[place] = True
                left_DM[:, best] = -1
    return found_TD


def average_precisions(images: Sequence[JudgedImage], classes: int) -> NDArray[np.float64]:
    """Average precisions (T, K) at the thresholds of `judged`; NaN for classes without a box in any image."""
    if not images:
        return np.full((1, classes), np.nan)
    found_TK = np.full((len(images[0].right_TD), classes), np.nan)
    scores, labels, boxes = (
        np.concatenate([getattr(image, name) for image in images]) for name in ("scores_D", "classes_D", "boxes_M")
    )
    right = np.concatenate([image.right_TD for image in images], 1)
    for label, count in enumerate(np.bincount(boxes, minlength=classes)):
        if count:
            own = np.flatnonzero(labels == label)
            order = own[np.argsort(-scores[own], kind="stable")]
            found_TK[:, label] = [_precision(right_D, int(count)) for right_D in right[:, order]]
    return found_TK


def _precision(right_D: NDArray[np.bool_], boxes: int) -> float:
    """Average precision of the detections of a class in all images, best first."""
    hits_D = np.cumsum(right_D)
    precision_D = hits_D / np.arange(1, len(right_D) + 1)
    largest_D = np.maximum.accumulate(precision_D[::-1])[::-1]
    place_R = np.searchsorted(hits_D / boxes, RECALLS, side="left")
    reached_R = place_R < len(right_D)
    return float(largest_D[place_R[reached_R]].sum() / len(RECALLS))


def mean_average_precisions(images: Sequence[JudgedImage], classes: int) -> tuple[float, float]:
    """mAP@0.5, and COCO's mAP if the images were judged at all thresholds: means over the classes that occur.
    Without any box, both are 1 if there is no detection either, else 0.
    """
    found_TK = average_precisions(images, classes)
    occurs_K = ~np.isnan(found_TK[0])
    if not occurs_K.any():
        nothing = float(not any(len(image.scores_D) for image in images))
        return nothing, nothing
    return float(found_TK[0, occurs_K].mean()), float(found_TK[:, occurs_K].mean())
