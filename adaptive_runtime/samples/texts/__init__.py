"""Conversion of texts to the numbers of their words, the inputs of networks."""

from adaptive_runtime.samples.texts.vocabulary import (
    LONGEST_TEXT,
    LONGEST_WORD,
    MOST_BYTES,
    MOST_WORDS,
    PADDING,
    UNKNOWN,
    VOCABULARY_FILE,
    TextPreparation,
    Vocabulary,
    of_length,
    words_of,
)

__all__ = [
    "LONGEST_TEXT",
    "LONGEST_WORD",
    "MOST_BYTES",
    "MOST_WORDS",
    "PADDING",
    "UNKNOWN",
    "VOCABULARY_FILE",
    "TextPreparation",
    "Vocabulary",
    "of_length",
    "words_of",
]
