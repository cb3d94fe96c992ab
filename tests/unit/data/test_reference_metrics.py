"""The score of each kind of task is torchmetrics' value on the same predictions; mAP there is by pycocotools."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torchmetrics import MeanSquaredError, Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassJaccardIndex
from torchmetrics.detection import MeanAveragePrecision
from torchmetrics.image import PeakSignalNoiseRatio

from adaptive_runtime.samples.boxes import Detections
from tasks.data.problems import CLASSIFICATION, CLASSIFICATION_BY_F1, RESTORATION, SEGMENTATION, TAGGING
from tasks.data.problems.detection import judged, mean_average_precisions
from tasks.data.problems.record import LearningProblem
from tasks.data.problems.segmentation import IGNORED

CLASSES, IMAGES, SIDE = 5, 60, 16
LAST = CLASSES - 1
"""A class that neither occurs nor is answered."""

COCO = {"iou_thresholds": np.linspace(0.5, 0.95, 10).tolist(), "rec_thresholds": np.linspace(0, 1, 101).tolist()}
"""pycocotools' own thresholds, which torchmetrics' defaults are in single precision."""


class Predictions(NamedTuple):
    """As networks and data sources give them."""

    outputs: torch.Tensor
    target: torch.Tensor


def logits_of(shape: tuple[int, ...], class_axis: int, seed: int) -> torch.Tensor:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    logits.select(class_axis, LAST).fill_(-9)
    return logits


def classes_of(shape: tuple[int, ...], seed: int, ignored: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, LAST, shape, generator=generator)
    return target.masked_fill(torch.rand(shape, generator=generator) < ignored, IGNORED)


def images_of(seed: int) -> torch.Tensor:
    return torch.rand(IMAGES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


PREDICTIONS = {
    "images": Predictions(logits_of((IMAGES, CLASSES), 1, 0), classes_of((IMAGES,), 1)),
    "pixels": Predictions(
        logits_of((IMAGES, CLASSES, SIDE, SIDE), 1, 2), classes_of((IMAGES, SIDE, SIDE), 3, ignored=0.1)
    ),
    "words": Predictions(logits_of((IMAGES, SIDE, CLASSES), 2, 4), classes_of((IMAGES, SIDE), 5, ignored=0.2)),
    "restored": Predictions(images_of(6) * 0.2 + images_of(7) * 0.8, images_of(7)),
}


@pytest.mark.parametrize(
    ("problem", "kind", "reference", "class_axis"),
    [
        (CLASSIFICATION, "images", MulticlassAccuracy(CLASSES, average="micro"), 1),
        (CLASSIFICATION_BY_F1, "images", MulticlassF1Score(CLASSES, average="macro"), 1),
        (SEGMENTATION, "pixels", MulticlassJaccardIndex(CLASSES, average="macro", ignore_index=IGNORED), 1),
        (TAGGING, "words", MulticlassAccuracy(CLASSES, average="micro", ignore_index=IGNORED), 2),
    ],
    ids=["accuracy", "macro F1", "mean IoU", "word accuracy"],
)
def test_scores_of_classes_are_those_of_the_reference(
    problem: LearningProblem, kind: str, reference: Metric, class_axis: int
) -> None:
    outputs, target = PREDICTIONS[kind]
    reference.update(outputs.movedim(class_axis, 1), target)
    assert scored(problem, outputs, target) == pytest.approx(float(reference.compute()), abs=1e-6)


@pytest.mark.parametrize(
    ("reference", "from_score"),
    [
        (PeakSignalNoiseRatio(data_range=(0.0, 1.0), dim=(1, 2, 3)), lambda tallied: 100 * tallied.score),
        (MeanSquaredError(), lambda tallied: tallied.loss),
    ],
    ids=["PSNR", "MSE"],
)
def test_scores_of_restored_images_are_those_of_the_reference(
    reference: Metric, from_score: Callable[..., float]
) -> None:
    outputs, target = PREDICTIONS["restored"]
    reference.update(outputs, target)
    tally = RESTORATION.tally()
    tally.add(outputs, target)
    assert from_score(tally.found()) == pytest.approx(float(reference.compute()), rel=1e-6)


def test_mean_average_precisions_are_those_of_the_reference() -> None:
    generator = np.random.default_rng(8)
    reference, images = MeanAveragePrecision(**COCO), []
    for _ in range(IMAGES):
        labels_M = generator.integers(1, CLASSES, generator.integers(0, 6))
        boxes_M4 = boxes_of(generator, len(labels_M))
        found = detections_of(generator, labels_M, boxes_M4)
        images.append(judged(found, labels_M, boxes_M4))
        names = {"boxes": found.boxes_N4, "scores": found.scores_N, "labels": found.classes_N}
        detected = {name: torch.from_numpy(value) for name, value in names.items()}
        reference.update([detected], [{"boxes": torch.from_numpy(boxes_M4), "labels": torch.from_numpy(labels_M)}])
    expected = reference.compute()
    map50, coco_map = mean_average_precisions(images, CLASSES)
    assert 0.2 < coco_map < map50 < 0.9
    assert (map50, coco_map) == pytest.approx((float(expected["map_50"]), float(expected["map"])), abs=1e-6)


def detections_of(generator: np.random.Generator, labels_M: np.ndarray, boxes_M4: np.ndarray) -> Detections:
    """Of an image: none to two near each box, most of them of its class, and three anywhere."""
    copies_M = generator.integers(0, 3, len(labels_M))
    near_N4 = np.repeat(boxes_M4, copies_M, 0) + generator.normal(0, 1, (copies_M.sum(), 4)).astype(np.float32)
    right_N = np.where(generator.random(len(near_N4)) < 0.8, np.repeat(labels_M, copies_M), 1)
    boxes_N4 = np.concatenate([near_N4, boxes_of(generator, 3)])
    return Detections(
        boxes_N4=boxes_N4,
        scores_N=generator.random(len(boxes_N4), np.float32),
        classes_N=np.concatenate([right_N, generator.integers(1, CLASSES, 3)]),
    )


def boxes_of(generator: np.random.Generator, count: int) -> np.ndarray:
    """Corners (N, 4) in pixels."""
    start_N2, size_N2 = generator.uniform(0, 60, (count, 2)), generator.uniform(8, 60, (count, 2))
    return np.concatenate([start_N2, start_N2 + size_N2], 1).astype(np.float32)


def scored(problem: LearningProblem, outputs: torch.Tensor, target: torch.Tensor) -> float:
    """The score of all, batch by batch."""
    tally = problem.tally()
    for start in range(0, len(target), 16):
        tally.add(outputs[start : start + 16], target[start : start + 16])
    return tally.found().score
