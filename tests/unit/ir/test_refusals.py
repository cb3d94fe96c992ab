"""What cannot be read is one short line: the operator, its module, the line of the user's code, and a way out."""

import inspect
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import tailor_ir
from tailor_ir.reading.places import lines_of, module_path

LONGEST = 300  # characters
X = torch.zeros(1, 3, 8, 8)


class Odd(nn.Module):
    """A layer whose operator is known to nobody."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return torch.special.bessel_j0(y)


class Counting(nn.Module):
    """A layer whose result has as many rows as there are large numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).unique().reshape(1, -1)


class Deep(nn.Module):
    """The layer inside `encoder.layers.1.attn`."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        block = nn.ModuleDict({"attn": layer})
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList([nn.Conv2d(3, 8, 1), block])})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, block = self.encoder["layers"]  # type: ignore[misc]
        return block["attn"](first(x))  # type: ignore[has-type]


def line_of(module: type[nn.Module], text: str) -> str:
    lines, first = inspect.getsourcelines(module)
    return f"test_refusals.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


def file_of(op: str, domain: str = "", stack: str = "", opset: int = 18, **settings: Any) -> onnx.ModelProto:
    """A file of one operator."""
    node = helper.make_node(op, ["x"], ["y"], "odd/thing", domain=domain, **settings)
    if stack:
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=stack)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8]) for name in "xy"]
    graph = helper.make_graph([node], "network", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def refusal(network: nn.Module | onnx.ModelProto) -> str:
    with pytest.raises(tailor_ir.ImportFailed) as error:
        tailor_ir.compile(network, X if isinstance(network, nn.Module) else None)
    text = str(error.value)
    assert len(text) < LONGEST, text
    assert "\n" not in text
    return text


@pytest.mark.parametrize(("layer", "op"), [(Odd, "bessel_j0"), (Counting, "Unique")])
def test_an_operator_is_told_with_its_module_and_the_line_of_the_code(layer: type[nn.Module], op: str) -> None:
    text = refusal(Deep(layer()).eval())
    assert op in text
    assert "'encoder.layers.1.attn'" in text
    assert line_of(layer, op.lower()) in text


def test_nothing_is_printed_before_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    refusal(Deep(Odd()).eval())
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""


def test_a_failure_of_the_network_itself_names_its_line() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(7)

    text = refusal(Broken())
    assert line_of(Broken, "reshape(7)") in text


@pytest.mark.parametrize(
    ("op", "domain", "told"),
    [
        ("MaxRoiPool", "", "operator 'MaxRoiPool' of opset 18 at 'odd/thing': not supported (near: 'MaxPool')"),
        ("Einsam", "", "(near: 'Einsum')"),
        ("QuickGelu", "com.microsoft", "(domain 'com.microsoft')"),
    ],
)
def test_an_unknown_operator_of_a_file_is_named_and_not_the_known_ones(op: str, domain: str, told: str) -> None:
    text = refusal(file_of(op, domain))
    assert told in text
    assert "Transpose" not in text


def test_the_line_that_an_exporter_wrote_into_a_file_is_told() -> None:
    stack = 'File "/code/net.py", line 3, in forward\n  y = f(x)\nFile "/code/layer.py", line 12, in f\n  odd(x)'
    assert "'odd/thing' (/code/layer.py:12)" in refusal(file_of("MaxRoiPool", stack=stack))
    assert lines_of(file_of("Relu")) == {}


def test_names_of_traced_nodes_are_paths_of_modules() -> None:
    assert module_path("/encoder/layers/layers.3/layers.3.attn/Conv") == "encoder.layers.3.attn"
    assert module_path("/Conv") == "/Conv"
    assert module_path("conv 1") == "conv 1"


def test_dilations_of_an_average_pool_are_told_with_the_convolution_that_is_one() -> None:
    stack = 'File "/code/net.py", line 3, in forward\n  y = pool(x)'
    text = refusal(file_of("AveragePool", stack=stack, opset=19, kernel_shape=[3, 3], dilations=[2, 2]))
    assert text.startswith("operator 'AveragePool' at 'odd/thing' (/code/net.py:3): dilations [2, 2]; allowed: 1; ")
    assert text.endswith("write it as a Conv with these dilations, one group for each channel, and weights of 1/9")
    assert len(text) <= 250


class Bags(nn.Module):
    """Bags of tokens one after the other, with the positions where each begins."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bag(x.flatten(), torch.arange(len(x)) * x.shape[1])


def test_bags_of_several_lengths_are_told_with_what_can_be_done() -> None:
    with pytest.raises(tailor_ir.ImportFailed) as error:
        tailor_ir.compile(Bags().eval(), torch.zeros(1, 5, dtype=torch.int64))
    text = str(error.value)
    assert text.startswith("network 'Bags': EmbeddingBag with offsets, ")
    assert f" at tests/unit/ir/{line_of(Bags, 'self.bag(')}; allowed: bags (B, T) of one length; pad them" in text
    assert len(text) <= 250


def recurrent(op: str, rows: int, **settings: Any) -> onnx.ModelProto:
    """A file of one recurrent layer over x (B, 5, 6), with 4 hidden features. rows: gates of the operator."""
    shapes = {"w": (1, rows * 4, 6), "r": (1, rows * 4, 4)}
    stored = [numpy_helper.from_array(np.full(shape, 0.1, np.float32), name) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node(op, ["steps", "w", "r"], ["", "y"], "odd/thing", hidden_size=4, **settings),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "batch", 4])
    return helper.make_model(helper.make_graph(nodes, "network", [x], [y], stored), ir_version=8)


@pytest.mark.parametrize(
    ("op", "rows", "settings", "told"),
    [
        ("LSTM", 4, {"activations": ["Sigmoid", "Relu", "Tanh"]}, "activations Sigmoid, Relu, Tanh"),
        ("LSTM", 4, {"input_forget": 1}, "input_forget=1"),
    ],
)
def test_a_recurrent_layer_that_torch_has_not_is_told_with_what_differs(
    op: str, rows: int, settings: dict[str, Any], told: str
) -> None:
    text = refusal(recurrent(op, rows, **settings))
    assert text.startswith(f"operator '{op}' at 'odd/thing': {told}; allowed: the form of torch.nn.{op}; write it in ")
    assert len(text) <= 250


class Strided(nn.Module):
    """Windows by strides, as Longformer's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        size, stride = (len(x), 3, 4, 8, 8), (192, 64, 8, 8, 1)
        return y.as_strided(size, stride)[:, :, 0]


def test_views_by_strides_are_told_in_a_short_line() -> None:
    text = refusal(Deep(Strided()).eval())
    assert "'encoder.layers.1.attn'" in text
    assert f"{line_of(Strided, 'as_strided')}): its numbers follow the batch (" in text
    assert text.endswith("; allowed: the same for each sample; write it for batches of any size")
    assert len(text) <= 250
