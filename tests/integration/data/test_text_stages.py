"""A small text encoder goes through the stages, from random weights to a bundle that answers texts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import adaptive_runtime
import tailor_ir
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, OpenBundle
from adaptive_runtime.samples.inputs import LONGEST_WORD, MOST_BYTES, MOST_WORDS, VOCABULARY_FILE, Vocabulary
from adaptive_runtime.server.protocol import InferenceFormat, RequestRefused, read
from conf.networks.text_encoder import network
from tasks import export, report, search
from tasks.base.artifacts import RESULT_FILE, read_json
from tasks.base.errors import UserError
from tasks.data import DataSettings, load, load_splits
from tasks.evaluation.models import ModelSettings, create
from tasks.evaluation.subnets import EvaluationData, accuracy
from tasks.export.running import archive_run, examples, file_tensor
from tests.support.ir.invariants import check_network
from tests.support.problems.stages import QUICK, SmallRun, finetuned

LENGTH, SHORTER = 16, 8
DATA = DataSettings(kind="texts", images=720, resolution=LENGTH, augment=False)
MODEL = ModelSettings(
    kind="callable",
    name="conf.networks.text_encoder:network",
    options={"width": 16, "heads": 2, "depth": 2, "expand": 2},
)
SPACE = {"sequence_length": [SHORTER, LENGTH], "*.expand_ratio": [1, 2], "*.depth": [-1, 0]}
STEPS = 30


def test_a_text_encoder_is_equal_in_three_forms_at_every_length(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = network(3, 40, LENGTH, width=16, heads=2, depth=2).eval()
    net = check_network(model, torch.arange(LENGTH)[None] * 39 // (LENGTH - 1), tmp_path, subnets=3)
    kinds = {variable.kind for variable in net.space.variables}
    assert kinds == {"sequence_length", "depth", "expand_ratio", "heads"}
    for config in (net.max_config, net.min_config):
        x_BT = net.sample_input(config, np.random.default_rng(0), 64)
        assert x_BT.shape == (64, *net.input_size(config))
        assert x_BT.dtype == np.int64
        assert 0 <= x_BT.min() < 5
        assert 35 <= x_BT.max() < 40


@pytest.fixture(scope="module")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SuperNet of the trained network, fine-tuned with its largest SubNet as the teacher of the others."""
    return finetuned(tmp_path_factory.mktemp("texts"), DATA, MODEL, SPACE, steps=STEPS, epochs=4)


@pytest.fixture(scope="module")
def sources(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> report.Sources:
    """The stages from the SuperNet to its exported winners in a bundle, on onnxruntime here."""
    wish, files = (
        search.Settings(method="exact", budget_count=4),
        export.Settings(measure=QUICK, formats=("onnx", "torch"), bundle=True),
    )
    run = SmallRun("text_encoder", DATA, wish, files)
    return run.sources(supernet, tmp_path_factory.mktemp("stages"))


@pytest.fixture(scope="module")
def bundle(sources: report.Sources) -> OpenBundle:
    (device,) = sources.devices
    return OpenBundle.open(device.export / "bundle")


def _cards(sources: report.Sources) -> list[dict[str, Any]]:
    (device,) = sources.devices
    cards: list[dict[str, Any]] = read_json(device.export / RESULT_FILE)["subnets"]
    return cards


def test_the_largest_subnet_has_learned_and_the_report_shows_it(sources: report.Sources, tmp_path: Path) -> None:
    found = report.run(sources, report.Settings(), tmp_path)
    assert found["metric"] == "top-1 accuracy"
    assert found["accuracies"]["largest SubNet, test"] > 1.8 / 6
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_exported_files_agree_with_torch_and_cards_say_how_texts_become_numbers(sources: report.Sources) -> None:
    (device,) = sources.devices
    vocabulary = Vocabulary.from_file(device.export / VOCABULARY_FILE)
    assert vocabulary == load(DATA, "train").scaling.vocabulary
    cards = _cards(sources)
    for card in cards:
        assert {name: file["state"] for name, file in card["files"].items()} == {"onnx": "ok", "torch": "ok"}
        told = card["preparation"]
        assert told == {
            "layout": "NT",
            "vocabulary": VOCABULARY_FILE,
            "words": vocabulary.size,
            "length": LENGTH,
            "size": card["input_shape"][1:],
        }
        assert card["files"]["onnx"]["run"]["inputs"][0]["type"] == "int64"
        text = (device.export / f"{card['digest']}.md").read_text()
        assert "## Texts" in text
        assert f"numbers of words below {vocabulary.size}" in text
        session = onnxruntime.InferenceSession(device.export / f"{card['digest']}.onnx")
        assert session.get_inputs()[0].type == "tensor(int64)"
        example = (device.export / f"{card['digest']}.onnx.py").read_text()
        assert "np.int64" in example
        assert "float32" not in example


def test_a_bundle_answers_texts_as_the_network_does(sources: report.Sources, bundle: OpenBundle) -> None:
    test = load(DATA, "test")
    x_BT, y_B = next(iter(test.batches(64)))
    net = tailor_ir.load(sources.supernet)
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        assert max(adaptive_runtime.check(model).values()) < 1e-4
        assert model.taken.dtype == np.int64
        for subnet in bundle.manifest.subnets:
            assert subnet.nets["onnx"].input.type == "int64"
            model.use(subnet.digest)
            answer = model.infer(x_BT.numpy())
            net.elastic.eval().activate(dict(subnet.config))
            with torch.no_grad():
                expected_BK = net.elastic(x_BT[:, : subnet.input_shape[1]]).numpy()
            np.testing.assert_allclose(answer.logits, expected_BK, atol=1e-4)
        texts = ["The soup was not good, and the bed was dirty.", "", "xyzzy " * 40]
        x_NT = model.tokens(texts)
        assert x_NT.shape == (3, LENGTH)
        assert not x_NT[1].any()
        assert model.infer(x_NT).classes.shape == (3,)
    assert len(y_B) == 64


def test_what_is_no_text_is_refused_in_one_line(bundle: OpenBundle) -> None:
    words = bundle.manifest.subnets[0].taken.words
    assert words is not None
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        for x, told in (
            (np.zeros((1, LENGTH), np.float32), rf"input: float32 \(1, {LENGTH}\); allowed: int64 \(N, {LENGTH}\)"),
            (np.zeros((1, SHORTER), np.int64), rf"int64 \(1, {SHORTER}\); allowed: int64 \(N, {LENGTH}\)"),
            (np.full((1, LENGTH), words), f"numbers of words from {words} to {words}; allowed: 0 to {words - 1}"),
            (np.full((1, LENGTH), -1), f"numbers of words from -1 to -1; allowed: 0 to {words - 1}"),
        ):
            with pytest.raises(AdaptiveError, match=told):
                model.infer(x)
        form = InferenceFormat.of(model)
    assert form.metadata("m", "1")["inputs"] == [{"name": "input", "datatype": "INT64", "shape": [-1, LENGTH]}]


def test_a_service_takes_whole_numbers_of_words(bundle: OpenBundle) -> None:
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        form, x_NT = InferenceFormat.of(model), model.tokens(["the view was nice", "the key is poor"])

    def body(values: Any, datatype: str = "INT64") -> bytes:
        tensor = {"name": "input", "shape": [2, LENGTH], "datatype": datatype, "data": values}
        return json.dumps({"inputs": [tensor]}).encode()

    np.testing.assert_array_equal(read(body(x_NT.tolist()), None, form).images_NCHW, x_NT)
    for content, told in (
        (body(x_NT.tolist(), "FP32"), "datatype FP32; allowed: INT64"),
        (body((x_NT + 10_000).tolist()), rf"numbers of words from .*; allowed: from 0, below {form.taken.words}"),
        (body((x_NT + 0.5).tolist()), "data has fractions"),
    ):
        with pytest.raises(RequestRefused, match=told):
            read(content, None, form)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (f'"length": {LENGTH},', f'"length": {1 << 40},', "length: .* less than or equal to 65536"),
        (f'"length": {LENGTH},', '"length": 1,', "size: 16 words of texts of 1|size: 8 words of texts of 1"),
        ('"words": ', '"words": 1000000000', "words: .* less than or equal to 1000002"),
    ],
)
def test_a_bundle_cannot_ask_for_more_words_than_a_text_may_have(
    bundle: OpenBundle, tmp_path: Path, before: str, after: str, told: str
) -> None:
    text = (bundle.folder / BUNDLE_FILE).read_text()
    assert before in text
    (tmp_path / BUNDLE_FILE).write_text(text.replace(before, after))
    with pytest.raises(AdaptiveError, match=told) as refused:
        OpenBundle.open(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_vocabulary_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / VOCABULARY_FILE
    with file.open("wb") as stream:
        stream.truncate(MOST_BYTES + 1)
    with pytest.raises(AdaptiveError, match=f"has {MOST_BYTES + 1} bytes; allowed: at most {MOST_BYTES}"):
        Vocabulary.from_file(file)
    for words in (["a" * (LONGEST_WORD + 1)], list(map(str, range(MOST_WORDS + 1)))):
        with pytest.raises(AdaptiveError, match=r"words.*should have at most"):
            Vocabulary.from_json(json.dumps({"version": 1, "words": words}))
    with pytest.raises(AdaptiveError, match="cannot be read"):
        Vocabulary.from_file(tmp_path / "none.json")


def test_a_damaged_vocabulary_is_one_line(bundle: OpenBundle, tmp_path: Path) -> None:
    for file in bundle.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = (tmp_path / VOCABULARY_FILE).read_bytes()
    (tmp_path / VOCABULARY_FILE).write_bytes(content.replace(b"good", b"evil"))
    with (
        adaptive_runtime.load(tmp_path, prepares=False) as model,
        pytest.raises(AdaptiveError, match=r"vocabulary.json: is not the file that bundle.json names"),
    ):
        model.tokens(["good"])


def test_a_shorter_subnet_sees_the_first_words_alone(supernet: Path) -> None:
    net, splits = tailor_ir.load(supernet), load_splits(DATA)
    data = EvaluationData(splits["test"], splits["train"], recalibration_images=64)
    (x_BT, _) = next(iter(data.batches((SHORTER,))))
    (whole_BT, _) = next(iter(data.batches((LENGTH,))))
    assert (x_BT == whole_BT[:, :SHORTER]).all()
    assert 0 < accuracy(net, net.min_config, data).share <= 1


def test_networks_of_images_are_refused_for_texts_in_one_line(tmp_path: Path) -> None:
    train, own = load(DATA, "train"), tmp_path / "own.py"
    with pytest.raises(UserError, match="model 'test_resnet': texts cannot do it yet: timm makes networks of images"):
        create(ModelSettings(name="test_resnet"), train.classes, train.form)
    own.write_text("def network(num_classes, in_chans):\n    return None\n")
    told = "cannot be called .*; allowed: a function of num_classes, num_words, length and model.options"
    with pytest.raises(UserError, match=told):
        create(ModelSettings(kind="callable", name=f"{own}:network"), train.classes, train.form)


def test_a_network_that_knows_fewer_words_than_the_vocabulary_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    train = load(DATA, "train")
    assert train.form.words is not None

    def made(words: int) -> object:
        own = tmp_path / f"of_{words}_words.py"
        own.write_text(
            "from conf.networks.text_encoder import network as encoder\n\n\ndef network(num_classes, num_words, length):\n"
            f"    return encoder(num_classes, {words}, length, width=16, heads=2, depth=1)\n"
        )
        return create(ModelSettings(kind="callable", name=f"{own}:network"), train.classes, train.form)

    assert isinstance(made(train.form.words), nn.Module)
    told = rf"cannot run on texts of shape \(2, {LENGTH}\): .*; check that it takes num_words and length"
    with pytest.raises(UserError, match=told):
        made(train.form.words - 1)


@pytest.mark.long
def test_the_example_of_torch_runs_texts_in_any_layout_of_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = tailor_ir.compile(
        network(2, 9, LENGTH, width=16, heads=2, depth=1).eval(), load(DATA, "train").form.blank(1), {}
    )
    net.export(net.max_config, tmp_path / "texts.onnx")
    settings = {"num_threads": 1, "num_interop_threads": 1, "memory_format": "channels_last"}
    run = archive_run([file_tensor("input", (1, LENGTH), "int64")], [(1, 2)]).model_copy(update={"settings": settings})
    program = tmp_path / "texts.onnx.py"
    program.write_text(examples(run, "onnx", on_device=True)[".py"])
    done = subprocess.run([sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(tmp_path / "texts.onnx")
    (expected_BK,) = session.run(None, {session.get_inputs()[0].name: np.zeros((1, LENGTH), np.int64)})
    np.testing.assert_allclose([float(one) for one in done.stdout.split()], expected_BK.ravel(), atol=1e-4)


def test_an_onnx_file_has_to_take_numbers_of_words(tmp_path: Path) -> None:
    train = load(DATA, "train")
    assert train.form.words is not None
    torch.manual_seed(0)
    module = network(2, train.form.words, LENGTH, width=16, heads=2, depth=1).eval()
    net = tailor_ir.compile(module, train.form.blank(1), {})
    net.export(net.max_config, tmp_path / "texts.onnx")
    wanted = ModelSettings(kind="onnx", path=tmp_path / "texts.onnx")
    assert isinstance(create(wanted, 2, train.form), onnx.ModelProto)
    longer = load(DATA.model_copy(update={"resolution": 20}), "train")
    with pytest.raises(UserError, match="takes 16; allowed: 20, the data's texts"):
        create(wanted, 2, longer.form)
    floats = nn.Sequential(nn.Linear(LENGTH, 2))
    floats_net = tailor_ir.compile(floats.eval(), torch.zeros(1, LENGTH), {})
    floats_net.export(floats_net.max_config, tmp_path / "floats.onnx")
    with pytest.raises(UserError, match="takes FLOAT; allowed: INT64, numbers of words"):
        create(ModelSettings(kind="onnx", path=tmp_path / "floats.onnx"), 2, train.form)
