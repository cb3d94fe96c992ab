"""Where networks and weights come from, and one clear line for each way it can go wrong."""

import importlib
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub.constants
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from pydantic import ValidationError
from safetensors.torch import save_file, save_model
from torch import nn

from tailor_ir import TailorError
from tasks.base.earlier import EARLIER_NAMES, name_now
from tasks.base.errors import UserError
from tasks.data.samples import SampleForm, SeveralInputs, image_form
from tasks.evaluation.models import ModelSettings, create, needs_training, weights_source

PHOTO_AND_NOTE = SeveralInputs({"photo": image_form(3, 32), "note": SampleForm((32,), 900)})


def make(**options: object) -> nn.Module | onnx.ModelProto:
    return create(ModelSettings.model_validate(options), 10, image_form(3, 32))


def identical(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet"])
def test_timm_network_has_the_classes_and_input_of_the_data(name: str) -> None:
    model = create(ModelSettings(name=name), 7, image_form(1, 48))
    assert isinstance(model, nn.Module)
    assert model.eval()(torch.zeros(2, 1, 48, 48)).shape == (2, 7)


def test_random_weights_depend_on_the_seed_only() -> None:
    torch.manual_seed(123)
    one = make(name="test_resnet")
    drawn = torch.rand(1)
    torch.manual_seed(123)
    assert torch.equal(drawn, torch.rand(1))
    other = make(name="test_resnet")
    assert isinstance(one, nn.Module)
    assert isinstance(other, nn.Module)
    assert identical(one, other)


def test_threads_that_make_networks_at_once_get_the_same_weights() -> None:
    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(lambda _: make(name="test_resnet"), range(12))
    assert isinstance(first, nn.Module)
    for other in others:
        assert isinstance(other, nn.Module)
        assert identical(first, other)


def test_checkpoint_is_loaded_and_must_fit(tmp_path: Path) -> None:
    trained = create(ModelSettings(name="test_resnet"), 10, image_form(3, 32), seed=5)
    assert isinstance(trained, nn.Module)
    save_model(trained, str(tmp_path / "w.safetensors"))
    loaded = make(name="test_resnet", checkpoint=tmp_path / "w.safetensors")
    assert isinstance(loaded, nn.Module)
    assert identical(loaded, trained)
    with pytest.raises(UserError, match=r"checkpoint .* does not fit the network"):
        make(name="test_vit", checkpoint=tmp_path / "w.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"no header")
    with pytest.raises(UserError, match=r"checkpoint .* cannot be read .*; allowed: a .safetensors file"):
        make(name="test_resnet", checkpoint=tmp_path / "bad.safetensors")
    with pytest.raises(UserError, match=r"checkpoint .*: does not exist"):
        make(name="test_resnet", checkpoint=tmp_path / "none.safetensors")


def test_published_weights_come_from_the_local_cache_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"model 'test_resnet': published weights cannot be downloaded .*; go online"):
        make(name="test_resnet", pretrained=True)
    source = create(ModelSettings(name="test_resnet"), 1000, image_form(3, 160), seed=9)
    assert isinstance(source, nn.Module)
    snapshot = tmp_path / "models--timm--test_resnet.r160_in1k" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(snapshot.name)
    save_file(source.state_dict(), snapshot / "model.safetensors")
    loaded = make(name="test_resnet", pretrained=True)
    assert isinstance(loaded, nn.Module)
    assert torch.equal(loaded.get_parameter("conv1.0.weight"), source.get_parameter("conv1.0.weight"))


def test_whether_the_base_stage_must_train() -> None:
    assert needs_training(ModelSettings(), 10)
    assert needs_training(ModelSettings(pretrained=True), 10), "its classifier is new"
    assert not needs_training(ModelSettings(pretrained=True), 1000)
    assert not needs_training(ModelSettings(checkpoint=Path("w.safetensors")), 10)
    assert not needs_training(ModelSettings(kind="onnx", path=Path("m.onnx")), 10)


def test_callable_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\n"
        "def make(num_classes, in_chans, width=4):\n"
        "    return nn.Sequential(nn.Conv2d(in_chans, width, 3), nn.Flatten(), nn.LazyLinear(num_classes))\n"
        "def number(num_classes, in_chans):\n"
        "    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    model = make(kind="callable", name="own_network:make", options={"width": 6})
    assert isinstance(model, nn.Module)
    assert model.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    with pytest.raises(UserError, match="returns int"):
        make(kind="callable", name="own_network:number")
    with pytest.raises(UserError, match="cannot be called"):
        make(kind="callable", name="own_network:make", options={"depth": 1})
    for name in ("own_network:absent", "no_such_module:make"):
        with pytest.raises(UserError, match="cannot be imported"):
            make(kind="callable", name=name)


def test_unknown_names_and_options_are_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"timm has no network 'resnet62'; allowed: for example .*resnet26"):
        make(name="resnet62")
    with pytest.raises(UserError, match=r"model 'test_resnet': cannot be made .*wings"):
        make(name="test_resnet", options={"wings": 2})
    with pytest.raises(UserError, match=r"model 'test_resnet\.nobody': cannot be made"):
        make(name="test_resnet.nobody")


def test_onnx_file_is_checked_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    with pytest.raises(UserError, match=r"model file .*net\.onnx.*: does not exist"):
        make(kind="onnx", path=file)
    file.write_bytes(b"\x08\x07 not an onnx model")
    with pytest.raises(TailorError, match=r"network '.*net\.onnx': (not a readable ONNX file|holds no operators)"):
        make(kind="onnx", path=file)
    onnx.save(onnx_model([["b", 3, 32, 32]], [["b", 10]]), file)
    assert isinstance(make(kind="onnx", path=file), onnx.ModelProto)
    with pytest.raises(UserError, match="gives 10 outputs; allowed: 12"):
        create(ModelSettings(kind="onnx", path=file), 12, image_form(3, 32))


@pytest.mark.parametrize(
    ("inputs", "outputs", "line"),
    [
        ([[1, 3, 32, 32]] * 2, [[1, 10]], r"2 inputs \(x0, x1\); allowed: one"),
        (
            [[1, 3, 32, 32]],
            [[1, 10], [1, 10]],
            r"gives 2 outputs \(y0, y1\); allowed: one tensor \(B, 10\).* classification.*: model\.outputs=\[OUTPUT\]",
        ),
        ([[1, 3, 32, 32]], [["b", 21, 32, 32]], r"gives a tensor \(\?, 21, 32, 32\); allowed: one tensor \(B, 10\)"),
        (
            [[1, 3, 64, 64]],
            [[1, 10]],
            r"takes 3x64x64; allowed: 3x32x32, the data.s images; set data.resolution=64, or export it for 3x32x32",
        ),
        ([["b", 1, "h", "w"]], [[1, 10]], r"takes 1x\?x\?; allowed: 3x32x32.*; set data.channels=1, or export it for"),
        ([[1, 3, 48, 64]], [[1, 10]], r"takes 3x48x64; .*images; export it for 3x32x32: images of the data are square"),
        ([[1, 32, 32, 3]], [[1, 10]], r"takes 32x32x3; .*; export it for 3x32x32: .* with channels first"),
        ([[1, 4, 64, 64]], [[1, 10]], r"takes 4x64x64; allowed: 3x32x32, the data.s images; export it for 3x32x32$"),
        ([[1, 3, 2048, 2048]], [[1, 10]], r"takes 3x2048x2048; .*images; export it for 3x32x32$"),
        ([[1, 3072]], [[1, 10]], r"takes 3072; allowed: 3x32x32, the data.s images; export it for 3x32x32$"),
    ],
)
def test_onnx_file_of_another_task_or_other_images_is_refused(
    inputs: list[list[int | str]], outputs: list[list[int | str]], line: str, tmp_path: Path
) -> None:
    onnx.save(onnx_model(inputs, outputs), tmp_path / "net.onnx")
    with pytest.raises(UserError, match=rf"model file .*net\.onnx': {line}"):
        make(kind="onnx", path=tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("form", "taken", "line"),
    [
        (
            SampleForm((1, 64, 64), of_signal=True),
            {"x": (1, 32, 32)},
            "set data.resolution=32, or export it for 1x64x64",
        ),
        (SampleForm((1, 64, 64), of_signal=True), {"x": (3, 32, 32)}, "export it for 1x64x64"),
        (SampleForm((32,), 900), {"x": (48,)}, "set data.resolution=48, or export it for 32"),
        (image_form(3, 32), {"x": (3, 32, 32), "y": (2,)}, "export it for 3x32x32"),
        (PHOTO_AND_NOTE, {"photo": (3, 32, 32), "note": (12,)}, "set data.words=12, or export it for 32"),
        (PHOTO_AND_NOTE, {"photo": (3, 24, 24), "note": (12,)}, "set data.resolution=24, or export it for 3x32x32"),
        (PHOTO_AND_NOTE, {"note": (32,), "photo": (3, 32, 32)}, "export it with inputs photo, note, in this order"),
    ],
)
def test_advice_names_options_that_help_alone(
    form: SampleForm | SeveralInputs, taken: dict[str, tuple[int, ...]], line: str
) -> None:
    assert form.advice(taken, "export") == line


def onnx_model(inputs: Sequence[Sequence[int | str]], outputs: Sequence[Sequence[int | str]]) -> onnx.ModelProto:
    """Inputs and outputs of these shapes; what is between them is not looked at."""
    x = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(inputs)]
    y = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(outputs)]
    nodes = [helper.make_node("Relu", ["x0"], [value.name]) for value in y]
    return helper.make_model(helper.make_graph(nodes, "g", x, y))


OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, kind):
        super().__init__()
        self.conv = nn.Conv2d(3, classes, 3)
        self.kind = kind

    def forward(self, x):
        x = self.conv(x)
        if self.kind == "forward":
            raise ValueError("too dark")
        if self.kind == "segmentation":
            return x
        x = x.mean((2, 3))
        return (x, x) if self.kind == "two outputs" else {"a": x, "b": x} if self.kind == "names" else [x, "no tensor"]

class Two(Net):
    def forward(self, x, y):
        return self.conv(x) + self.conv(y)

def seven(num_classes, in_chans):
    return nn.Sequential(nn.Conv2d(in_chans, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def two_inputs(num_classes, in_chans):
    return Two(num_classes, "")

def make(num_classes, in_chans, kind):
    return Net(num_classes, kind)

def broken(num_classes, in_chans):
    return nn.Conv2d(in_chans, nothing, 3)

def wrong(num_classes, in_chans):
    return nn.Conv2d(in_chans)
"""


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("seven", {}, r"gives 7 outputs; allowed: 10, the classes of the data"),
        ("two_inputs", {}, r"2 inputs \(x, y\); allowed: one, of images"),
        (
            "make",
            {"kind": "segmentation"},
            r"gives a tensor \(2, 10, 30, 30\); allowed: one tensor \(B, 10\).* classification",
        ),
        ("make", {"kind": "two outputs"}, r"gives 2 outputs; allowed: one tensor"),
        ("make", {"kind": "names"}, r"gives 2 outputs; allowed: one tensor"),
        ("make", {"kind": "text"}, r"gives list; allowed: one tensor"),
        (
            "make",
            {"kind": "forward"},
            r"cannot run on images .*: ValueError \(too dark\) at own_nets\.py:14; check that it takes 3x32x32: images of",
        ),
        ("broken", {}, r"raises NameError \(.*'nothing'.*\) at own_nets\.py:34; mend it"),
        ("wrong", {}, r"raises TypeError \(.*\) at own_nets\.py:37; mend it"),
    ],
)
def test_callables_that_fail_or_do_no_classification_are_one_line(
    name: str, options: dict[str, object], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_nets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_nets", raising=False)
    with pytest.raises(UserError, match=rf"^model\.name 'own_nets:{name}'[: ]+{line}") as told:
        make(kind="callable", name=f"own_nets:{name}", options=options)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("def make(:\n", r"SyntaxError .* at broken_import\.py:1"),
        ("\nimport torch\nlimit = 1 / 0\n", r"ZeroDivisionError \(division by zero\) at broken_import\.py:3"),
        (
            "import no_such_library\n",
            r"ModuleNotFoundError \(No module named 'no_such_library'\) at broken_import\.py:1",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_its_line(
    text: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_import.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"model\.name 'broken_import:make': cannot be imported: {line}"):
        make(kind="callable", name="broken_import:make")


def test_a_network_that_has_been_tried_is_in_the_modes_that_it_was_made_in() -> None:
    model = make(name="test_resnet")
    assert isinstance(model, nn.Module)
    assert all(part.training for part in model.modules())
    with pytest.raises(
        UserError, match=r"model 'vit_tiny_patch16_224': cannot run on images of shape \(2, 3, 32, 32\)"
    ):
        make(name="vit_tiny_patch16_224", options={"img_size": 64})


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "onnx"},
        {"kind": "callable", "name": "module"},
        {"kind": "callable", "name": ":make"},
        {"kind": "callable", "name": "a:b", "pretrained": True},
        {"kind": "onnx", "path": "a.onnx", "checkpoint": "w.safetensors"},
        {"kind": "onnx", "path": "a.onnx", "outputs": ["a", "a"]},
        {"kind": "onnx", "path": "a.onnx", "outputs": []},
        {"outputs": ["a"]},
        {"layers": 3},
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ModelSettings.model_validate(wrong)


def test_model_cards_name_the_licence_of_published_weights_and_of_no_others(tmp_path: Path) -> None:
    published = weights_source(ModelSettings(name="resnet18", pretrained=True))
    assert published["licence"] == "apache-2.0"
    assert published["weights"].startswith("published: timm/resnet18")
    assert weights_source(ModelSettings(name="resnet18"))["licence"] == "none: trained here"
    for settings in (
        ModelSettings(name="resnet18", checkpoint=tmp_path / "own.safetensors"),
        ModelSettings(kind="onnx", name="net", path=tmp_path / "own.onnx"),
    ):
        found = weights_source(settings)
        assert found["licence"] == "unknown"
        assert "own." in found["weights"]
    own = weights_source(ModelSettings(kind="callable", name="networks:own", checkpoint=None))
    assert own == {"name": "networks:own", "weights": "those that networks:own gives it", "licence": "unknown"}


@pytest.mark.parametrize("earlier", [one.name for one in EARLIER_NAMES if one.kind == "network"])
def test_a_network_has_its_earlier_name_for_one_version(earlier: str, capsys: pytest.CaptureFixture[str]) -> None:
    name_now.cache_clear()
    settings = ModelSettings(kind="callable", name=earlier)
    assert ModelSettings(kind="callable", name=earlier) == settings
    module, name = settings.name.split(":")
    assert callable(getattr(importlib.import_module(module), name))
    line = f"autotailor: model.name '{earlier}' is now '{settings.name}'; the next version refuses the old name\n"
    assert capsys.readouterr().err == line, "said once"
