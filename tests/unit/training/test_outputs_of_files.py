"""ONNX files with several outputs: those of heads are joined in the order of targets, others are left out.

Shapes: B batch, C channels, K classes.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tasks.base.errors import UserError
from tasks.data.problems import CLASSIFICATION, LearningProblem
from tasks.data.problems.classification import SeveralClasses
from tasks.data.samples import image_form
from tasks.data.teacher import OnnxNetwork
from tasks.evaluation.models import ModelSettings, create

HEADS = {"light": 2, "warmth": 3}
TWO_TARGETS = SeveralClasses(HEADS)
WEIGHTS_CK = {name: np.random.default_rng(count).random((3, count), dtype=np.float32) for name, count in HEADS.items()}
Outputs = Sequence[tuple[str, str]]
"""What each output is, a head or the features under them, and its name."""


def written(file: Path, outputs: Outputs) -> Path:
    """Images of 8 pixels a side: linear layers on the mean of each channel."""
    nodes = [helper.make_node("ReduceMean", ["image"], ["mean"], axes=[2, 3], keepdims=0)]
    values = []
    for content, name in outputs:
        if content in HEADS:
            nodes.append(helper.make_node("MatMul", ["mean", f"{content}/weight"], [name], name=name))
        else:
            nodes.append(helper.make_node("Relu", ["mean"], [name], name=name))
        values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", HEADS.get(content, 3)]))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["b", 3, 8, 8])
    weights = [numpy_helper.from_array(values_CK, f"{name}/weight") for name, values_CK in WEIGHTS_CK.items()]
    graph = helper.make_graph(nodes, "heads", [image], values, weights)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), file)
    return file


def taken(
    folder: Path, outputs: Outputs, asked: Sequence[str] | None, problem: LearningProblem, classes: int
) -> onnx.ModelProto:
    settings = ModelSettings.model_validate(
        {"kind": "onnx", "path": written(folder / "net.onnx", outputs), "outputs": asked}
    )
    found = create(settings, classes, image_form(3, 8), problem=problem)
    assert isinstance(found, onnx.ModelProto)
    onnx.checker.check_model(found, full_check=True)
    return found


def answers(model: onnx.ModelProto, *heads: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What the network gives for some images, and the logits of these heads (B, K) side by side."""
    x_BCHW = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    weights_CK = torch.from_numpy(np.concatenate([WEIGHTS_CK[name] for name in heads], 1))
    return OnnxNetwork(model.SerializeToString())(x_BCHW), x_BCHW.mean((2, 3)) @ weights_CK


@pytest.mark.parametrize(
    ("outputs", "asked"),
    [
        ([("warmth", "warmth"), ("light", "light")], None),
        ([("light", "output"), ("warmth", "heads")], None),
        ([("features", "features"), ("warmth", "warmth"), ("light", "light")], None),
        ([("warmth", "a"), ("features", "b"), ("light", "c")], ["c", "a"]),
    ],
    ids=["by name", "in their order", "others are left out", "as they are asked for"],
)
def test_heads_are_joined_in_the_order_of_targets(outputs: Outputs, asked: list[str] | None, tmp_path: Path) -> None:
    found_BK, wanted_BK = answers(taken(tmp_path, outputs, asked, TWO_TARGETS, 5), "light", "warmth")
    torch.testing.assert_close(found_BK, wanted_BK)


def test_one_output_of_several_is_taken_for_one_target(tmp_path: Path) -> None:
    outputs = [("light", "a"), ("warmth", "b")]
    found_BK, wanted_BK = answers(taken(tmp_path, outputs, ["b"], CLASSIFICATION, 3), "warmth")
    torch.testing.assert_close(found_BK, wanted_BK)


@pytest.mark.parametrize(
    ("outputs", "asked", "told"),
    [
        (
            [("warmth", "a"), ("light", "b")],
            None,
            r"net\.onnx': output 'a' for target 'light' is \(\?, 3\); allowed: \(B, 2\), a number for each class of 'l",
        ),
        (
            [("light", "light"), ("warmth", "b")],
            None,
            r"gives 2 outputs \(light, b\); allowed: one tensor \(B, 5\).* \(light 2, warmth 3\), or an output "
            r"\(B, K\) for each target; name what is taken: model\.outputs=\[OUTPUT_OF_light,OUTPUT_OF_warmth\]",
        ),
        ([("light", "a"), ("warmth", "b"), ("features", "c")], None, r"gives 3 outputs \(a, b, c\)"),
        (
            [("light", "a"), ("warmth", "b")],
            ["a", "c"],
            r"model\.outputs: \[a, c\]; allowed: one, or 2 in the order of data\.targets, of a, b",
        ),
        ([("light", "a"), ("warmth", "b")], ["b"], r"gives 3 outputs; allowed: 5, the classes of the data"),
    ],
)
def test_outputs_that_do_not_fit_the_targets_are_one_line(
    outputs: Outputs, asked: list[str] | None, told: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=told) as found:
        taken(tmp_path, outputs, asked, TWO_TARGETS, 5)
    assert "\n" not in str(found.value)
