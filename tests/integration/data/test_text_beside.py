"""A text and a sound as two of several inputs go through the stages, from a table to a bundle that answers samples by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from scipy.io import wavfile

import adaptive_runtime
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.bundle.chains import ImagePreparation, InputsPreparation
from adaptive_runtime.model.opening import check
from adaptive_runtime.samples.inputs import Vocabulary, packed
from adaptive_runtime.server.protocol import InferenceFormat, RequestRefused, read
from tasks import export, report, search
from tasks.base.artifacts import RESULT_FILE, read_json
from tasks.data import DataSettings, load
from tasks.data.batches import tensors
from tasks.evaluation.models import ModelSettings
from tests.support.ir.invariants import check_network
from tests.support.problems import garden
from tests.support.problems.garden import INPUTS, NOTES, SIDE, WORDS
from tests.support.problems.stages import QUICK, SmallRun

SMALLER, CLASSES = 8, 8
SPACE = {"resolution": [SMALLER, SIDE], "*.expand_ratio": [1, 2]}
MODEL = ModelSettings(kind="callable", name=f"{garden.__file__}:network")


def test_the_network_is_equal_in_three_forms_and_texts_keep_their_length(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shapes = {"photo": (3, SIDE, SIDE), "noise": (1, SIDE, SIDE), "note": (WORDS,), "weather": (1,)}
    example = tuple(
        torch.arange(WORDS)[None] * 4 if name == "note" else torch.randn(1, *shape) for name, shape in shapes.items()
    )
    net = check_network(garden.network(CLASSES, shapes, 21).eval(), example, tmp_path, subnets=3)
    assert {variable.kind for variable in net.space.variables} >= {"resolution", "expand_ratio"}
    smallest = net.input_shapes(net.min_config)
    assert smallest["note"] == (1, WORDS)
    assert smallest["photo"][2:] == smallest["noise"][2:] < (SIDE, SIDE)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSettings:
    return garden.settings(garden.written(tmp_path_factory.mktemp("garden"), 240))


@pytest.fixture(scope="module")
def sources(data: DataSettings, tmp_path_factory: pytest.TempPathFactory) -> report.Sources:
    """The stages from the table to exported winners in a bundle, on onnxruntime here."""
    wish = search.Settings(method="exact", budget_count=4)
    run = SmallRun("garden", data, wish, export.Settings(measure=QUICK, formats=("onnx", "torch"), bundle=True))
    return run.from_network(tmp_path_factory.mktemp("garden"), MODEL, SPACE, steps=8, epochs=8)


@pytest.fixture(scope="module")
def bundle(sources: report.Sources) -> OpenBundle:
    (device,) = sources.devices
    return OpenBundle.open(device.export / "bundle")


@pytest.fixture(scope="module")
def samples(data: DataSettings) -> dict[str, np.ndarray]:
    """Some of the test split by the names of their inputs."""
    (x, _) = next(iter(load(data, "test").batches(8)))
    return {name: one.numpy() for name, one in zip(INPUTS, tensors(x), strict=True)}


@pytest.mark.long
def test_exported_files_agree_with_torch_and_cards_say_how_each_input_is_prepared(sources: report.Sources) -> None:
    (device,) = sources.devices
    cards: list[dict[str, Any]] = read_json(device.export / RESULT_FILE)["subnets"]
    for card in cards:
        states = {name: (file["state"], file.get("reason")) for name, file in card["files"].items()}
        assert states == dict.fromkeys(("onnx", "torch"), ("ok", None))
        side, inputs = card["config"]["resolution"], card["preparation"]["inputs"]
        assert inputs["photo"]["size"] == inputs["noise"]["size"] == [side, side]
        assert inputs["noise"]["spectrogram"]["sampling_rate_hz"] == garden.RATE_HZ
        assert (inputs["note"]["length"], inputs["note"]["size"]) == (WORDS, [WORDS])
        session = onnxruntime.InferenceSession(device.export / f"{card['digest']}.onnx")
        assert {one.name: (one.type, tuple(one.shape[1:])) for one in session.get_inputs()} == {
            "photo": ("tensor(float)", (3, side, side)),
            "noise": ("tensor(float)", (1, side, side)),
            "note": ("tensor(int64)", (WORDS,)),
            "weather": ("tensor(float)", (1,)),
        }
        told = (device.export / f"{card['digest']}.md").read_text(encoding="utf-8")
        assert f"| input `note` | 1 × {WORDS}, int64 |" in told
        assert "An application prepares signals" in told
    assert len(cards) > 1


@pytest.mark.long
def test_a_bundle_answers_samples_whose_texts_it_reads(
    bundle: OpenBundle, samples: dict[str, np.ndarray], sources: report.Sources
) -> None:
    first = bundle.manifest.subnets[0]
    assert isinstance(first.preparation, InputsPreparation)
    vocabulary = bundle.vocabulary()
    assert vocabulary is not None
    assert vocabulary == Vocabulary.from_file(sources.devices[0].export / "vocabulary.json")
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        assert max(check(model).values()) < 1e-3
        tokens_NT = model.tokens([NOTES["dry"][0], NOTES["wet"][1]])
        assert tokens_NT.shape == (2, WORDS)
        two = {name: values[:2] for name, values in samples.items()} | {"note": tokens_NT}
        right = 0
        for subnet in bundle.manifest.subnets:
            model.use(subnet.digest)
            answer = model.infer(two)
            assert answer.logits.shape == (2, CLASSES)
            np.testing.assert_array_equal(answer.logits, model.infer(packed(two)).logits)
            names = [bundle.manifest.classes[label] for label in answer.classes]
            right = max(right, names[0].endswith("dry") + names[1].endswith("wet"))
        assert right == 2, "the note alone says how wet it is"
        for note_NT, line in (
            (tokens_NT + 1000, r"input 'note': numbers of words from .*; allowed: 0 to"),
            (tokens_NT.astype(np.int32), r"input 'note': int32 \(2, 6\); allowed: int64 \(N, 6\)"),
            (tokens_NT[:, :4], r"input 'note': int64 \(2, 4\)"),
        ):
            with pytest.raises(AdaptiveError, match=line):
                model.infer({**two, "note": note_NT})
        with pytest.raises(AdaptiveError, match=r"input 'note': numbers of words from"):
            model.infer(packed({**two, "note": tokens_NT - 50}))


@pytest.mark.long
def test_a_sound_in_a_bundle_is_prepared_as_the_data_are(
    bundle: OpenBundle, data: DataSettings, samples: dict[str, np.ndarray]
) -> None:
    """The spectrogram that the manifest describes, on its scale, is the one that the network has learned from."""
    preparation = bundle.manifest.subnets[0].preparation
    assert isinstance(preparation, InputsPreparation)
    noise = preparation.inputs["noise"]
    assert isinstance(noise, ImagePreparation)
    assert noise.spectrogram is not None
    assert data.path is not None
    prepared = []
    for name in ("low", "high"):
        _, sound_T = wavfile.read(data.path / "files" / f"{name}.wav")
        image_1CHW = noise.spectrogram.of(sound_T.astype(np.float32)[None] / 32768)
        prepared.append((image_1CHW[0] - noise.mean[0]) / noise.deviation[0])
    nearest = [min(np.abs(one - own).max() for own in prepared) for one in samples["noise"]]
    assert max(nearest) < 1e-5


@pytest.mark.long
def test_a_service_takes_numbers_of_words_beside_other_inputs(
    bundle: OpenBundle, samples: dict[str, np.ndarray]
) -> None:
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        form = InferenceFormat.of(model)
    assert {one["name"]: one["datatype"] for one in form.metadata("m", "1")["inputs"]} == {
        "photo": "FP32",
        "noise": "FP32",
        "note": "INT64",
        "weather": "FP32",
    }

    def body(**changes: dict[str, Any]) -> bytes:
        rows = [
            {
                "name": name,
                "shape": list(values[:2].shape),
                "datatype": "INT64" if name == "note" else "FP32",
                "data": values[:2].ravel().tolist(),
                **changes.get(name, {}),
            }
            for name, values in samples.items()
        ]
        return json.dumps({"inputs": rows}).encode()

    found = read(body(), None, form).images_NCHW
    np.testing.assert_array_equal(found, packed({name: values[:2] for name, values in samples.items()}))
    for changes, told in (
        ({"datatype": "FP32"}, "input 'note': datatype FP32; allowed: INT64"),
        ({"data": [999] * (2 * WORDS)}, "input 'note': numbers of words from 999 to 999; allowed: from 0, below"),
    ):
        with pytest.raises(RequestRefused, match=told):
            read(body(note=changes), None, form)
