"""Texts with one class each, or one class per word, as numbers of words: sentences of a grammar, and JSON lines.

The grammar is context-free and gives short opinions in six classes, with noise; a rule is one way to write a symbol.
The class is a property of the sentence. Each clause is good or bad by its adjective and its negation. The main one of
two clauses counts more, and connectives mark it: "although A, B" and "B although A" both mean B. Therefore neither a
single word nor the set of words determines the class. Sentences are made when the data are opened: each follows from
the seed and its number; classes take turns.

Files have a JSON object per line, a text and its class, or the class of each word: PATH/*.jsonl, or in folders train,
val and test. Texts are in memory as numbers of words, with a vocabulary of the training split.

Legend: N texts, B batch, T words, D draws.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from adaptive_runtime.samples.inputs import (
    LONGEST_WORD,
    MOST_BYTES,
    PADDING,
    UNKNOWN,
    VOCABULARY_FILE,
    TextPreparation,
    Tokens,
    Vocabulary,
    words_of,
)
from tasks.base.errors import UserError, shortened
from tasks.data.drawn.variation import uniforms
from tasks.data.problems.tagging import IGNORED
from tasks.data.settings import DataSettings, TextFields
from tasks.data.source import (
    UNSCALED,
    Source,
    Splits,
    check_labels,
    files_of_splits,
    first_classes,
    first_of,
    numbered,
    unreadable,
)

RULES: dict[str, tuple[str, ...]] = {
    "PRAISE": ("OPENING GOOD AND GOOD END", "OPENING GOOD , BECAUSE GOOD END"),
    "COMPLAINT": ("OPENING BAD AND BAD END", "OPENING BAD , BECAUSE BAD END"),
    "RELIEF": ("OPENING BAD BUT GOOD END", "ALTHOUGH BAD , GOOD END", "OPENING GOOD ALTHOUGH BAD END"),
    "REGRET": ("OPENING GOOD BUT BAD END", "ALTHOUGH GOOD , BAD END", "OPENING BAD ALTHOUGH GOOD END"),
    "WISH": ("OPENING IF_ONLY WISHED END", "IF_ONLY WISHED , because BAD END", "OPENING BAD AND IF_ONLY WISHED END"),
    "DOUBT": ("OPENING WHO_KNOWS GOOD END", "OPENING WHO_KNOWS BAD END", "WHO_KNOWS GOOD or BAD END"),
    "GOOD": ("THING IS DEGREE PLEASANT", "THING IS DEGREE PLEASANT", "THING IS NOT UNPLEASANT"),
    "BAD": ("THING IS DEGREE UNPLEASANT", "THING IS DEGREE UNPLEASANT", "THING IS NOT PLEASANT"),
    "WISHED": ("THING were DEGREE PLEASANT", "THING were NOT UNPLEASANT"),
    "OPENING": (
        "",
        "",
        "honestly ,",
        "DAY ,",
        "when we came DAY ,",
        "no wonder ,",
        "as i know now ,",
        "if you ask me ,",
    ),
    "END": (".", ".", "!", "DAY .", ", i think .", "for us .", ", as you know ."),
    "DAY": ("last week", "on monday", "on friday", "this morning", "in the evening", "twice"),
    "AND": ("and", ", and also", "and besides"),
    "BECAUSE": ("because", "since", "as"),
    "BUT": ("but", ", but", ", yet", "and still"),
    "ALTHOUGH": ("although", "though", "even though", "while"),
    "IF_ONLY": ("if only", "i wish", "we hoped that", "it would help if"),
    "WHO_KNOWS": ("i wonder if", "nobody knows whether", "it is not clear whether", "i cannot say if"),
    "THING": ("the NOUN", "the NOUN", "their NOUN", "the NOUN of the PLACE", "the NOUN in the PLACE"),
    "NOUN": ("soup", "bread", "coffee", "bed", "shower", "view", "light", "music", "waiter", "price", "parking", "key"),
    "PLACE": ("restaurant", "hotel", "bar", "lobby", "first room", "other room", "garden", "station"),
    "IS": ("is", "was", "seems", "seemed"),
    "DEGREE": ("", "very", "really", "quite", "rather", "so"),
    "NOT": ("not", "never", "hardly", "not at all", "by no means"),
    "PLEASANT": ("good", "great", "warm", "clean", "quiet", "friendly", "fresh", "cheap", "bright", "nice"),
    "UNPLEASANT": ("bad", "awful", "cold", "dirty", "loud", "rude", "stale", "expensive", "dark", "poor"),
}
"""Symbol -> its rules; everything else is a word. Classes are symbols, too."""
CLASSES = ("praise", "complaint", "relief", "regret", "wish", "doubt")
TAGS = ("other", "thing", "place", "time", "good", "bad", "wished")
"""Classes of words. An adjective is good, bad or wished like its clause: "pleasant" in "not pleasant" is bad."""
_TAG_OF = {"NOUN": "thing", "PLACE": "place", "DAY": "time"}
_CLAUSES = {"GOOD": "good", "BAD": "bad", "WISHED": "wished"}
LOST, MISSPELT = 0.01, 0.02
"""Share of the words that are left out, and share that lack a letter."""


def tagged_sentence(name: str, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """The words of a sentence of a class with its noise, and the tag of each."""
    noisy = [(_noisy(word, rng), tag) for word, tag in _derived(name.upper(), rng)]
    return [word for word, _ in noisy if word], [tag for word, tag in noisy if word]


def _derived(symbol: str, rng: np.random.Generator, clause: str = "", tag: str = TAGS[0]) -> list[tuple[str, str]]:
    """Words with their tags. clause: the tag of adjectives here. tag: of the parent symbol."""
    if symbol not in RULES:
        return [(symbol, tag)]
    clause = _CLAUSES.get(symbol, clause)
    tag = clause if symbol in ("PLEASANT", "UNPLEASANT") else _TAG_OF.get(symbol, tag)
    rules = RULES[symbol]
    return [word for part in rules[rng.integers(len(rules))].split() for word in _derived(part, rng, clause, tag)]


def _noisy(word: str, rng: np.random.Generator) -> str:
    drawn = rng.random()
    if drawn < LOST:
        return ""
    if drawn < LOST + MISSPELT and len(word) > 2:
        place = rng.integers(len(word))
        return word[:place] + word[place + 1 :]
    return word


WORD_DROPOUT = 0.02
"""Share of the words in augmented texts that become `UNKNOWN`, so that networks learn to do without them."""
DRAW_LEVELS = 1 << 24


class TextSource(Source):
    """All texts, as the first `settings.resolution` words of each. Once `splits` is called, `scaling` has the vocabulary."""

    def __init__(
        self, settings: DataSettings, texts: Sequence[str], labels: np.ndarray, class_names: Sequence[str]
    ) -> None:
        """labels: (N,) int64."""
        self.texts, self.labels, self.class_names = tuple(texts), labels, tuple(class_names)
        self._length = settings.resolution

    def splits(self, settings: DataSettings) -> Splits:
        """All splits; the vocabulary is of the training texts. UserError: no word occurs often enough."""
        splits = super().splits(settings)
        self.vocabulary = vocabulary_of([self.texts[index] for index in splits["train"]], settings)
        self.scaling = UNSCALED._replace(vocabulary=self.vocabulary)
        self._tokens_NT = self.vocabulary.tokens(self.texts, self._length)
        self.notes = longer_texts(self.texts, self._length)
        return splits

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


def longer_texts(texts: Sequence[str], length: int) -> tuple[str, ...]:
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


Read = TypeVar("Read")
SUFFIX = ".jsonl"
MOST_FILE_BYTES = 2 << 30
"""Limit of all files together: texts are held in memory."""
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""A lone surrogate: valid in JSON, but impossible in a UTF-8 file."""


class _Row(NamedTuple):
    text: str
    label: str | int


Tagged = tuple[str, tuple[str, ...]]
"""A text, and the class of each of its words."""


def labelled_lines(settings: DataSettings) -> TextSource:
    """Texts of files. UserError: no files, too large ones, or a broken line, with its file and number."""
    rows, splits = _read(settings, _row, "text or whole number")
    names = _names({row.label for row in rows})
    if len(names) < 2:
        raise UserError(f"data folder '{settings.path}'", f"{len(names)} class of texts", allowed="two or more")
    numbers = {name: number for number, name in enumerate(names)}
    labels = np.array([numbers[str(row.label)] for row in rows], dtype=np.int64)
    source = TextSource(settings, [row.text for row in rows], labels, names)
    source.given = splits
    check_labels(labels, names, splits, settings)
    return source


def _read(settings: DataSettings, read: Callable[[str, TextFields], Read], allowed: str) -> tuple[list[Read], Splits]:
    """All lines, and the lines of each split that has its own folder. allowed: the form of a text's label."""
    fields = settings.fields
    assert fields is not None
    files = files_of_splits(settings, (SUFFIX,), "files of texts")
    total = sum(_bytes(file) for own in files.values() for file in own)
    if total > MOST_FILE_BYTES:
        got, most = f"{total / 2**30:.1f} GiB of texts", f"{MOST_FILE_BYTES >> 30} GiB"
        raise UserError(f"data folder '{settings.path}'", got, allowed=most, next_step="give fewer")
    return numbered(
        {split: [row for file in own for row in _rows(file, fields, read, allowed)] for split, own in files.items()}
    )


def _names(labels: set[str | int]) -> list[str]:
    """Names of the classes: sorted as whole numbers if all labels are whole numbers, else alphabetically."""
    whole = sorted(label for label in labels if isinstance(label, int))
    return list(map(str, whole)) if len(whole) == len(labels) else sorted(set(map(str, labels)))


def _bytes(file: Path) -> int:
    """Bytes of a file. UserError: it cannot be read, e.g. a broken link."""
    try:
        return file.stat().st_size
    except OSError as error:
        raise unreadable(file, error) from error


def _rows(file: Path, fields: TextFields, read: Callable[[str, TextFields], Read], allowed: str) -> Iterator[Read]:
    """The lines of a file; empty lines are counted but skipped. UserError: a line is invalid.

    allowed: the form of a text's label.
    """
    number = 0
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _checked(file, number, line, fields, read, allowed)
    except OSError as error:
        raise UserError(f"texts '{file}'", f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        got = f"not UTF-8 after row {number}"
        raise UserError(f"texts '{file}'", got, next_step="write the file in UTF-8") from error
    if number == 0:
        raise UserError(f"texts '{file}'", "has no rows", next_step="remove it")


def _checked(
    file: Path, number: int, line: str, fields: TextFields, read: Callable[[str, TextFields], Read], label: str
) -> Read:
    try:
        return read(line, fields)
    except _BrokenLine as error:
        allowed = f'{{"{fields.text}": text, "{fields.label}": {label}}}'
        got = f"row {number}: {error}"
        raise UserError(f"texts '{file}'", got, allowed=allowed, next_step="mend or remove it") from error


class _BrokenLine(Exception):
    """The fault of a line."""


def _tagged_row(line: str, fields: TextFields) -> Tagged:
    text, tags = _fields(line, fields)
    count = len(words_of(text))
    if not isinstance(tags, list) or not all(isinstance(tag, str) and tag for tag in tags):
        raise _BrokenLine(f"field '{fields.label}' is no list of names")
    if len(tags) != count:
        raise _BrokenLine(f"field '{fields.label}' has {len(tags)} names for {count} words")
    _check_characters((fields.text, text), *((fields.label, tag) for tag in tags))
    return text, tuple(tags)


def _row(line: str, fields: TextFields) -> _Row:
    text, label = _fields(line, fields)
    if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
        raise _BrokenLine(f"field '{fields.label}' is {'empty' if label == '' else type(label).__name__}")
    _check_characters((fields.text, text), (fields.label, label))
    return _Row(text, label)


def _check_characters(*values: tuple[str, str | int]) -> None:
    for name, value in values:
        if isinstance(value, str) and not value.isascii() and _HALF_CHARACTER.search(value):
            raise _BrokenLine(f"field '{name}' has half a character (a lone surrogate)")


def _fields(line: str, fields: TextFields) -> tuple[str, Any]:
    """The text of a line, which has words, and its unchecked label."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BrokenLine(f"no JSON ({shortened(error, 80)})") from error
    if not isinstance(content, dict):
        raise _BrokenLine(f"{type(content).__name__}, not an object")
    if missing := [name for name in (fields.text, fields.label) if name not in content]:
        raise _BrokenLine(f"no field '{missing[0]}'")
    text, label = content[fields.text], content[fields.label]
    if not isinstance(text, str):
        raise _BrokenLine(f"field '{fields.text}' is {type(text).__name__}")
    if not words_of(text):
        raise _BrokenLine(f"field '{fields.text}' has no words")
    return text, label


def sentences(settings: DataSettings) -> TextSource:
    """Sentences of the grammar; the classes take turns. UserError: too many classes."""
    names = first_classes(CLASSES, settings.classes, f"kinds of {settings.kind}")
    rows, labels = _derived_texts(settings, names)
    return TextSource(settings, [" ".join(words) for words, _ in rows], labels, names)


def _derived_texts(
    settings: DataSettings, names: Sequence[str]
) -> tuple[list[tuple[list[str], list[str]]], np.ndarray]:
    """The words and tags of `settings.images` sentences, and their classes, which take turns."""
    rows = [
        tagged_sentence(names[number % len(names)], np.random.default_rng((settings.seed, number)))
        for number in range(settings.images)
    ]
    return rows, np.arange(settings.images, dtype=np.int64) % len(names)


class TaggedTexts(TextSource):
    """Texts whose words have classes, named by `class_names`; the base class holds the texts."""

    has_classes = False

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
        return self.images(indices, draws), torch.from_numpy(self.tags_NT[indices])

    def splits(self, settings: DataSettings) -> Splits:
        """All splits. UserError: a split has no word of a class."""
        splits, names = super().splits(settings), self.class_names
        for name, indices in splits.items():
            own = self.tags_NT[indices]
            counts = np.bincount(own[own != IGNORED], minlength=len(names))
            if missing := [names[number] for number in np.flatnonzero(counts == 0).tolist()]:
                got = f"no word of {len(missing)} of {len(names)} classes in {name}: {first_of(missing)}"
                raise UserError(f"data '{settings.path or settings.kind}'", got, next_step="add texts with each class")
        return splits


def tagged_sentences(settings: DataSettings) -> TaggedTexts:
    """Sentences of the grammar with the class of each word."""
    rows, labels = _derived_texts(settings, CLASSES)
    return TaggedTexts(settings, [" ".join(words) for words, _ in rows], labels, [own for _, own in rows], TAGS)


def tagged_lines(settings: DataSettings) -> TaggedTexts:
    """Texts of files with the class of each word. UserError: as `labelled_lines`."""
    rows, splits = _read(settings, _tagged_row, "one name for each word")
    tags = [own for _, own in rows]
    names = sorted({tag for own in tags for tag in own})
    if len(names) < 2:
        raise UserError(f"data folder '{settings.path}'", f"{len(names)} class of words", allowed="two or more")
    source = TaggedTexts(settings, [text for text, _ in rows], np.zeros(len(rows), np.int64), tags, names)
    source.given = splits
    return source
