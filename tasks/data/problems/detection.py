"""Detection: boxes of objects with their classes, by the heads that `adaptive_runtime.samples.boxes` decodes.

Raw outputs (B, P, C) have a row for each anchor. A target (B, M, 5) float32 has rows of a class and a box (x0, y0, x1, y1), in
shares of the image's width and height, so SubNets of all resolutions are judged by the same boxes. Classes are numbered from
1, since 0 is the background; rows without a box have `ABSENT`. Images are square.

The score is the average precision, as in COCO. A detection is right at a threshold if its overlap with a box of its class
reaches the threshold and no better detection has taken the box. The precision at a recall is the largest one at any recall not
below it; it is averaged over 101 recalls. Sources: The PASCAL Visual Object Classes Challenge (IJCV 2010) §4.2; Microsoft
COCO: Common Objects in Context (ECCV 2014), and the rules on cocodataset.org.

Legend: B batch, P anchors, C columns, K classes, N images, or boxes of an image, D detections of an image, M boxes of an image
at most, T thresholds of IoU, R recalls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array, Integers
from adaptive_runtime.samples.boxes import HEADS, DetectionHead, Detections, detect, iou
from tasks.base.schemas.exports import Decoding
from tasks.data.problems.box_losses import LOSSES, Matched, distilled, matches_of
from tasks.data.problems.record import Divergence, LearningProblem, Tallied
from tasks.data.torch_later import torch

THRESHOLDS: tuple[float, ...] = tuple(np.linspace(0.5, 0.95, 10).tolist())
RECALLS = np.linspace(0, 1, 101)
MOST_DETECTIONS = 100
"""Largest number of detections per class and image; the best ones count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedImage:
    """The detections of an image, best first within each class, and whether they are right. boxes_M: the class of each box.
    T: one entry for each threshold passed to `judged`.
    """

    scores_D: Array
    classes_D: Integers
    right_TD: NDArray[np.bool_]
    boxes_M: Integers


def judged(
    detections: Detections, classes_M: Integers, boxes_M4: Array, thresholds: Sequence[float] = THRESHOLDS
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


def _right(iou_DM: Array, thresholds: Sequence[float]) -> NDArray[np.bool_]:
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


MAP50, COCO_MAP = "map50", "coco_map"
SCORES = {MAP50: ("mAP@0.5", THRESHOLDS[:1]), COCO_MAP: ("COCO mAP", THRESHOLDS)}
"""A score's name, and the overlaps at which detections are judged, by metric."""
SHOWN_SCORE = 0.5
"""Detections with at least this score are drawn, and count as mistakes in images without boxes."""


class Detection(LearningProblem):
    """Sources have `boxed(indices, draws)`: images (B, C, H, W), augmented by draws, and their boxes (B, M, 5)."""

    outside = "decoding and non-maximum suppression"
    reads = "boxed"

    def __init__(self, head: DetectionHead, judged_by: str = MAP50) -> None:
        self.name = f"detection_{head.name}"
        self.judged_by = judged_by
        self.score, self.thresholds = SCORES[judged_by]
        self.metric = self.score
        self.head = head
        self._loss = LOSSES[head.name]
        self._judging = replace(
            head, candidates=min(head.candidates, MOST_DETECTIONS), most=min(head.most, MOST_DETECTIONS)
        )

    def output_text(self, classes: int) -> str:
        """Description of the output: a row for each anchor."""
        head = self.head
        centreness = ", and centre-ness" if head.has_centreness else ""
        strides = ", ".join(map(str, head.strides))
        return (
            f"one tensor (B, P, {head.columns(classes)}): {classes} logits of classes with the background, 4 regressions"
            f"{centreness} for each of P anchors, {head.shapes} at a position of maps with strides {strides}, "
            f"for the head {head.name}"
        )

    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """(B, P, C)."""
        positions = None if resolution is None else self.head.positions((resolution, resolution))
        return None, positions, self.head.columns(classes)

    def blank(self, images: int, resolution: int) -> torch.Tensor:
        """One box of class 1 in the middle of each image."""
        return packed([np.array([[1, 0.25, 0.25, 0.75, 0.75]], dtype=np.float32)] * images)

    def classes(self, outputs: torch.Tensor) -> int:
        """Number of classes K of a raw output."""
        return outputs.shape[2] - self.head.columns(0)

    def loss(self, outputs: torch.Tensor, target: torch.Tensor, label_smoothing: float) -> torch.Tensor:
        """The sum of the head's losses of classes, boxes and centre-ness."""
        height, width = size = self.head.square(outputs.shape[1])
        scale_4 = outputs.new_tensor([width, height, width, height])
        images = [(class_M, box_M4 * scale_4) for class_M, box_M4 in map(present, target)]
        anchors_P4 = torch.from_numpy(self.head.anchors_of(size)).to(outputs)
        counts = [self.head.shapes * rows * columns for rows, columns in self.head.grids(size)]
        matched: Matched = matches_of(self._loss, images, anchors_P4, counts)
        parts = self._loss.parts(outputs, matched, anchors_P4, label_smoothing)
        return torch.stack(list(parts.values())).sum()

    def distillation(self, outputs: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
        """The loss from the teacher's raw output where it sees objects (`tasks.data.problems.box_losses`)."""
        return distilled(self.head, self._loss, outputs, taught, divergence)

    def detected(self, outputs: torch.Tensor) -> list[Detections]:
        """The 100 best detections of each image, in shares of its size."""
        height, width = size = self.head.square(outputs.shape[1])
        scale_4 = np.array([width, height, width, height], dtype=np.float32)
        images = detect(self._judging, outputs.detach().float().cpu().numpy(), size)
        return [replace(found, boxes_N4=found.boxes_N4 / scale_4) for found in images]

    def decoded(self, outputs: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Boxes (B, M, 5) with at least the score `SHOWN_SCORE`."""
        rows = []
        for found in self.detected(outputs):
            shown = found.scores_N >= SHOWN_SCORE
            rows.append(np.column_stack([found.classes_N[shown], found.boxes_N4[shown]]).astype(np.float32))
        return packed(rows).to(outputs.device)

    def decoding(self, outputs: np.ndarray, size: tuple[int, int]) -> Decoding:
        """Decoding of boxes by the head, as on a device, timed here image by image."""
        taken_s = []
        for raw_1PC in outputs[:, None]:
            start_s = time.perf_counter()
            detect(self.head, raw_1PC, size)
            taken_s.append(time.perf_counter() - start_s)
        return Decoding(head=self.head.name, p50_ms=1e3 * float(np.median(taken_s)), images=len(taken_s))

    def drawn(self, images_BCHW: torch.Tensor, answers: torch.Tensor, classes: int) -> torch.Tensor:
        """Images with the edges of boxes in the colours of their classes."""
        drawn_BCHW = images_BCHW.clone()
        height, width = drawn_BCHW.shape[-2:]
        for picture_CHW, rows_M5 in zip(drawn_BCHW, answers, strict=True):
            for label, left, top, right, bottom in rows_M5[rows_M5[:, 0] > ABSENT].tolist():
                colour_C11 = picture_CHW.new_tensor(hsv_to_rgb(label / max(1, classes - 1), 1.0, 1.0))[:, None, None]
                columns = slice(_pixel(left, width), _pixel(right, width) + 1)
                rows = slice(_pixel(top, height), _pixel(bottom, height) + 1)
                for row in (rows.start, rows.stop - 1):
                    picture_CHW[:, row : row + 1, columns] = colour_C11
                for column in (columns.start, columns.stop - 1):
                    picture_CHW[:, rows, column : column + 1] = colour_C11
        return drawn_BCHW

    def counted(self, outputs: torch.Tensor, target: torch.Tensor) -> tuple[Any, ...]:
        """The summed loss, the number of classes, and the detections of each image with its boxes."""
        outputs = outputs.float()
        images = []
        for found, rows_M5 in zip(self.detected(outputs), target.cpu(), strict=True):
            class_M, box_M4 = present(rows_M5)
            images.append(judged(found, class_M.numpy(), box_M4.numpy(), self.thresholds))
        return len(outputs) * float(self.loss(outputs, target, 0.0)), self.classes(outputs), images

    def judged(self, facts: Sequence[Sequence[Any]]) -> Tallied:
        """The score over all images, and the score of each image: the mean over the overlaps at which it is judged.

        The score of an image without boxes is 1, unless a detection reaches `SHOWN_SCORE`.
        """
        losses, (classes, *_), batches = facts
        images = list(chain.from_iterable(batches))
        scores = [
            mean_average_precisions([image], classes)[1]
            if len(image.boxes_M)
            else float((image.scores_D < SHOWN_SCORE).all())
            for image in images
        ]
        _, score = mean_average_precisions(images, classes)
        return Tallied(score, sum(losses) / len(images), np.array(scores, dtype=np.float16))


def _pixel(share: float, size: int) -> int:
    return min(size - 1, int(share * size))


DETECTION: Mapping[str, Detection] = MappingProxyType({name: Detection(head) for name, head in HEADS.items()})
"""By the name of the head, judged by mAP@0.5."""
DETECTION_BY_COCO: Mapping[str, Detection] = MappingProxyType(
    {name: Detection(head, COCO_MAP) for name, head in HEADS.items()}
)
"""By the name of the head, judged by COCO's mAP."""
