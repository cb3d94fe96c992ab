"""A network of two inputs goes through the stages, from random weights to a bundle that answers samples by name."""

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

import adaptive_runtime
import tailor_ir
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.bundle.chains import InputsPreparation
from adaptive_runtime.model.opening import check
from adaptive_runtime.samples.inputs import packed
from adaptive_runtime.server.protocol import LENGTH_HEADER, InferenceFormat, NamedTensor, RequestRefused, pack, read
from conf.networks.two_branches import network
from tasks import export, report, search
from tasks.base.artifacts import RESULT_FILE, read_json
from tasks.base.errors import UserError
from tasks.data import DataSettings, load, load_splits
from tasks.data.batches import tensors
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.models import ModelSettings, create
from tasks.evaluation.quantise import Int8
from tasks.evaluation.settings import Settings as QuantiseSettings
from tasks.evaluation.subnets import EvaluationData, accuracy, statistics_of
from tasks.export.onnx_files import BATCHES, dynamic_batch
from tasks.placement.partition.planning import plan_partition
from tasks.placement.partition.settings import PartitionSettings
from tests.support.ir.invariants import check_network
from tests.support.problems.stages import QUICK, SmallRun, finetuned
from tests.support.runtime.service_process import INFER, served

SIDE, SMALLER = 32, 16
DATA = DataSettings(kind="image_and_motion", images=480, classes=2, resolution=SIDE, clip_s=1.28, augment=False)
MODEL = ModelSettings(kind="callable", name="conf.networks.two_branches:network", options={"width": 8, "depth": 1})
SPACE = {"resolution": [SMALLER, SIDE], "stage.[56].*.expand_ratio": [0.5, 1]}
SHAPES = {"image": (3, SIDE, SIDE), "motion": (3, 64)}
STEPS = 20


def test_the_network_is_equal_in_three_forms_with_images_of_every_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = network(6, SHAPES, width=8, depth=1).eval()
    net = check_network(model, tuple(torch.randn(1, *shape) for shape in SHAPES.values()), tmp_path, subnets=3)
    kinds = {variable.kind for variable in net.space.variables}
    assert kinds == {"resolution", "depth", "width_mult", "expand_ratio", "kernel_size"}
    smallest = net.input_shapes(net.min_config)
    assert smallest["motion"] == (1, *SHAPES["motion"])
    assert smallest["image"][2] < SIDE
    assert [one.shape for one in net.sample_inputs(net.min_config, np.random.default_rng(0))] == list(smallest.values())
    with pytest.raises(tailor_ir.InputError, match=r"2 inputs \(image, motion\)"):
        net.sample_input(net.min_config, np.random.default_rng(0))
    with pytest.raises(UserError, match="partition: the network takes image, motion; allowed: networks of one input"):
        plan_partition(net, net.max_config, [], PartitionSettings(devices=("a", "b")))


@pytest.fixture(scope="module")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SuperNet of the trained network, fine-tuned with its largest SubNet as the teacher of the others."""
    return finetuned(tmp_path_factory.mktemp("several"), DATA, MODEL, SPACE, steps=STEPS, epochs=6)


@pytest.fixture(scope="module")
def sources(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> report.Sources:
    """The stages from the SuperNet to its exported winners in a bundle, on onnxruntime here."""
    wish, files = (
        search.Settings(method="exact", budget_count=4),
        export.Settings(measure=QUICK, formats=("onnx", "ncnn", "torch"), bundle=True),
    )
    run = SmallRun("two_branches", DATA, wish, files)
    return run.sources(supernet, tmp_path_factory.mktemp("stages"))


@pytest.fixture(scope="module")
def bundle(sources: report.Sources) -> OpenBundle:
    (device,) = sources.devices
    return OpenBundle.open(device.export / "bundle")


@pytest.fixture(scope="module")
def samples() -> dict[str, np.ndarray]:
    """Some of the test split by the names of their inputs."""
    (x, _) = next(iter(load(DATA, "test").batches(16)))
    return {name: one.numpy() for name, one in zip(SHAPES, tensors(x), strict=True)}


def _cards(sources: report.Sources) -> list[dict[str, Any]]:
    (device,) = sources.devices
    cards: list[dict[str, Any]] = read_json(device.export / RESULT_FILE)["subnets"]
    return cards


@pytest.mark.long
def test_the_largest_subnet_has_learned_and_the_report_shows_it(sources: report.Sources, tmp_path: Path) -> None:
    found = report.run(sources, report.Settings(), tmp_path)
    assert found["accuracies"]["largest SubNet, test"] > 1.8 / 6
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.long
def test_exported_files_agree_with_torch_and_cards_say_how_each_input_is_prepared(sources: report.Sources) -> None:
    (device,) = sources.devices
    cards = _cards(sources)
    for card in cards:
        states = {name: (file["state"], file.get("reason")) for name, file in card["files"].items()}
        assert states == dict.fromkeys(("onnx", "ncnn", "torch"), ("ok", None))
        inputs = card["preparation"]["inputs"]
        assert inputs["motion"] == {
            "names": ["x", "y", "z"],
            "shape": [3, 64],
            "mean": [0.0, 0.0, 0.8],
            "deviation": [1.0, 1.0, 1.0],
        }
        side = card["config"]["resolution"]
        assert inputs["image"]["size"] == [side, side]
        session = onnxruntime.InferenceSession(device.export / f"{card['digest']}.onnx")
        assert {one.name: tuple(one.shape[1:]) for one in session.get_inputs()} == {
            "image": (3, side, side),
            "motion": (3, 64),
        }
        told = (device.export / f"{card['digest']}.md").read_text(encoding="utf-8")
        assert f"| input `image` | 1 × 3 × {side} × {side}, float32 |" in told
        assert "## Input `motion`" in told
        assert "| z | 0.8 | 1 |" in told
    assert {card["config"]["resolution"] for card in cards} == {SMALLER, SIDE}


@pytest.mark.long
def test_a_bundle_answers_samples_by_the_names_of_their_inputs(
    bundle: OpenBundle, samples: dict[str, np.ndarray], supernet: Path
) -> None:
    net = tailor_ir.load(supernet)
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        assert max(check(model).values()) < 1e-3
        for subnet in bundle.manifest.subnets:
            model.use(subnet.digest)
            answer = model.infer({name: samples[name] for name in reversed(samples)})
            assert answer.logits.shape == (16, 6)
            np.testing.assert_array_equal(answer.logits, model.infer(packed(samples)).logits)
            one = model.infer({name: values[3:4] for name, values in samples.items()})
            np.testing.assert_allclose(one.logits[0], answer.logits[3], atol=1e-4)
            assert isinstance(subnet.preparation, InputsPreparation)
            assert tuple(subnet.preparation.own_shapes.values()) == tuple(
                shape[1:] for shape in net.input_shapes(subnet.config).values()
            )


@pytest.mark.long
def test_other_inputs_are_one_line(bundle: OpenBundle, samples: dict[str, np.ndarray]) -> None:
    image, motion = samples.values()
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        for given, told in (
            (image, r"input: float32 \(16, 3, 32, 32\); allowed: an array by name for each of image \(N, 3, 32, 32\)"),
            ({"image": image}, "inputs: image; allowed: image, motion"),
            ({"image": image, "motion": motion, "sound": motion}, "inputs: image, motion, sound; allowed"),
            (
                {"image": image, "motion": motion[:, :, :9]},
                r"input 'motion': float32 .*; allowed: float32 \(N, 3, 64\)",
            ),
            ({"image": image, "motion": motion[:4]}, "inputs: samples of image: 16, motion: 4; allowed: as many"),
            ({"image": image.astype(np.float64), "motion": motion}, "input 'image': float64"),
        ):
            with pytest.raises(AdaptiveError, match=told):
                model.infer(given)
        with pytest.raises(AdaptiveError, match="takes images, not texts"):
            model.tokens(["a text"])


@pytest.mark.long
def test_a_service_takes_a_tensor_for_each_input(bundle: OpenBundle, samples: dict[str, np.ndarray]) -> None:
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        form = InferenceFormat.of(model)
    assert form.metadata("m", "1")["inputs"] == [
        {"name": name, "datatype": "FP32", "shape": [-1, *shape]} for name, shape in SHAPES.items()
    ]

    def body(*names: str, **changes: dict[str, Any]) -> bytes:
        def row(name: str) -> dict[str, Any]:
            data = samples[name][:2].ravel().tolist()
            return {
                "name": name,
                "shape": [2, *SHAPES[name]],
                "datatype": "FP32",
                "data": data,
                **changes.get(name, {}),
            }

        return json.dumps({"inputs": [row(name) for name in names]}).encode()

    found = read(body("motion", "image"), None, form).images_NCHW
    np.testing.assert_array_equal(found, packed({name: values[:2] for name, values in samples.items()}))
    for content, told in (
        (body("image"), "inputs: image; allowed: image, motion, each once"),
        (body("image", "image", "motion"), "inputs: image, image, motion; allowed"),
        (body("image", "motion", motion={"datatype": "INT64"}), "input 'motion': datatype INT64; allowed: FP32"),
        (
            body("image", "motion", motion={"shape": [2, 3, 65]}),
            r"input 'motion': shape \[2, 3, 65\]; allowed: \[N, 3, 64\]",
        ),
        (
            body("image", "motion", motion={"shape": [1, 3, 64], "data": [0.0] * 192}),
            "inputs: samples: 2 of 'image', 1 of 'motion'; allowed: as many of each",
        ),
    ):
        with pytest.raises(RequestRefused, match=told):
            read(content, None, form)


@pytest.mark.long
def test_a_service_answers_as_the_bundle_does(
    bundle: OpenBundle, samples: dict[str, np.ndarray], tmp_path: Path
) -> None:
    given = {name: values[:3] for name, values in samples.items()}
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        expected_NK = model.infer(given, subnet=bundle.manifest.subnets[0].digest).logits
    head = {"parameters": {"subnet": bundle.manifest.subnets[0].digest}}
    body = pack(head, "inputs", [NamedTensor(name, values, binary=True) for name, values in given.items()])
    with served(bundle.folder, tmp_path / "log") as service:
        found = service.http.post(INFER, content=body.content, headers={LENGTH_HEADER: str(body.json_bytes)})
        refused = service.http.post(INFER, json={"inputs": []})
    outputs = {one["name"]: one for one in found.raise_for_status().json()["outputs"]}
    logits_NK = np.reshape(outputs["logits"]["data"], outputs["logits"]["shape"])
    np.testing.assert_allclose(logits_NK, expected_NK, atol=1e-4)
    assert refused.status_code == 400
    assert "inputs: none; allowed: image, motion, each once" in refused.text


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".onnx.py", ".ncnn.py"])
def test_examples_read_a_file_for_each_input(sources: report.Sources, suffix: str, tmp_path: Path) -> None:
    (device,) = sources.devices
    card = next(card for card in _cards(sources) if card["config"]["resolution"] == SMALLER)
    rng = np.random.default_rng(0)
    x = {"image": rng.random((1, 3, SMALLER, SMALLER), np.float32), "motion": rng.random((1, 3, 64), np.float32)}
    for name, values in x.items():
        values.tofile(tmp_path / f"{name}.f32")
    program = device.export / f"{card['digest']}{suffix}"
    files = [str(tmp_path / f"{name}.f32") for name in x]
    done = subprocess.run([sys.executable, str(program), *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(device.export / f"{card['digest']}.onnx")
    (expected_BK,) = session.run(None, x)
    np.testing.assert_allclose([float(one) for one in done.stdout.split()], expected_BK.ravel(), atol=1e-3)


def test_smaller_subnets_see_smaller_images_and_the_whole_motion(supernet: Path) -> None:
    net, splits = tailor_ir.load(supernet), load_splits(DATA)
    data = EvaluationData(splits["test"], splits["train"], recalibration_images=64)
    (x, _) = next(iter(data.batches((SMALLER, SMALLER))))
    (whole, _) = next(iter(data.batches((SIDE, SIDE))))
    assert x[0].shape[2:] == (SMALLER, SMALLER)
    assert torch.equal(x[1], whole[1])
    assert 0 < accuracy(net, net.min_config, data).share <= 1


def test_a_subnet_in_int8_is_calibrated_by_all_inputs(supernet: Path) -> None:
    net, splits = tailor_ir.load(supernet), load_splits(DATA)
    data = EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=64)
    exact = accuracy(net, net.max_config, data)
    statistics = statistics_of(net, net.max_config, data)
    found = Int8(QuantiseSettings()).accuracy(net, net.max_config, statistics, data)
    assert found.total == exact.total == 64
    assert found.share > exact.share - 0.2


def test_a_file_of_several_inputs_takes_any_number_of_samples(supernet: Path) -> None:
    net = tailor_ir.load(supernet)
    model = dynamic_batch([onnx_of(net, net.min_config, batch=batch) for batch in BATCHES])
    x = net.sample_inputs(net.min_config, np.random.default_rng(0), 5)
    (found_BK,) = onnxruntime.InferenceSession(model).run(None, dict(zip(SHAPES, x, strict=True)))
    with torch.no_grad():
        expected_BK = net.build(net.min_config)(*map(torch.from_numpy, x)).numpy()
    np.testing.assert_allclose(found_BK, expected_BK, atol=1e-4)


def test_networks_of_other_inputs_are_refused_before_they_are_trained(tmp_path: Path) -> None:
    train = load(DATA, "train")
    with pytest.raises(
        UserError, match="model 'test_resnet': several inputs cannot do it yet: timm makes networks of one"
    ):
        create(ModelSettings(name="test_resnet"), train.classes, train.form)

    def made(arguments: str, call: str = "num_classes, shapes") -> None:
        own = tmp_path / f"own_{abs(hash((arguments, call)))}.py"
        own.write_text(
            "import torch\n\n\nclass Own(torch.nn.Module):\n"
            f"    def forward(self, {arguments}):\n        return torch.zeros(len(image), 6)\n\n\n"
            f"def network({call}):\n    return Own()\n"
        )
        create(ModelSettings(kind="callable", name=f"{own}:network"), train.classes, train.form)

    made("image, motion")
    for arguments, told in (
        ("image", "inputs image; allowed: image, motion: those of the data, by these names and in this order"),
        ("motion, image", "inputs motion, image; allowed: image, motion"),
        ("*image", "inputs without names; allowed: image, motion"),
    ):
        with pytest.raises(UserError, match=told):
            made(arguments)
    with pytest.raises(UserError, match=r"allowed: a function of num_classes, shapes and model\.options"):
        made("image, motion", "num_classes, in_chans")


def test_an_onnx_file_has_to_have_the_inputs_of_the_data(supernet: Path, tmp_path: Path) -> None:
    train, net = load(DATA, "train"), tailor_ir.load(supernet)
    net.export(net.max_config, tmp_path / "whole.onnx")
    net.export(net.min_config, tmp_path / "small.onnx")
    wanted = ModelSettings(kind="onnx", path=tmp_path / "whole.onnx")
    assert isinstance(create(wanted, train.classes, train.form), onnx.ModelProto)
    small = ModelSettings(kind="onnx", path=tmp_path / "small.onnx")
    with pytest.raises(UserError, match="takes 3x16x16; allowed: 3x32x32, the data's samples"):
        create(small, train.classes, train.form)
    images = load(DataSettings(kind="glyphs", images=200, classes=2), "train")
    with pytest.raises(UserError, match=r"2 inputs \(image, motion\); allowed: one, of images"):
        create(wanted, 2, images.form)
