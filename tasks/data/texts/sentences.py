"""Sentences of the grammar, made when the data are opened: each follows from the seed and its number; classes take turns."""

import numpy as np

from tasks.base.errors import UserError
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits
from tasks.data.texts.grammar import CLASSES, sentence
from tasks.data.texts.tokens import TextSource


def open_sentences(settings: DataSettings) -> tuple[TextSource, dict[str, np.ndarray]]:
    """The source and its splits, by shares and stratified. UserError: too few sentences, or too many classes."""
    if settings.classes is not None and settings.classes > len(CLASSES):
        got = f"there are {len(CLASSES)} kinds of {settings.kind}, not {settings.classes}"
        raise UserError("data.classes", got, next_step="ask for fewer")
    names = CLASSES[: settings.classes]
    labels = np.arange(settings.images, dtype=np.int64) % len(names)
    texts = [
        sentence(names[label], np.random.default_rng((settings.seed, number))) for number, label in enumerate(labels)
    ]
    source = TextSource(settings, texts, labels, names)
    splits = complete_splits({"train": np.arange(settings.images)}, source, settings)
    source.learn_words(splits["train"], settings)
    return source, splits
