"""What cannot be read is one short line: the operator, its module, the line of the user's code, and a way out."""

import inspect

import onnx
import pytest
import torch
from onnx import TensorProto, helper
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
        first, block = self.encoder["layers"]
        return block["attn"](first(x))


def line_of(module: type[nn.Module], text: str) -> str:
    lines, first = inspect.getsourcelines(module)
    return f"test_refusals.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


def file_of(op: str, domain: str = "", stack: str = "") -> onnx.ModelProto:
    """A file of one operator."""
    node = helper.make_node(op, ["x"], ["y"], "odd/thing", domain=domain)
    if stack:
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=stack)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8]) for name in "xy"]
    graph = helper.make_graph([node], "network", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid(domain, 1)] if domain else [])]
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
