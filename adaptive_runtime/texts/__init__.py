"""Texts as the numbers of their words, which networks take."""

from adaptive_runtime.texts.vocabulary import (
    PADDING,
    UNKNOWN,
    VOCABULARY_FILE,
    TextPreparation,
    Vocabulary,
    of_length,
    words_of,
)

__all__ = ["PADDING", "UNKNOWN", "VOCABULARY_FILE", "TextPreparation", "Vocabulary", "of_length", "words_of"]
