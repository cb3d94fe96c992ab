"""Classification: one class for each image, or one class for each of several targets.

A raw output (B, K) of several targets has the logits of all targets side by side. Each target is a distribution of its
own.

Legend: B batch, T targets, K classes (of all targets), N samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.data.problems.record import LACKS_OF_PARTS, ONE_HEAD, Divergence, LearningProblem, Tallied, joined
from tasks.data.torch_later import functional, torch


class SeveralClasses(LearningProblem):
    """Sources have `several(indices, draws)`, and `heads`: number of classes by target, set by `fitted`. Targets: (B, T)."""

    name = "several_classes"
    metric = "mean top-1 accuracy of all targets"
    judged_by = score = "accuracy"
    is_mean = True
    lacks = MappingProxyType({name: "samples have several classes" for name in LACKS_OF_PARTS if name != "timm"})
    reads = "several"

    def __init__(self, heads: Mapping[str, int] = ONE_HEAD) -> None:
        self.heads = heads

    def fitted(self, source: Any) -> SeveralClasses:
        """The record with the targets of a source."""
        return SeveralClasses(source.heads)

    def output_text(self, classes: int) -> str:
        """Description of the output: the logits of each target."""
        described = ", ".join(f"{name} {count}" for name, count in self.heads.items())
        return f"one tensor (B, {classes}): a number for each class of each target, side by side ({described})"

    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """(B, K)."""
        return None, classes

    def blank(self, images: int, resolution: int) -> torch.Tensor:
        """Class 0 of each target."""
        return torch.zeros(images, len(self.heads), dtype=torch.int64)

    def loss(self, outputs: torch.Tensor, target: torch.Tensor, label_smoothing: float) -> torch.Tensor:
        """The mean cross-entropy of the targets."""
        pairs = zip(self._logits(outputs), target.T, strict=True)
        found = [functional.cross_entropy(*pair, label_smoothing=label_smoothing) for pair in pairs]
        return torch.stack(found).mean()

    def distillation(self, outputs: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
        """Divergence from the teacher's distribution over the classes of each target."""
        pairs = zip(self._logits(outputs), self._logits(taught), strict=True)
        return torch.stack([divergence(*pair) for pair in pairs]).mean()

    def decoded(self, outputs: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """The class of each target (B, T)."""
        return torch.stack([logits.argmax(1) for logits in self._logits(outputs)], 1)

    def counted(self, outputs: torch.Tensor, target: torch.Tensor) -> tuple[Any, ...]:
        """The sum of the mean cross-entropies, and whether each target of each sample is right."""
        loss = len(target) * float(self.loss(outputs, target, 0.0))
        return loss, (self.decoded(outputs, (0, 0)) == target).cpu()

    def judged(self, facts: Sequence[Sequence[Any]]) -> Tallied:
        """The mean accuracy of the targets, and the share of right targets of each sample."""
        right_NT = joined(facts[1])
        return Tallied(float(right_NT.mean()), sum(facts[0]) / len(right_NT), right_NT.mean(1).astype(np.float16))

    def _logits(self, outputs: torch.Tensor) -> Iterator[torch.Tensor]:
        """The logits of each target."""
        return iter(outputs.split(list(self.heads.values()), 1))


SEVERAL_CLASSES = SeveralClasses()


ACCURACY, MACRO_F1 = "accuracy", "macro_f1"

LACKS_OF_F1: Mapping[str, str] = MappingProxyType(
    {
        "exits": "what exits promise is a share of right answers",
        "streams": "streams count right answers",
        "adaptable": "weights that adapt on a device are judged by the share of right answers",
        "blocks": "a search on a device goes by the share of right answers",
    }
)
"""Features that are unavailable when the score is no share of right answers, and the reasons."""
JUDGED: Mapping[str, tuple[str, str, Mapping[str, str]]] = MappingProxyType(
    {ACCURACY: ("top-1 accuracy", "accuracy", MappingProxyType({})), MACRO_F1: ("macro F1", "macro F1", LACKS_OF_F1)}
)
"""The metric, the score in tables, and the unavailable features, by the metric's name in settings."""


def confusion(target_N: np.ndarray, answer_N: np.ndarray, classes: int) -> NDArray[np.int64]:
    """(K, K): images by class (rows) and answer (columns)."""
    return np.bincount(target_N * classes + answer_N, minlength=classes**2).reshape(classes, classes)


def macro_f1(confusion_KK: NDArray[np.int64]) -> float:
    """Mean F1 of the classes that occur, as class or answer. Source: Information Retrieval (van Rijsbergen 1979) §7."""
    both_K, either_K = confusion_KK.diagonal(), confusion_KK.sum(0) + confusion_KK.sum(1)
    occurs_K = either_K > 0
    return float((2 * both_K[occurs_K] / either_K[occurs_K]).mean())


class Classification(LearningProblem):
    """Sources have `labelled(indices, draws)`. Targets: classes (B,)."""

    name = "classification"

    def __init__(self, judged_by: str = ACCURACY) -> None:
        self.judged_by = judged_by
        self.metric, self.score, self.lacks = JUDGED[judged_by]
        self.is_mean = judged_by == ACCURACY

    def output_text(self, classes: int) -> str:
        """Description of the output: one number for each class."""
        return (
            f"one tensor (B, {classes}): a number for each class of the data, for classification; data with masks are for "
            "segmentation"
        )

    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """(B, K)."""
        return None, classes

    def blank(self, images: int, resolution: int) -> torch.Tensor:
        """Class 0 for each image."""
        return torch.zeros(images, dtype=torch.int64)

    def loss(self, outputs: torch.Tensor, target: torch.Tensor, label_smoothing: float) -> torch.Tensor:
        """Cross-entropy. target: classes (B,), or soft labels (B, K)."""
        return functional.cross_entropy(outputs, target, label_smoothing=label_smoothing)

    def distillation(self, outputs: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
        """Divergence from the teacher's distribution over the classes of each image."""
        return divergence(outputs, taught)

    def decoded(self, outputs: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """The class of each image (B,)."""
        return outputs.argmax(1)

    def counted(self, outputs: torch.Tensor, target: torch.Tensor) -> tuple[Any, ...]:
        """The summed cross-entropy, the number of classes, and the true and the most likely class of each image."""
        loss = float(functional.cross_entropy(outputs, target, reduction="sum"))
        return loss, outputs.shape[1], target.cpu(), outputs.argmax(1).cpu()

    def judged(self, facts: Sequence[Sequence[Any]]) -> Tallied:
        """Top-1 accuracy and, for each image, whether it is classified correctly; or macro F1, with the latter as numbers."""
        losses, (classes, *_), targets, answers = facts
        target_N, answer_N = joined(targets), joined(answers)
        right_N: np.ndarray = answer_N == target_N
        loss, confusion_KK = sum(losses) / len(right_N), confusion(target_N, answer_N, classes)
        if self.judged_by == MACRO_F1:
            return Tallied(macro_f1(confusion_KK), loss, right_N.astype(np.float16), confusion_KK)
        return Tallied(int(right_N.sum()) / len(right_N), loss, right_N, confusion_KK)


CLASSIFICATION = Classification()
CLASSIFICATION_BY_F1 = Classification(MACRO_F1)
"""Judged by macro F1: all classes count alike, however many images each has."""
