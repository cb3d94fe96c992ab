"""Classification by several targets, one class each. Legend: B batch, T targets, K classes of all targets, N samples.
A raw output (B, K) has the logits of all targets side by side. Each target is a distribution of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from importing.lazy import Later
from tasks.data.problems.record import LACKS_OF_PARTS, Batch, Divergence, Tallied

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    torch = Later("torch")
    functional = Later("torch.nn.functional")

LACKS: Mapping[str, str] = MappingProxyType(
    {name: "samples have several classes" for name in LACKS_OF_PARTS if name != "timm"}
)


@dataclass(slots=True)
class TargetAnswers:
    """Correctness of each target of each sample, and the mean cross-entropy."""

    problem: SeveralClasses
    loss: float = 0.0
    right: list[torch.Tensor] = field(default_factory=list)

    def add(self, outputs: torch.Tensor, target: torch.Tensor) -> None:
        """Add logits (B, K) and classes (B, T)."""
        self.right.append((self.problem.decoded(outputs, (0, 0)) == target).cpu())
        self.loss += len(target) * float(self.problem.loss(outputs, target, 0.0))

    def found(self) -> Tallied:
        """The mean accuracy of the targets, and the share of right targets of each sample."""
        right_NT = torch.cat(self.right).numpy()
        return Tallied(float(right_NT.mean()), self.loss / len(right_NT), right_NT.mean(1).astype(np.float16))


class SeveralClasses:
    """Sources have `images(indices, draws)`, `targets` (N, T) int64, and `heads`: number of classes by target.
    Targets: (B, T). heads: those of the data, set by `fitted`.
    """

    name = "several_classes"
    metric = "mean top-1 accuracy of all targets"
    judged_by = score = "accuracy"
    outside = None
    lacks = LACKS

    def __init__(self, heads: Mapping[str, int] = MappingProxyType({})) -> None:
        self.heads = heads

    def fitted(self, source: Any) -> SeveralClasses:
        """The record with the targets of a source."""
        return SeveralClasses(source.heads)

    def output_told(self, classes: int) -> str:
        """Description of the output: the logits of each target."""
        told = ", ".join(f"{name} {count}" for name, count in self.heads.items())
        return f"one tensor (B, {classes}): a number for each class of each target, side by side ({told})"

    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """(B, K)."""
        return None, classes

    def blank(self, images: int, resolution: int) -> torch.Tensor:
        """Class 0 of each target."""
        return torch.zeros(images, len(self.heads), dtype=torch.int64)

    def samples(self, source: Any, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        """Samples after the source's augmentation, and their classes (B, T)."""
        return source.images(indices, draws), torch.from_numpy(source.targets[indices])

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

    def decoding(self, outputs: np.ndarray, size: tuple[int, int]) -> None:
        """The raw output is the answer."""

    def drawn(self, images_BCHW: torch.Tensor, answers: torch.Tensor, classes: int) -> None:
        """Nothing: classes of a whole sample have no place in it."""

    def tally(self) -> TargetAnswers:
        """An empty tally."""
        return TargetAnswers(self)

    def _logits(self, outputs: torch.Tensor) -> Iterator[torch.Tensor]:
        """The logits of each target."""
        return iter(outputs.split(list(self.heads.values()), 1))


SEVERAL_CLASSES = SeveralClasses()
