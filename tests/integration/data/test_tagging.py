"""A text encoder that classifies each word goes through the stages by its word accuracy, to a bundle with classes of words."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score
from torch.nn import functional

import adaptive_runtime
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.model.answers import UNREAD
from adaptive_runtime.samples.inputs import PADDING
from adaptive_runtime.server.protocol import InferenceFormat
from tasks import export, report, search
from tasks.base.artifacts import RESULT_FILE, read_json
from tasks.base.errors import UserError
from tasks.data import DataSettings, load, load_splits
from tasks.data.problems import TAGGING
from tasks.data.problems.tagging import IGNORED
from tasks.data.texts import TAGS, tagged_sentence
from tasks.evaluation.models import ModelSettings
from tasks.evaluation.subnets import Accuracy
from tasks.training.finetune.numerics import soft_cross_entropy
from tests.support.problems.stages import QUICK, SmallRun

LENGTH, SHORTER, CLASSES = 16, 8, 4
DATA = DataSettings(kind="tagged_texts", images=600, resolution=LENGTH, augment=False)
MODEL = ModelSettings(
    kind="callable",
    name="conf.networks.text_encoder:network",
    options={"width": 16, "heads": 2, "depth": 2, "expand": 2, "each_word": True},
)
SPACE = {"sequence_length": [SHORTER, LENGTH], "*.expand_ratio": [1, 2], "*.depth": [-1, 0]}


def answered(seed: int, read: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (B, t, K) and classes (B, T), texts filled up to different lengths."""
    generator = torch.Generator().manual_seed(seed)
    target_BT = torch.randint(0, CLASSES, (10, LENGTH), generator=generator)
    for row, words in enumerate(torch.randint(3, LENGTH + 1, (10,), generator=generator).tolist()):
        target_BT[row, words:] = IGNORED
    return torch.randn(10, read, CLASSES, generator=generator), target_BT


@pytest.mark.parametrize("read", [LENGTH, SHORTER])
def test_word_accuracy_is_the_share_of_all_words_and_unread_ones_are_wrong(read: int) -> None:
    outputs, target_BT = answered(0, read)
    tally = TAGGING.tally()
    for rows in (slice(0, 3), slice(3, 10)):
        tally.add(outputs[rows], target_BT[rows])
    found = Accuracy.tallied(tally.found())
    answers_BT = np.full(target_BT.shape, CLASSES)
    answers_BT[:, :read] = outputs.argmax(2).numpy()
    words = target_BT.numpy() != IGNORED
    assert found.share == pytest.approx(accuracy_score(target_BT.numpy()[words], answers_BT[words]), abs=1e-12)
    each = [accuracy_score(*pair) for pair in zip(
        [row[own] for row, own in zip(target_BT.numpy(), words, strict=True)],
        [row[own] for row, own in zip(answers_BT, words, strict=True)],
        strict=True,
    )]  # fmt: skip
    assert found.each == pytest.approx(each, abs=1e-3)


def test_losses_are_of_the_words_that_are_read() -> None:
    outputs, target_BT = answered(1, SHORTER)
    read = target_BT[:, :SHORTER] != IGNORED
    rows, labels = outputs[read], target_BT[:, :SHORTER][read]
    torch.testing.assert_close(
        TAGGING.loss(outputs, target_BT, 0.1), functional.cross_entropy(rows, labels, label_smoothing=0.1)
    )
    taught, _ = answered(2)
    pull = TAGGING.distillation(outputs, taught, soft_cross_entropy)
    expected = soft_cross_entropy(outputs.reshape(-1, CLASSES), taught[:, :SHORTER].reshape(-1, CLASSES))
    torch.testing.assert_close(pull, expected)


def test_adjectives_are_what_their_clause_is_and_all_words_have_their_class() -> None:
    rng = np.random.default_rng(0)
    told: dict[str, set[str]] = {}
    for _ in range(300):
        for word, tag in zip(*tagged_sentence("relief", rng), strict=True):
            told.setdefault(word, set()).add(tag)
    assert told["rude"] == told["fresh"] == {"good", "bad"}
    assert (told["soup"], told["hotel"], told["."]) == ({"thing"}, {"place"}, {"other"})
    train = load(DATA, "train")
    assert train.class_names == TAGS
    x_BT, y_BT = next(iter(train.batches(64)))
    assert isinstance(x_BT, torch.Tensor)
    assert torch.equal(x_BT == PADDING, y_BT == IGNORED)


def _rows(folder: Path, *rows: tuple[str, object]) -> DataSettings:
    lines = [json.dumps({"text": text, "label": tags}) for text, tags in rows]
    (folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return DataSettings(kind="tagged_jsonl", path=folder, resolution=8)


def test_lines_have_a_name_for_each_word_or_are_told_with_their_place(tmp_path: Path) -> None:
    good = [("Not bad!", ["no", "good", "end"]), ("Bad, bad soup", ["bad", "end", "bad", "thing"])] * 12
    splits = load_splits(_rows(tmp_path, *good))
    assert splits["train"].class_names == ("bad", "end", "good", "no", "thing")
    _, y_BT = next(iter(splits["test"].batches(8)))
    assert {tuple(row) for row in y_BT.tolist()} == {(3, 2, 1, *(IGNORED,) * 5), (0, 1, 0, 4, *(IGNORED,) * 4)}
    for tags, told in (
        (["no", "good"], "row 25: field 'label' has 2 names for 3 words"),
        ("good", "row 25: field 'label' is no list of names; allowed: .*one name for each word"),
    ):
        with pytest.raises(UserError, match=told):
            load_splits(_rows(tmp_path, *good, ("Not bad!", tags)))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> report.Sources:
    """The stages from the sentences to exported winners in a bundle, on onnxruntime here."""
    wish = search.Settings(method="exact", budget_count=10)
    run = SmallRun("tagger", DATA, wish, export.Settings(measure=QUICK, formats=("onnx",), bundle=True))
    return run.from_network(tmp_path_factory.mktemp("tagger"), MODEL, SPACE, steps=25, epochs=4)


@pytest.mark.long
def test_a_bundle_tells_the_class_of_each_word_that_a_subnet_reads(sources: report.Sources, tmp_path: Path) -> None:
    (device,) = sources.devices
    cards = read_json(device.export / RESULT_FILE)["subnets"]
    assert {(card["problem"], card["files"]["onnx"]["state"]) for card in cards} == {("tagging", "ok")}
    x_BT, y_BT = next(iter(load(DATA, "test").batches(32)))
    assert isinstance(x_BT, torch.Tensor)
    shares = []
    with adaptive_runtime.load(device.export / "bundle", prepares=False) as model:
        assert InferenceFormat.of(model).outputs == {"classes": [-1, LENGTH]}
        for subnet in OpenBundle.open(device.export / "bundle").manifest.subnets:
            model.use(subnet.digest)
            tags = model.infer(x_BT.numpy()).tags
            assert tags is not None
            read = subnet.input_shape[1]
            assert (tags[:, read:] == UNREAD).all()
            assert (tags[:, :read] != UNREAD).all()
            shares.append((tags == y_BT.numpy())[y_BT.numpy() != IGNORED].mean())
    assert max(shares) > 0.7
    assert report.run(sources, report.Settings(), tmp_path)["metric"] == "word accuracy"
