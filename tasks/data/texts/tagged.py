"""Texts with a class for each word: sentences of the grammar, and files with a text and its classes in each line.

Legend: N texts, B batch, T words.
"""

from collections.abc import Sequence

import numpy as np
import torch

from tasks.base.errors import UserError
from tasks.data.problems.tagging import IGNORED
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits, first_of
from tasks.data.texts.grammar import CLASSES, TAGS, tagged_sentence
from tasks.data.texts.jsonl import tagged_rows
from tasks.data.texts.tokens import TextSource, augmented


class TaggedTexts(TextSource):
    """Texts whose words have classes, named by `class_names`; the base class holds the texts."""

    def __init__(
        self,
        settings: DataSettings,
        texts: Sequence[str],
        labels: np.ndarray,
        tags: Sequence[Sequence[str]],
        names: Sequence[str],
    ) -> None:
        """labels (N,): by which texts are stratified. tags: for each word of each text."""
        super().__init__(settings, texts, labels, names)
        numbers = {name: number for number, name in enumerate(names)}
        self.tags_NT = np.full((len(texts), settings.resolution), IGNORED, np.int64)
        for row_T, own in zip(self.tags_NT, tags, strict=True):
            found = [numbers[tag] for tag in own[: settings.resolution]]
            row_T[: len(found)] = found

    def tagged(self, indices: np.ndarray, draws: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of words and their classes (B, T) int64; `draws` (B, D) decide which words are left out."""
        return augmented(self._tokens_NT[indices], draws), torch.from_numpy(self.tags_NT[indices])


def open_tagged_sentences(settings: DataSettings) -> tuple[TaggedTexts, dict[str, np.ndarray]]:
    """The source and its splits, by shares; kinds of sentences take turns. UserError: too few sentences."""
    labels = np.arange(settings.images, dtype=np.int64) % len(CLASSES)
    rows = [
        tagged_sentence(CLASSES[label], np.random.default_rng((settings.seed, number)))
        for number, label in enumerate(labels)
    ]
    texts, tags = [" ".join(words) for words, _ in rows], [own for _, own in rows]
    return _opened(settings, texts, labels, tags, TAGS, {"train": np.arange(settings.images)})


def open_tagged_jsonl(settings: DataSettings) -> tuple[TaggedTexts, dict[str, np.ndarray]]:
    """The source and its splits. UserError: no files, too large ones, or a broken line, with its file and number."""
    rows, splits = tagged_rows(settings)
    tags = [own for _, own in rows]
    names = sorted({tag for own in tags for tag in own})
    if len(names) < 2:
        raise UserError(f"data folder '{settings.path}'", f"{len(names)} class of words", allowed="two or more")
    return _opened(settings, [text for text, _ in rows], np.zeros(len(rows), np.int64), tags, names, splits)


def _opened(
    settings: DataSettings,
    texts: Sequence[str],
    labels: np.ndarray,
    tags: Sequence[Sequence[str]],
    names: Sequence[str],
    splits: dict[str, np.ndarray],
) -> tuple[TaggedTexts, dict[str, np.ndarray]]:
    source = TaggedTexts(settings, texts, labels, tags, names)
    splits = complete_splits(splits, source, settings)
    for name, indices in splits.items():
        own = source.tags_NT[indices]
        counts = np.bincount(own[own != IGNORED], minlength=len(names))
        if missing := [names[number] for number in np.flatnonzero(counts == 0).tolist()]:
            got = f"no word of {len(missing)} of {len(names)} classes in {name}: {first_of(missing)}"
            raise UserError(f"data '{settings.path or settings.kind}'", got, next_step="add texts with each class")
    source.learn_words(splits["train"], settings)
    return source, splits
