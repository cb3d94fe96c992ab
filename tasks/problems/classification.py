"""Classification: one class for each image. Legend: B batch, K classes, N images."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tasks.problems.record import Batch, Divergence, Tallied


@dataclass(slots=True)
class RightAnswers:
    """The images whose class has the largest logit, and their cross-entropy."""

    loss: float = 0.0
    right: list[torch.Tensor] = field(default_factory=list)

    def add(self, outputs: torch.Tensor, target: torch.Tensor) -> None:
        """Logits (B, K) and classes (B,)."""
        self.right.append((outputs.argmax(1) == target).cpu())
        self.loss += float(functional.cross_entropy(outputs, target, reduction="sum"))

    def found(self) -> Tallied:
        """Top-1 accuracy, and which images are classified correctly."""
        right_N: np.ndarray = torch.cat(self.right).numpy()
        return Tallied(int(right_N.sum()) / len(right_N), self.loss / len(right_N), right_N)


class Classification:
    """Sources have `images(indices, draws)`, which augments, and `labels` (N,) int64. Targets: classes (B,)."""

    name = "classification"
    metric = "top-1 accuracy"
    score = "accuracy"
    outside = None
    lacks: Mapping[str, str] = MappingProxyType({})

    def output_told(self, classes: int) -> str:
        """One number for each class."""
        return (
            f"one tensor (B, {classes}): a number for each class of the data, for classification; data with masks are for "
            "segmentation"
        )

    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """(B, K)."""
        return None, classes

    def blank(self, images: int, resolution: int) -> torch.Tensor:
        """Class 0 for each."""
        return torch.zeros(images, dtype=torch.int64)

    def samples(self, source: Any, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        """Images as the source augments them, and their classes (B,)."""
        return source.images(indices, draws), torch.from_numpy(source.labels[indices])

    def loss(self, outputs: torch.Tensor, target: torch.Tensor, label_smoothing: float) -> torch.Tensor:
        """Cross-entropy. target: classes (B,), or soft labels (B, K)."""
        return functional.cross_entropy(outputs, target, label_smoothing=label_smoothing)

    def distillation(self, outputs: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
        """From the teacher's distribution over the classes of each image."""
        return divergence(outputs, taught)

    def decoded(self, outputs: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """The class of each image (B,)."""
        return outputs.argmax(1)

    def decoding(self, outputs: np.ndarray, size: tuple[int, int]) -> None:
        """The raw output is the answer."""

    def drawn(self, images_BCHW: torch.Tensor, answers: torch.Tensor, classes: int) -> None:
        """A class of a whole image has no place in it."""

    def tally(self) -> RightAnswers:
        """No image yet."""
        return RightAnswers()


CLASSIFICATION = Classification()
