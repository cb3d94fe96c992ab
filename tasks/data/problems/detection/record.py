"""Detection: boxes of objects with their classes; a record for each head.

Raw outputs (B, P, C) have a row for each anchor (`adaptive_runtime.samples.boxes.heads`). Targets are those of
`tasks.data.problems.detection.targets`, in shares of the image, so SubNets of all resolutions are judged by the same
boxes. Images are square. Legend: B batch, M boxes of an image at most, P anchors, C columns, K classes, N images.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from colorsys import hsv_to_rgb
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptive_runtime.samples.boxes import HEADS, DetectionHead, Detections, detect
from importing.lazy import Later
from tasks.base.schemas.exports import Decoding
from tasks.data.problems.detection.average_precision import (
    MOST_DETECTIONS,
    THRESHOLDS,
    JudgedImage,
    judged,
    mean_average_precisions,
)
from tasks.data.problems.detection.distillation import distilled
from tasks.data.problems.detection.losses import LOSSES, Matched, matches_of
from tasks.data.problems.detection.targets import ABSENT, packed, present
from tasks.data.problems.record import LACKS_OF_PARTS, ONE_HEAD, Batch, Divergence, Tallied

if TYPE_CHECKING:
    import torch
else:
    torch = Later("torch")

MAP50, COCO_MAP = "map50", "coco_map"
SCORES = {MAP50: ("mAP@0.5", THRESHOLDS[:1]), COCO_MAP: ("COCO mAP", THRESHOLDS)}
"""A score's name, and the overlaps at which detections are judged, by metric."""
SHOWN_SCORE = 0.5
"""Detections with at least this score are drawn, and count as mistakes in images without boxes."""


@dataclass(slots=True)
class JudgedDetections:
    """The detections of all images and their boxes, the scores of single images, and the loss."""

    problem: Detection
    classes: int = 0
    loss: float = 0.0
    images: list[JudgedImage] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def add(self, outputs: torch.Tensor, target: torch.Tensor) -> None:
        """Add a raw output (B, P, C) and boxes (B, M, 5)."""
        outputs = outputs.float()
        self.classes = self.problem.classes(outputs)
        self.loss += len(outputs) * float(self.problem.loss(outputs, target, 0.0))
        for found, rows_M5 in zip(self.problem.detected(outputs), target.cpu(), strict=True):
            class_M, box_M4 = present(rows_M5)
            image = judged(found, class_M.numpy(), box_M4.numpy(), self.problem.thresholds)
            self.images.append(image)
            self.scores.append(self._alone(image))

    def _alone(self, image: JudgedImage) -> float:
        """The score of an image; without boxes it is 1, unless a detection reaches `SHOWN_SCORE`."""
        if not len(image.boxes_M):
            return float((image.scores_D < SHOWN_SCORE).all())
        return mean_average_precisions([image], self.classes)[1]

    def found(self) -> Tallied:
        """The score over all images, and the score of each image: the mean over the overlaps at which it is judged."""
        _, score = mean_average_precisions(self.images, self.classes)
        return Tallied(score, self.loss / len(self.images), np.array(self.scores, dtype=np.float16))


class Detection:
    """Sources have `boxed(indices, draws)`: images (B, C, H, W), augmented by draws, and their boxes (B, M, 5)."""

    outside = "decoding and non-maximum suppression"
    lacks = LACKS_OF_PARTS
    heads = ONE_HEAD

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

    def fitted(self, source: Any) -> Detection:
        """The record itself, which is the same for all sources."""
        return self

    def output_told(self, classes: int) -> str:
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

    def samples(self, source: Any, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        """Images and their boxes, after joint augmentation by the source."""
        images_and_boxes: Batch = source.boxed(indices, draws)
        return images_and_boxes

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
        """The loss from the teacher's raw output where it sees objects (`tasks.data.problems.detection.distillation`)."""
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

    def tally(self) -> JudgedDetections:
        """An empty tally."""
        return JudgedDetections(self)


def _pixel(share: float, size: int) -> int:
    return min(size - 1, int(share * size))


DETECTION: Mapping[str, Detection] = MappingProxyType({name: Detection(head) for name, head in HEADS.items()})
"""By the name of the head, judged by mAP@0.5."""
DETECTION_BY_COCO: Mapping[str, Detection] = MappingProxyType(
    {name: Detection(head, COCO_MAP) for name, head in HEADS.items()}
)
"""By the name of the head, judged by COCO's mAP."""
