"""Words of a text and their numbers in a vocabulary file. Legend: N texts, T words, L another number of words."""

import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.message_files import FileMessage
from profiling_agents.messages import Message

VOCABULARY_FILE = "vocabulary.json"
PADDING, UNKNOWN = 0, 1
"""Numbers of padding, and of words outside of the vocabulary."""
FIRST_WORD = 2
LONGEST_TEXT, MOST_WORDS, LONGEST_WORD, MOST_BYTES = 65_536, 1_000_000, 256, 32 << 20
"""Upper limits: words of a network's input, words of a vocabulary, characters of a word, bytes of a vocabulary's file."""
_WORD = re.compile(r"\w+|[^\w\s]")

Tokens = NDArray[np.int64]


def words_of(text: str) -> list[str]:
    """Case-folded words and single punctuation marks of a text, after Unicode normalisation (NFKC)."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def of_length(x_NT: Tokens, length: int) -> Tokens:
    """Texts (N, L): the first `length` words of each text, padded with `PADDING`."""
    missing = length - x_NT.shape[1]
    if missing > 0:
        return np.pad(x_NT, ((0, 0), (0, missing)), constant_values=PADDING)
    return np.ascontiguousarray(x_NT[:, :length])


class Vocabulary(FileMessage):
    """The words that a network knows, in the order of their numbers, from `FIRST_WORD` on."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))
    WHERE: ClassVar[str] = VOCABULARY_FILE
    NEXT_STEP: ClassVar[str] = "export the bundle again"
    READ_VERSION: ClassVar[int | None] = 1
    CONTENT: ClassVar[str] = "a vocabulary"

    version: int = 1
    words: Annotated[
        tuple[Annotated[str, Field(max_length=LONGEST_WORD)], ...], Field(min_length=1, max_length=MOST_WORDS)
    ]

    @classmethod
    def from_file(cls, file: Path) -> Self:
        """Read a file of at most `MOST_BYTES`. AdaptiveError in one line."""
        try:
            found = file.stat().st_size
        except OSError as error:
            raise AdaptiveError(str(file), f"cannot be read ({error.strerror})", next_step=cls.NEXT_STEP) from error
        if found > MOST_BYTES:
            raise AdaptiveError(
                str(file),
                f"has {found} bytes",
                allowed=f"at most {MOST_BYTES}",
                next_step="lower data.vocabulary.most_words",
            )
        return super().from_file(file)

    @model_validator(mode="after")
    def _is_one_to_one(self) -> Self:
        if len(set(self.words)) < len(self.words):
            raise ValueError("words: one is there twice")
        return self

    @property
    def size(self) -> int:
        """Exclusive upper bound of the numbers of words."""
        return FIRST_WORD + len(self.words)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of each word."""
        return {word: number for number, word in enumerate(self.words, FIRST_WORD)}

    def tokens(self, texts: Sequence[str], length: int) -> Tokens:
        """Tokens (N, `length`) int64: the numbers of the first words of each text, padded with `PADDING`.

        AdaptiveError: a single text, whose letters would count as texts.
        """
        if isinstance(texts, str):
            raise AdaptiveError("texts", "one text", allowed="a list of texts")
        found_NT = np.full((len(texts), length), PADDING, np.int64)
        for row_T, text in zip(found_NT, texts, strict=True):
            numbers = [self.numbers.get(word, UNKNOWN) for word in words_of(text)[:length]]
            row_T[: len(numbers)] = numbers
        return found_NT


class TextPreparation(Message):
    """Preparation of a text for the first segment: `Vocabulary.tokens` to `length` words.

    vocabulary: the name of its file, in the manifest's folder. words: exclusive upper bound of the numbers of words. size:
    number of words (T,) that the SubNet takes, the first ones of `length`. layout: samples, words.
    """

    layout: Literal["NT"] = "NT"
    vocabulary: str = VOCABULARY_FILE
    words: Annotated[int, Field(gt=FIRST_WORD, le=FIRST_WORD + MOST_WORDS)]
    length: Annotated[int, Field(ge=1, le=LONGEST_TEXT)]
    size: tuple[Annotated[int, Field(ge=1, le=LONGEST_TEXT)]]

    @property
    def line(self) -> str:
        """Description in words."""
        return f"{self.length} words, of a vocabulary of {self.words}"

    @model_validator(mode="after")
    def _is_cut(self) -> Self:
        if self.size[0] > self.length:
            raise ValueError(f"size: {self.size[0]} words of texts of {self.length}")
        return self
