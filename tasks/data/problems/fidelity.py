"""Fidelity: how closely a SubNet answers as the network that its owner gave, without any labels.

Each output is compared by its kind (`Comparison`), which options name or the network's own answers show. The score of a
sample is the mean over outputs. Legend: B batch, K classes or symbols, T steps, N samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tasks.base.errors import UserError
from tasks.data.batches import tensors
from tasks.data.problems.classification import Classification
from tasks.data.problems.own import LACKS
from tasks.data.problems.record import Batch, Divergence, LearningProblem, Tallied, joined, resized
from tasks.data.torch_later import functional, torch

BLANK = 0
"""The symbol between the symbols of a sequence (connectionist temporal classification)."""
SURE = 0.2
"""The mean share of the way from chance to certainty that the most likely class of logits reaches at least."""
CENTRED = 0.5
"""Logits: the variance of their sum is at most this share of the sum of their variances, since the gradients of a
softmax sum to 0. The values of independent quantities reach about 1.
"""
FEW = 16
"""Vectors of at most so many numbers that are no logits are values; longer vectors are embeddings."""
CLOSE = 1e-3
"""Relative distance at which sums of probabilities, and lengths of vectors, count as 1."""
LEAST = 1e-12
KIND_TEXT: Mapping[str, str] = MappingProxyType(
    {
        "classes": "the share of equal most likely classes",
        "sequence": "1 less the edit distance of the decoded sequences over their length",
        "embedding": "the cosine of the angle between both vectors",
        "values": "1 less the squared error over the variance",
    }
)


def kind_of(taught: torch.Tensor) -> str:
    """The kind of an output by a teacher's answers, whose first axis is B."""
    taught = taught.float()
    if taught.ndim == 2 and taught.shape[1] > 1:
        lengths_B = taught.norm(dim=1)
        if bool((lengths_B - 1).abs().max() < CLOSE):
            return "embedding"
        if _is_of_probabilities(taught) or _is_of_logits(taught):
            return "classes"
        return "values" if taught.shape[1] <= FEW else "embedding"
    if taught.ndim == 4 and taught.shape[1] > 1 and _is_of_probabilities(taught):
        return "classes"
    return "sequence" if taught.ndim == 3 and _is_of_probabilities(taught.movedim(2, 1)) else "values"


def _is_of_probabilities(taught: torch.Tensor) -> bool:
    """Whether numbers along axis 1 are probabilities."""
    return bool((taught >= 0).all()) and bool((taught.sum(1) - 1).abs().max() < CLOSE)


def _is_of_logits(taught_BK: torch.Tensor) -> bool:
    """Whether vectors look like the logits of a trained softmax: centred, and sure of a class."""
    if taught_BK.shape[0] < 2 or float(taught_BK.sum(1).var()) > CENTRED * float(taught_BK.var(0).sum()):
        return False
    chance = 1 / taught_BK.shape[1]
    return (float(taught_BK.softmax(1).amax(1).mean()) - chance) / (1 - chance) >= SURE


def _rows(output: torch.Tensor, kind: str) -> torch.Tensor:
    """The distributions of an output as rows (M, K)."""
    return output.flatten(0, -2) if kind == "sequence" else output.movedim(1, -1).flatten(0, -2)


def loss_of_output(kind: str, output: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
    """The mean loss () of an output from a teacher's. Maps of another size are compared at the output's size."""
    if output.ndim == 4:
        taught = resized(taught, output)
    if kind in ("classes", "sequence"):
        rows = _rows(output, kind), _rows(taught, kind)
        logits = [one.clamp_min(LEAST).log() for one in rows] if _is_of_probabilities(rows[1]) else rows
        return divergence(*logits)
    if kind == "embedding":
        return (1 - functional.cosine_similarity(output, taught, dim=1)).mean()
    return functional.mse_loss(output, taught) / taught.var(correction=0).clamp_min(LEAST)


def scores_of_output(kind: str, output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """The score of each sample (B,), in [0, 1]."""
    if output.ndim == 4 and output.shape[-2:] != taught.shape[-2:]:
        output = functional.interpolate(output, list(taught.shape[-2:]), mode="bilinear", align_corners=False)
    if kind == "classes":
        same = (output.argmax(1) == taught.argmax(1)).double()
        return same.reshape(len(same), -1).mean(1)
    if kind == "sequence":
        pairs = zip(_symbols(output), _symbols(taught), strict=True)
        return torch.tensor([1 - min(1.0, edit_distance(*pair) / max(1, len(pair[1]))) for pair in pairs]).double()
    if kind == "embedding":
        return functional.cosine_similarity(output, taught, dim=1).clamp_min(0).double()
    error_B = (output - taught).reshape(len(taught), -1).double().square().mean(1)
    flat = taught.reshape(len(taught), -1).double()
    return (1 - error_B / _spread(flat)).clamp(0, 1)


def _spread(taught_BF: torch.Tensor) -> torch.Tensor:
    """The variance of each sample's values; of the whole batch if samples have few values."""
    own_B = taught_BF.var(1, correction=0) if taught_BF.shape[1] > FEW else torch.zeros(len(taught_BF)).double()
    whole = taught_BF.var(correction=0).clamp_min(LEAST)
    return torch.where(own_B > CLOSE * whole.cpu().to(own_B), own_B, whole.to(own_B)).to(taught_BF.device)


def _symbols(output_BTK: torch.Tensor) -> list[list[int]]:
    """The decoded sequence of each sample: the most likely symbols without repeats and blanks."""
    return [
        [symbol for place, symbol in enumerate(own) if symbol != BLANK and (not place or symbol != own[place - 1])]
        for own in output_BTK.argmax(2).tolist()
    ]


def edit_distance(first: Sequence[int], second: Sequence[int]) -> int:
    """The least number of insertions, deletions and replacements between two sequences (Levenshtein 1966)."""
    row = list(range(len(second) + 1))
    for number, one in enumerate(first, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(second, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (one != other))
    return row[-1]


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
        return "; ".join(f"output {n}: {KIND_TEXT[kind]}" for n, kind in enumerate(self._kinds or (), 1))

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
