"""Fidelity: how closely a SubNet answers as the network that its owner gave, without any labels.

Each output is compared by its kind (`Comparison`), which options name or the network's own answers show. The score of a
sample is the mean over outputs. Legend: B batch, K classes, M rows, N samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.base.errors import UserError
from tasks.data.batches import tensors
from tasks.data.problems.classification import Classification
from tasks.data.problems.comparisons import COMPARISONS, kind_of, loss_of_output, scores_of_output
from tasks.data.problems.own import LACKS
from tasks.data.problems.record import Batch, Divergence, LearningProblem, Tallied, joined
from tasks.data.torch_later import functional, torch


class Fidelity(LearningProblem):
    """Sources have `images(indices, draws)`; the targets are a teacher's answers (`tasks.data.dataset`).

    Samples for which there is no teacher yet have targets without numbers, and any answer to them is right.
    """

    name = "fidelity"
    metric = score = "fidelity"
    judged_by = "fidelity"
    lacks = LACKS
    takes_any = is_mean = True
    reads = "images"

    def __init__(self, asked: Mapping[str, str | None] | None = None) -> None:
        self._asked = asked
        self._kinds: tuple[str, ...] | None = None

    def fitted(self, source: Any) -> Fidelity:
        """A record of its own, which finds the kinds of outputs by the first answers of the teacher."""
        return Fidelity(getattr(source, "outputs", None))

    def samples(self, source: Any, indices: np.ndarray, draws: np.ndarray | None) -> Batch:
        """Inputs, with targets without numbers."""
        return source.images(indices, draws), torch.zeros(len(indices), 0)

    def find_kinds(self, taught: Any) -> tuple[str, ...]:
        """Set the kind of each output from a batch of the teacher's answers, where options do not name it."""

        found = [kind_of(one) for one in tensors(taught)]
        asked = list((self._asked or {}).values())
        if asked and len(asked) != len(found):
            raise UserError("problem.outputs", f"{len(asked)} outputs", allowed=f"{len(found)}, as the network's")
        self._kinds = tuple(own or one for own, one in zip(asked or [None] * len(found), found, strict=True))
        return self._kinds

    @property
    def line(self) -> str:
        """How answers are compared, for the user."""
        return "; ".join(f"output {n}: {COMPARISONS[kind].text}" for n, kind in enumerate(self._kinds or (), 1))

    def output_text(self, classes: int) -> str:
        """Any output."""
        return "a tensor, several tensors, or tensors by name"

    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """Not asked: outputs may have any shape."""
        return (None,)

    def blank(self, images: int, resolution: int) -> torch.Tensor:
        """Targets without numbers."""
        return torch.zeros(images, 0)

    def loss(self, outputs: Any, target: Any, label_smoothing: float) -> torch.Tensor:
        """The mean loss of the outputs from the teacher's; 0 without a teacher."""
        return self._loss(outputs, target, _kullback_leibler)

    def _loss(self, outputs: Any, target: Any, divergence: Divergence) -> torch.Tensor:

        given, wanted = tensors(outputs), tensors(target)
        if not wanted[0].numel():
            return given[0].sum() * 0
        pairs = zip(self._of(wanted), given, wanted, strict=True)
        return torch.stack(
            [loss_of_output(kind, one.float(), own.float(), divergence) for kind, one, own in pairs]
        ).mean()

    def distillation(self, outputs: Any, taught: Any, divergence: Divergence) -> torch.Tensor:
        """The mean loss of the outputs from a teacher's, by the divergence of the training for classes and sequences."""
        return self._loss(outputs, taught, divergence)

    def decoded(self, outputs: Any, size: tuple[int, int]) -> Any:
        """The outputs themselves."""
        return outputs

    def counted(self, outputs: Any, target: Any) -> tuple[Any, ...]:
        """The summed loss, and the score of each sample (B,)."""

        given, wanted = tensors(outputs), tensors(target)
        if not wanted[0].numel():
            return 0.0, torch.ones(len(wanted[0]), dtype=torch.float64)
        pairs = zip(self._of(wanted), given, wanted, strict=True)
        scores = [scores_of_output(kind, one.float(), own.float()).cpu() for kind, one, own in pairs]
        return len(wanted[0]) * float(self.loss(outputs, target, 0.0)), torch.stack(scores).mean(0)

    def judged(self, facts: Sequence[Sequence[Any]]) -> Tallied:
        """The mean score, each score (whether the class is the same, for one output of classes), and the mean loss."""
        scores_N = joined(facts[1])
        is_right = self._kinds == ("classes",) and bool(np.isin(scores_N, (0, 1)).all())
        each_N = scores_N.astype(bool) if is_right else scores_N.astype(np.float16)
        return Tallied(float(scores_N.mean()), sum(facts[0]) / len(scores_N), each_N)

    def _of(self, taught: Sequence[torch.Tensor]) -> tuple[str, ...]:
        return self._kinds or self.find_kinds(tuple(taught))


class TrueClasses(Classification):
    """The accuracy on samples with classes of a network whose targets are another network's answers."""

    def counted(self, outputs: Any, target: torch.Tensor) -> tuple[Any, ...]:
        """As for classification. UserError: the network does not give a number for each of the classes."""
        given, *others = tensors(outputs)
        is_class = isinstance(target, torch.Tensor) and target.ndim == 1 and not target.is_floating_point()
        if not is_class or others or given.ndim != 2 or given.shape[1] <= int(target.max()):
            shapes = " and ".join(str(tuple(one.shape[1:])) for one in (given, *others))
            called = f"classes up to number {int(target.max())}" if is_class else "targets that are no classes"
            raise UserError(
                "data.labelled",
                f"{called} for outputs {shapes}",
                allowed="one output with a number for each class",
                next_step="give problem.score=FILE.py:function, a score(outputs, targets) of your own",
            )
        return super().counted(given, target.long())


def _kullback_leibler(logits_MK: torch.Tensor, taught_MK: torch.Tensor) -> torch.Tensor:
    """The mean divergence () of distributions from a teacher's."""
    return functional.kl_div(logits_MK.log_softmax(1), taught_MK.log_softmax(1), reduction="batchmean", log_target=True)


FIDELITY = Fidelity()
