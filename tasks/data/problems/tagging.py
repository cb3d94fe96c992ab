"""Tagging: a class of each word of a text.

Legend: B batch, T words of the data's length, t words that a SubNet reads, K classes, N texts.

Raw outputs (B, t, K) are logits of the first t words. SubNets of smaller lengths leave further words without an answer,
which counts as a wrong answer; all SubNets are therefore judged by the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.data.problems.record import Divergence, LearningProblem, Tallied, joined
from tasks.data.torch_later import functional, torch

IGNORED = -1
"""The class of padding: no loss and no score counts it."""
NO_ANSWER = -2
"""The answer for words that a SubNet does not read."""


class Tagging(LearningProblem):
    """Sources have `tagged(indices, draws)`: numbers of words (B, T), and the class of each (B, T) int64, or `IGNORED`."""

    name = "tagging"
    metric = score = "word accuracy"
    judged_by = "word_accuracy"
    reads = "tagged"

    def output_text(self, classes: int) -> str:
        """Description of the output: one number for each class at each word."""
        return f"one tensor (B, T, {classes}): a number for each class of the data at each word"

    def output_shape(self, classes: int, resolution: int | None) -> tuple[int | None, ...]:
        """(B, T, K)."""
        return None, resolution, classes

    def blank(self, images: int, resolution: int) -> torch.Tensor:
        """Class 0 for each word."""
        return torch.zeros(images, resolution, dtype=torch.int64)

    def loss(self, outputs: torch.Tensor, target: torch.Tensor, label_smoothing: float) -> torch.Tensor:
        """Mean cross-entropy of the words that the SubNet reads."""
        return _cross_entropy(outputs, target, label_smoothing)

    def distillation(self, outputs: torch.Tensor, taught: torch.Tensor, divergence: Divergence) -> torch.Tensor:
        """Divergence from the teacher's distribution at each word that both read."""
        return divergence(outputs.flatten(0, 1), taught[:, : outputs.shape[1]].flatten(0, 1))

    def decoded(self, outputs: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """The class of each word (B, T), `NO_ANSWER` after the words that are read. size: its last number is T."""
        return _answers(outputs, size[-1])

    def counted(self, outputs: torch.Tensor, target: torch.Tensor) -> tuple[Any, ...]:
        """The sum of the texts' mean cross-entropies, and the numbers of words and of right answers of each text."""
        right = (_answers(outputs, target.shape[1]) == target).sum(1).cpu()
        return len(target) * float(_cross_entropy(outputs, target, 0.0)), (target != IGNORED).sum(1).cpu(), right

    def judged(self, facts: Sequence[Sequence[Any]]) -> Tallied:
        """The share of right words, over all texts and for each text."""
        words_N, right_N = joined(facts[1]), joined(facts[2])
        each_N = (right_N / np.maximum(words_N, 1)).astype(np.float16)
        return Tallied(float(right_N.sum() / words_N.sum()), sum(facts[0]) / len(words_N), each_N)


TAGGING = Tagging()


def _answers(outputs_BtK: torch.Tensor, words: int) -> torch.Tensor:
    """(B, T)."""
    answers_Bt = outputs_BtK.argmax(2)
    return functional.pad(answers_Bt, (0, words - answers_Bt.shape[1]), value=NO_ANSWER)


def _cross_entropy(outputs_BtK: torch.Tensor, y_BT: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    y_Bt = y_BT[:, : outputs_BtK.shape[1]]
    return functional.cross_entropy(
        outputs_BtK.flatten(0, 1), y_Bt.flatten(), ignore_index=IGNORED, label_smoothing=label_smoothing
    )
