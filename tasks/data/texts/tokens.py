"""Texts in memory as numbers of words, with a vocabulary of the training split. Legend: N texts, B batch, T words, D draws."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_runtime.samples.texts import (
    LONGEST_WORD,
    MOST_BYTES,
    PADDING,
    UNKNOWN,
    VOCABULARY_FILE,
    TextPreparation,
    Vocabulary,
    words_of,
)
from tasks.base.errors import UserError
from tasks.data.drawn.numbers import uniforms
from tasks.data.settings import DataSettings
from tasks.data.source import Scaling

WORD_DROPOUT = 0.02
"""Share of the words in augmented texts that become `UNKNOWN`, so that networks learn to do without them."""
DRAW_LEVELS = 1 << 24
Tokens = NDArray[np.int64]


class TextSource:
    """All texts, as the first `settings.resolution` words of each. `scaling` has the vocabulary."""

    notes: tuple[str, ...] = ()

    def __init__(
        self, settings: DataSettings, texts: Sequence[str], labels: np.ndarray, class_names: Sequence[str]
    ) -> None:
        """labels: (N,) int64."""
        self.texts, self.labels, self.class_names = tuple(texts), labels, tuple(class_names)
        self._length = settings.resolution
        self.scaling = Scaling("none", "none")

    def learn_words(self, indices: np.ndarray, settings: DataSettings) -> None:
        """Make the vocabulary from the texts of the training split. UserError: no word occurs often enough."""
        assert settings.vocabulary is not None
        self.vocabulary = vocabulary_of([self.texts[index] for index in indices], settings)
        self.scaling = Scaling("none", "none", vocabulary=self.vocabulary)
        self._tokens_NT = self.vocabulary.tokens(self.texts, self._length)
        self.notes = told_longer(self.texts, self._length)

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since everything is in memory."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Numbers of words (B, T) int64; `draws` (B, D) decide which words are left out."""
        return augmented(self._tokens_NT[indices], draws)


def augmented(x_BT: Tokens, draws_BD: np.ndarray | None) -> torch.Tensor:
    """Numbers of words; `draws_BD` replace some with `UNKNOWN`; None: no change."""
    if draws_BD is not None:
        drawn_B = (draws_BD[:, 0] * DRAW_LEVELS).astype(np.int64)
        dropped_BT = uniforms(0, drawn_B, x_BT.shape[1]).T < WORD_DROPOUT
        x_BT = np.where(dropped_BT & (x_BT != PADDING), UNKNOWN, x_BT)
    return torch.from_numpy(x_BT)


def told_longer(texts: Sequence[str], length: int) -> tuple[str, ...]:
    """A line on the share of texts with more words, which are cut; () if none has more."""
    longer = float(np.mean([len(words_of(text)) > length for text in texts]))
    return (f"data: {longer:.1%} of the texts have more than {length} words and are cut",) if longer else ()


def text_preparation(vocabulary: Vocabulary, length: int, size: int) -> TextPreparation:
    """The preparation of texts of `length` words, of which a network takes the first `size`; all fields are set, and so
    stored.
    """
    words = {"words": vocabulary.size, "length": length, "size": (size,)}
    return TextPreparation.model_validate({"layout": "NT", "vocabulary": VOCABULARY_FILE, **words})


def vocabulary_of(texts: Sequence[str], settings: DataSettings) -> Vocabulary:
    """The most frequent words of texts, ties in alphabetical order; without words of more than `LONGEST_WORD` characters.

    UserError: no word occurs `settings.vocabulary.least_count` times.
    """
    wanted = settings.vocabulary
    assert wanted is not None
    counts = Counter(word for text in texts for word in words_of(text))
    often = ((word, count) for word, count in counts.items() if count >= wanted.least_count)
    known = sorted((-count, word) for word, count in often if len(word) <= LONGEST_WORD)
    if not known:
        raise UserError(
            f"data '{settings.path or settings.kind}'",
            f"no word is in the texts of train {wanted.least_count} times",
            next_step="lower data.vocabulary.least_count, or add texts",
        )
    found = Vocabulary(words=tuple(word for _, word in known[: wanted.most_words]))
    if (size := len(found.to_json().encode())) > MOST_BYTES:
        where = f"data '{settings.path or settings.kind}'"
        got, next_step = f"a vocabulary of {size} bytes", "lower data.vocabulary.most_words"
        raise UserError(where, got, allowed=f"at most {MOST_BYTES}, which devices read", next_step=next_step)
    return found
