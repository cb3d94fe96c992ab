"""Stage "compile": what it remarks of a network, and what it refuses."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import timm
import torch
from torch import nn

import tailor_ir
from tailor_ir.subnets.elastic import Branches
from tailor_ir.supernet.reading import Batching
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.evaluation.models import ModelSettings
from tasks.training import compile

DIGITS = DataSettings(kind="digits")


class Lines(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_folded_batch_norm_is_told_at_once_and_in_the_result(tmp_path: Path) -> None:
    network = timm.create_model("test_resnet", num_classes=10).eval()
    torch.onnx.export(network, (torch.zeros(1, 3, 32, 32),), tmp_path / "net.onnx", dynamo=False, opset_version=17)
    model = ModelSettings(kind="onnx", path=tmp_path / "net.onnx")
    progress = Lines()
    settings = compile.Settings(open_batch_norms=False)
    result = compile.run(settings, model, DIGITS, None, None, tmp_path, progress)
    assert result["remarks"] == progress.said
    assert len(progress.said) == 2
    assert progress.said[0].startswith("BatchNorm was folded into 15 of 15 convolutions")
    assert progress.said[1].startswith("channels ")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_folded_batch_norm_of_a_file_is_put_back_by_training_images_and_remarked(tmp_path: Path) -> None:
    network = timm.create_model("test_resnet", num_classes=10).eval()
    torch.onnx.export(network, (torch.zeros(1, 3, 32, 32),), tmp_path / "net.onnx", dynamo=False, opset_version=17)
    model = ModelSettings(kind="onnx", path=tmp_path / "net.onnx")
    progress = Lines()
    result = compile.run(compile.Settings(), model, DIGITS, None, None, tmp_path, progress)
    assert result["remarks"] == progress.said
    assert progress.said[0].startswith("BatchNorm was folded into 15 convolutions, and is put back")
    net = tailor_ir.load(tmp_path / "supernet")
    assert sum(node.op == "BatchNormalization" for node in net.structure.graph.nodes) == 15
    file = tailor_ir.Reference.of_file(onnx.load(tmp_path / "net.onnx"), _drawn, Batching.of(net.structure), {})
    net.check_against(file)


def _drawn(rng: np.random.Generator, batch: int) -> tuple[np.ndarray, ...]:
    return (rng.standard_normal((batch, 3, 32, 32), dtype=np.float32),)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_outputs_that_an_onnx_file_does_not_tell_are_checked_once_they_are_known(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    file = tmp_path / "net.onnx"
    torch.onnx.export(network, (torch.zeros(1, 3, 32, 32),), file, dynamo=False, opset_version=17)
    proto = onnx.load(file)
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "numbers"
    onnx.save(proto, file)
    model = ModelSettings(kind="onnx", name="mine", path=file)
    with pytest.raises(UserError, match=r"model 'mine': gives 7 outputs; allowed: 10, the classes of the data"):
        compile.run(compile.Settings(), model, DIGITS, None, None, tmp_path, Lines())


@pytest.mark.long
def test_alternatives_begin_with_what_images_tell_and_their_errors_are_in_the_result(tmp_path: Path) -> None:
    model = ModelSettings(kind="timm", name="test_resnet")
    space = {"alternatives": ["pruned", "separable"]}
    found = {}
    for images in (64, 0):
        folder = tmp_path / str(images)
        folder.mkdir()
        torch.manual_seed(0)
        settings = compile.Settings(alternative_images=images)
        found[images] = compile.run(settings, model, DIGITS, None, space, folder, Lines())["alternatives"]
    net, plain = (tailor_ir.load(tmp_path / images / "supernet") for images in ("64", "0"))
    own = {(v.name, choice) for v in net.space.variables if v.kind == "block" for choice in v.choices[:-1]}
    assert {(each["variable"], each["choice"]) for each in found[64]} == own
    assert all(0 <= each["error"] < float("inf") for each in found[64])
    assert found[0] == []
    for branch in Branches(net.elastic).branches:
        moved = [
            name for name in branch.parameters if not torch.equal(net.elastic.tensor(name), plain.elastic.tensor(name))
        ]
        assert moved, branch.producer
    original = net.structure.graph.original().parameters
    assert all(torch.equal(net.elastic.tensor(name), plain.elastic.tensor(name)) for name in original)


def test_exits_begin_with_the_network_s_answers_and_how_often_they_agree_is_in_the_result(tmp_path: Path) -> None:
    model = ModelSettings(kind="timm", name="test_resnet")
    found = {}
    for images in (64, 0):
        folder = tmp_path / str(images)
        folder.mkdir()
        torch.manual_seed(0)
        settings = compile.Settings(exit_images=images)
        found[images] = compile.run(settings, model, DIGITS, None, {"exits": "auto"}, folder, Lines())["exits"]
    net, plain = (tailor_ir.load(tmp_path / images / "supernet") for images in ("64", "0"))
    assert [each["exit"] for each in found[64]] == list(net.space.variables[0].choices[:-1])
    assert all(0 <= each["agreement"] <= 1 for each in found[64])
    assert found[0] == []
    changed = {
        name for name, tensor in net.elastic.tensors().items() if not torch.equal(tensor, plain.elastic.tensor(name))
    }
    assert {name.split("/")[1] for name in changed} == {each["exit"] for each in found[64]}
    assert all(name.startswith("exit/") for name in changed)
