"""Stage "compile": what it remarks of a network, and what it refuses."""

from pathlib import Path

import onnx
import pytest
import timm
import torch
from torch import nn

from tasks import compile
from tasks.data import DataSettings
from tasks.errors import UserError
from tasks.models import ModelSettings
from tasks.progress import Silent

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
    result = compile.run(compile.Settings(), model, DIGITS, None, None, tmp_path, progress)
    assert result["remarks"] == progress.said
    assert len(progress.said) == 1
    assert progress.said[0].startswith("BatchNorm was folded into 15 of 15 convolutions")


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
