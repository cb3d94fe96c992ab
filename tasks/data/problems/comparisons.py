"""How a network's answers are compared with another network's: kinds of outputs, their losses and scores.

Legend: B batch, K classes or symbols, T steps, P positions, M rows, N boxes, F values of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from adaptive_runtime.samples.boxes import Detections, suppressed
from tasks.data.problems.detection import judged
from tasks.data.problems.record import Divergence, enlarged, resized
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
LEAST = 1e-30
"""The smallest probability in a loss: gradients of probabilities hold until float32 rounds them to 0."""
EDGE = 1e-7
"""Distance from 0 and 1 of the probabilities of single events in a loss."""
TINY = 1e-12
"""The smallest variance."""
SIDES = 4
"""The first rows of boxes: centre across and down, width, height."""
LEAST_SCORE, MOST_IOU, SAME_IOU, MOST_BOXES = 0.25, 0.45, 0.5, 100
"""Boxes: the least score, overlaps of two boxes of one object and of equal boxes, and the largest number in a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A kind of outputs. text: the score, for users. loss: (), from a teacher's output. scores: (B,), in [0, 1]."""

    text: str
    loss: Callable[[torch.Tensor, torch.Tensor, Divergence], torch.Tensor]
    scores: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


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
    if taught.ndim == 3 and _is_of_boxes(taught):
        return "boxes"
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


def _is_of_boxes(taught_BCP: torch.Tensor) -> bool:
    """Whether a position has a box in pixels (centre, width, height) and a probability of each class, as heads of YOLO have."""
    if not SIDES < taught_BCP.shape[1] < taught_BCP.shape[2]:
        return False
    sizes_B2P, scores_BKP = taught_BCP[:, 2:SIDES], taught_BCP[:, SIDES:]
    return bool((sizes_B2P >= 0).all()) and float(sizes_B2P.amax()) > 2 and _is_within_1(scores_BKP)


def _is_within_1(values: torch.Tensor) -> bool:
    return bool((values >= 0).all()) and bool((values <= 1).all())


def _of_distributions(
    rows_of: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor, Divergence], torch.Tensor]:
    """The divergence of distributions, which `rows_of` gives as rows (M, K) of logits or probabilities."""

    def loss(output: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
        rows = rows_of(output), rows_of(taught)
        return divergence(*([one.clamp_min(LEAST).log() for one in rows] if _is_of_probabilities(rows[1]) else rows))

    return loss


def _events(output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """The divergence () of probabilities of single events, over the divergence of their mean.
    Gradients reach a Sigmoid below, where those of a squared error vanish.
    """

    def divergence(found: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy(found.clamp(EDGE, 1 - EDGE), taught) - least

    least = functional.binary_cross_entropy(taught.clamp(EDGE, 1 - EDGE), taught)
    return divergence(output) / divergence(taught.mean().expand_as(taught)).clamp_min(EDGE)


def _values_loss(output: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
    """The error over the variance, of values or of probabilities of single events, which a Sigmoid leaves above 0."""
    if bool((taught > 0).all()) and _is_within_1(taught) and _is_within_1(output):
        return _events(output, taught)
    return functional.mse_loss(output, taught) / taught.var(correction=0).clamp_min(TINY)


def _boxes_loss(output_BCP: torch.Tensor, taught_BCP: torch.Tensor, divergence: Divergence) -> torch.Tensor:
    """The divergence of the classes, and the error of boxes over their sizes, by the teacher's scores."""
    scores_BP = taught_BCP[:, SIDES:].amax(1)
    sizes_BP = taught_BCP[:, 2:SIDES].sum(1).clamp_min(1)
    errors_BP = (output_BCP[:, :SIDES] - taught_BCP[:, :SIDES]).abs().sum(1) / sizes_BP
    boxes = (scores_BP * errors_BP).sum() / scores_BP.sum().clamp_min(EDGE)
    return boxes + _events(output_BCP[:, SIDES:].clamp(0, 1), taught_BCP[:, SIDES:])


def _class_scores(output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    same = (output.argmax(1) == taught.argmax(1)).double()
    return same.reshape(len(same), -1).mean(1)


def _sequence_scores(output_BTK: torch.Tensor, taught_BTK: torch.Tensor) -> torch.Tensor:
    pairs = zip(_symbols(output_BTK), _symbols(taught_BTK), strict=True)
    return torch.tensor([1 - min(1.0, edit_distance(*pair) / max(1, len(pair[1]))) for pair in pairs]).double()


def _values_scores(output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    error_B = (output - taught).reshape(len(taught), -1).double().square().mean(1)
    flat = taught.reshape(len(taught), -1).double()
    return (1 - error_B / _spread(flat)).clamp(0, 1)


def _spread(taught_BF: torch.Tensor) -> torch.Tensor:
    """The variance of each sample's values; of the whole batch if samples have few values."""
    own_B = taught_BF.var(1, correction=0) if taught_BF.shape[1] > FEW else torch.zeros(len(taught_BF)).double()
    whole = taught_BF.var(correction=0).clamp_min(TINY)
    return torch.where(own_B > CLOSE * whole.cpu().to(own_B), own_B, whole.to(own_B)).to(taught_BF.device)


def _box_scores(output_BCP: torch.Tensor, taught_BCP: torch.Tensor) -> torch.Tensor:
    """2 x equal boxes / boxes of both; 1 without boxes."""
    found = []
    for own, wanted in zip(_detected(output_BCP), _detected(taught_BCP), strict=True):
        both = len(own.scores_N) + len(wanted.scores_N)
        equal = judged(own, wanted.classes_N, wanted.boxes_N4, (SAME_IOU,)).right_TD.sum()
        found.append(2 * float(equal) / both if both else 1.0)
    return torch.tensor(found, dtype=torch.float64)


def _detected(output_BCP: torch.Tensor) -> list[Detections]:
    """The boxes of each sample that are likely, and no copies of better boxes."""
    found = []
    for columns_PC in output_BCP.detach().cpu().movedim(1, 2).numpy():
        likely_NC = columns_PC[columns_PC[:, SIDES:].max(1) >= LEAST_SCORE]
        scores_N, classes_N = likely_NC[:, SIDES:].max(1), likely_NC[:, SIDES:].argmax(1)
        middles_N2, halves_N2 = likely_NC[:, :2], likely_NC[:, 2:SIDES] / 2
        boxes_N4 = np.concatenate([middles_N2 - halves_N2, middles_N2 + halves_N2], 1)
        kept = suppressed(boxes_N4, scores_N, classes_N, MOST_IOU, MOST_BOXES)
        found.append(Detections(boxes_N4=boxes_N4[kept], scores_N=scores_N[kept], classes_N=classes_N[kept]))
    return found


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


COMPARISONS: Mapping[str, Comparison] = MappingProxyType(
    {
        "classes": Comparison(
            text="the share of equal most likely classes",
            loss=_of_distributions(lambda output: output.movedim(1, -1).flatten(0, -2)),
            scores=_class_scores,
        ),
        "sequence": Comparison(
            text="1 less the edit distance of the decoded sequences over their length",
            loss=_of_distributions(lambda output: output.flatten(0, -2)),
            scores=_sequence_scores,
        ),
        "embedding": Comparison(
            text="the cosine of the angle between both vectors",
            loss=lambda output, taught, _: (1 - functional.cosine_similarity(output, taught, dim=1)).mean(),
            scores=lambda output, taught: functional.cosine_similarity(output, taught, dim=1).clamp_min(0).double(),
        ),
        "boxes": Comparison(
            text="the share of equal boxes, of one class and with an overlap of half",
            loss=_boxes_loss,
            scores=_box_scores,
        ),
        "values": Comparison(
            text="1 less the squared error over the variance", loss=_values_loss, scores=_values_scores
        ),
    }
)


def loss_of_output(kind: str, output: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
    """The mean loss () of an output from a teacher's. Maps of another size are compared at the output's size."""
    return COMPARISONS[kind].loss(output, resized(taught, output) if output.ndim == 4 else taught, divergence)


def scores_of_output(kind: str, output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """The score of each sample (B,), in [0, 1]."""
    return COMPARISONS[kind].scores(enlarged(output, taught.shape[-2:]) if output.ndim == 4 else output, taught)
