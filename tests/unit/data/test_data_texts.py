"""Texts: sentences that follow from seed and number, a vocabulary of the training split, and broken lines told by number."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.samples.inputs import LONGEST_WORD, PADDING, UNKNOWN, Vocabulary, of_length, words_of
from tasks.base.errors import UserError
from tasks.data import DataSettings, load, load_splits, open_source
from tasks.data.dataset import DataDescription, describe
from tasks.data.images import resize
from tasks.data.texts import CLASSES, RULES, WORD_DROPOUT, TextSource

Write = Callable[[Path], None]
ROWS = [(f"this {word} is number {number}", word) for number in range(12) for word in ("cat", "dog")]


def sentences(**options: object) -> TextSource:
    source, _ = open_source(DataSettings.model_validate({"kind": "texts", "images": 600, **options}))
    assert isinstance(source, TextSource)
    return source


def jsonl(path: Path, **options: object) -> DataSettings:
    return DataSettings.model_validate({"kind": "jsonl", "path": path, "resolution": 8, **options})


def write_rows(
    file: Path, rows: Sequence[tuple[object, object]] = ROWS, names: tuple[str, str] = ("text", "label")
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows), encoding="utf-8")


def test_words_have_no_case_and_punctuation_marks_are_words() -> None:
    assert words_of("Ça va, Straße?  It's 5\u00a0km.") == words_of("ça VA , STRASSE ? it ' s 5 km .")
    assert words_of(" \n ") == []


def test_numbers_of_words_are_those_of_the_vocabulary_cut_or_filled_up() -> None:
    known = Vocabulary(words=("a", "b", "."))
    assert known.size == 5
    assert known.tokens(["B a.", "c A b . a"], 4).tolist() == [[3, 2, 4, PADDING], [UNKNOWN, 2, 3, 4]]
    assert Vocabulary.from_json(known.to_json()) == known
    with pytest.raises(AdaptiveError, match="texts: one text; allowed: a list of texts"):
        known.tokens("B a.", 4)
    with pytest.raises(AdaptiveError, match=r"vocabulary.json: .*words: one is there twice; export the bundle again"):
        Vocabulary.from_json('{"version": 1, "words": ["a", "a"]}')


@pytest.mark.parametrize("length", [2, 5, 9])
def test_texts_come_to_another_length_alike_in_numpy_and_torch(length: int) -> None:
    x_NT = np.arange(10).reshape(2, 5)
    found_NT = of_length(x_NT, length)
    assert found_NT.shape == (2, length)
    assert found_NT.flags.c_contiguous
    assert (found_NT[:, :5] == x_NT[:, :length]).all()
    assert (found_NT[:, 5:] == PADDING).all()
    assert resize(torch.from_numpy(x_NT), (length,)).tolist() == found_NT.tolist()


def test_a_sentence_follows_from_its_seed_and_number_alone() -> None:
    few, many = sentences(), sentences(images=1200)
    assert many.texts[:600] == few.texts
    assert sentences(seed=1).texts != few.texts
    assert len(set(many.texts)) == 1200
    assert few.class_names == CLASSES
    assert (few.labels == np.arange(600) % 6).all()
    assert sentences(classes=2).class_names == ("praise", "complaint")


def test_the_grammar_ends_and_every_symbol_has_rules() -> None:
    assert all(name.upper() in RULES for name in CLASSES)
    symbols = {part for rules in RULES.values() for rule in rules for part in rule.split() if part.isupper()}
    assert symbols <= RULES.keys()
    lengths = [len(words_of(text)) for text in sentences(images=3000).texts]
    assert min(lengths) >= 5
    assert max(lengths) <= 60


def test_no_set_of_words_alone_tells_the_class() -> None:
    """A classifier of counts of words stays far below one that knows the clauses."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    source, splits = open_source(DataSettings(kind="texts", images=3000))
    assert isinstance(source, TextSource)
    texts = {name: [source.texts[index] for index in indices] for name, indices in splits.items()}
    counts = CountVectorizer()
    model = LogisticRegression(max_iter=300).fit(counts.fit_transform(texts["train"]), source.labels[splits["train"]])
    assert 0.4 < model.score(counts.transform(texts["test"]), source.labels[splits["test"]]) < 0.75


def test_batches_are_numbers_below_the_vocabularys_and_augmenting_leaves_words_out() -> None:
    train = load(DataSettings(kind="texts", images=600), "train")
    (plain, target), (dropped, same) = (
        next(iter(train.batches(64, seed=3, augment=augment))) for augment in (False, True)
    )
    assert plain.dtype == torch.int64
    assert plain.shape == (64, *train.form.size) == (64, 32)
    assert train.form.words is not None
    assert 0 <= plain.min() <= plain.max() < train.form.words
    assert (target == same).all()
    changed = plain != dropped
    assert (dropped[changed] == UNKNOWN).all()
    assert (plain[changed] != PADDING).all()
    assert 0.5 < changed.sum() / (plain != PADDING).sum() / WORD_DROPOUT < 2
    (again, _) = next(iter(train.batches(64, seed=3)))
    assert (again == dropped).all()
    shorter, _ = next(iter(train.batches(64, resolution=12)))
    assert shorter.shape == (64, 12)


def test_the_vocabulary_is_that_of_the_training_split_most_frequent_words_first(tmp_path: Path) -> None:
    write_rows(tmp_path / "train" / "a.jsonl", [(f"{text} {'x' * (LONGEST_WORD + 1)}", label) for text, label in ROWS])
    write_rows(tmp_path / "test" / "a.jsonl", [("unheard of", "cat"), ("this dog", "dog")])
    data = load_splits(jsonl(tmp_path, validation_share=0.25))
    vocabulary = data["train"].scaling.vocabulary
    assert vocabulary is not None
    assert vocabulary.words[:3] == ("is", "number", "this")
    assert "unheard" not in vocabulary.words
    x_BT, y_B = next(iter(data["test"].batches(2)))
    assert x_BT[0].tolist() == [UNKNOWN] * 2 + [PADDING] * 6
    assert y_B.tolist() == [0, 1]
    assert len(data["train"]) == 18
    assert max(map(len, vocabulary.words)) <= LONGEST_WORD
    few = load_splits(jsonl(tmp_path, validation_share=0.25, vocabulary={"most_words": 2}))["train"]
    assert few.form.words == 4
    described = describe(few)
    described.write(tmp_path / "data.json")
    assert DataDescription.read(tmp_path / "data.json") == described
    assert described.differing(describe(data["train"])) == ["words"]
    assert describe(load(DataSettings(kind="digits"), "train")).vocabulary is None


def test_fields_have_the_names_of_the_settings_and_labels_may_be_numbers(tmp_path: Path) -> None:
    rows = [(text, int(label == "dog")) for text, label in ROWS]
    write_rows(tmp_path / "a.jsonl", rows, ("review", "stars"))
    train = load(jsonl(tmp_path, fields={"text": "review", "label": "stars"}), "train")
    assert train.class_names == ("0", "1")
    with pytest.raises(UserError, match=r"texts '.*a.jsonl': row 1: no field 'text'; allowed: \{\"text\": text, "):
        load(jsonl(tmp_path), "train")


def test_classes_of_whole_numbers_are_in_their_order_and_names_by_the_alphabet(tmp_path: Path) -> None:
    for folder, mark in (("numbers", 0), ("names", "")):
        rows = [(f"text number {n}", n % 11 if mark == 0 else f"{n % 11}") for n in range(66)]
        write_rows(tmp_path / folder / "a.jsonl", rows)
    assert load(jsonl(tmp_path / "numbers"), "train").class_names == tuple(map(str, range(11)))
    assert load(jsonl(tmp_path / "names"), "train").class_names == tuple(sorted(map(str, range(11))))


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl")
    plain = load(jsonl(tmp_path), "train").scaling.vocabulary
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "a.jsonl").read_bytes())
    assert load(jsonl(tmp_path), "train").scaling.vocabulary == plain


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", "list, not an object"),
        ('{"text": "a"}', "no field 'label'"),
        ('{"text": 5, "label": "a"}', "field 'text' is int"),
        ('{"text": " ", "label": "a"}', "field 'text' has no words"),
        ('{"text": "a", "label": 0.5}', "field 'label' is float"),
        ('{"text": "a", "label": true}', "field 'label' is bool"),
        ('{"text": "a", "label": ""}', "field 'label' is empty"),
        (r'{"text": "a \ud83d", "label": "a"}', "field 'text' has half a character"),
        (r'{"text": "a", "label": "\udc00"}', "field 'label' has half a character"),
    ],
)
def test_a_broken_line_is_one_line_with_file_and_row(line: str, told: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl")
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(UserError) as caught:
        load(jsonl(tmp_path), "train")
    message = str(caught.value)
    assert f"texts '{tmp_path / 'a.jsonl'}': row {len(ROWS) + 2}: {told}" in message
    assert "\n" not in message


def _nothing(folder: Path) -> None:
    folder.mkdir()


def _empty(folder: Path) -> None:
    write_rows(folder / "a.jsonl", [])


def _one_class(folder: Path) -> None:
    write_rows(folder / "a.jsonl", [("a cat", "cat")] * 20)


def _no_test_dog(folder: Path) -> None:
    write_rows(folder / "train" / "a.jsonl")
    write_rows(folder / "test" / "a.jsonl", [("a cat", "cat")])


def _dangling(folder: Path) -> None:
    write_rows(folder / "a.jsonl")
    (folder / "b.jsonl").symlink_to(folder / "gone.jsonl")


def _binary(folder: Path) -> None:
    write_rows(folder / "a.jsonl")
    (folder / "a.jsonl").write_bytes(b'{"text": "\xff", "label": "a"}\n')


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (_nothing, r"no files of texts; allowed: \*\.jsonl"),
        (_empty, "has no rows"),
        (_one_class, "1 class of texts; allowed: two or more"),
        (_no_test_dog, "no text of 1 of 2 classes in test: dog; add texts of each class"),
        (_binary, "not UTF-8 after row 0"),
        (_dangling, r"data file '.*b\.jsonl': is a link to nothing; mend or remove it"),
    ],
)
def test_folders_that_cannot_be_used_are_one_line(write: Write, told: str, tmp_path: Path) -> None:
    write(tmp_path / "data")
    with pytest.raises(UserError, match=told):
        load(jsonl(tmp_path / "data"), "train")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"kind": "digits", "vocabulary": {}},
            "data.vocabulary is for data.kind=texts, jsonl, tagged_texts, tagged_jsonl, table",
        ),
        (
            {"kind": "texts", "vocabulary": None},
            "data.vocabulary is for data.kind=texts, jsonl, tagged_texts, tagged_jsonl, table, which need it",
        ),
        ({"kind": "texts", "fields": {}}, "data.fields is for data.kind=jsonl"),
        ({"kind": "texts", "channels": 3}, "data.channels=3 with data.kind=texts; allowed: 1, texts have none"),
        ({"kind": "jsonl"}, "data.kind=jsonl needs data.path=FOLDER"),
    ],
)
def test_settings_of_texts_are_for_texts(options: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        DataSettings.model_validate(options)


def test_too_rare_words_and_too_many_classes_are_told(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="no word is in the texts of train 500 times"):
        load(jsonl(tmp_path, vocabulary={"least_count": 500}), "train")
    with pytest.raises(UserError, match="there are 6 kinds of texts, not 7"):
        load(DataSettings(kind="texts", classes=7), "train")
