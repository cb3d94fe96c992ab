"""Networks in half, double and bfloat16 are read as float32, and take inputs of their own type."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import tailor_ir
from tests.support.ir.onnx_files import check_forms, convolutions, model_of, run

KINDS = {
    "float16": (torch.float16, TensorProto.FLOAT16),
    "float64": (torch.float64, TensorProto.DOUBLE),
    "bfloat16": (torch.bfloat16, TensorProto.BFLOAT16),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)).eval()


class Converting(nn.Module):
    """Weights in half behind inputs and before outputs in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network().half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.half()).float()


def check_all_float32(net: tailor_ir.SuperNet, folder: Path) -> None:
    assert {tensor.dtype for tensor in net.elastic.tensors().values() if tensor.is_floating_point()} == {torch.float32}
    net.export(net.min_config, folder / "net.onnx")
    exported = onnx.load(folder / "net.onnx")
    kinds = {one.type.tensor_type.elem_type for one in (*exported.graph.input, *exported.graph.output)}
    assert kinds == {TensorProto.FLOAT}
    assert net.macs(net.max_config) > net.macs(net.min_config) > 0
    assert net.peak_activation_bytes(net.max_config) % 4 == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_of_another_type_is_float32_inside(kind: str, tmp_path: Path) -> None:
    own, _ = KINDS[kind]
    module, plain = network().to(own), network()
    plain.load_state_dict(module.state_dict())
    net = tailor_ir.compile(module, torch.zeros(1, 3, 8, 8, dtype=own))
    assert any(f"the network is in {kind}" in remark and "float32" in remark for remark in net.remarks)
    check_all_float32(net, tmp_path)
    check_forms(net, tmp_path)
    x = torch.randn(3, 3, 8, 8).to(own)
    net.elastic.eval()
    net.elastic.activate(net.max_config)
    expected = plain(x.float())
    for answering in (net.elastic, net.build(net.max_config)):
        for given in (x, x.float()):
            answer = answering(given)
            assert answer.dtype == torch.float32
            assert torch.allclose(answer, expected, atol=1e-5)
    net.save(tmp_path / "saved")
    loaded = tailor_ir.load(tmp_path / "saved")
    assert loaded.structure.graph == net.structure.graph
    assert torch.equal(loaded.elastic.eval()(x), net.elastic(x))


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_of_another_type_is_trained(kind: str) -> None:
    own, _ = KINDS[kind]
    net = tailor_ir.compile(network().to(own), torch.zeros(1, 3, 8, 8, dtype=own))
    net.sort_channels()
    net.elastic.train()
    net.elastic(torch.randn(2, 3, 8, 8).to(own)).square().sum().backward()
    torch.optim.SGD(net.elastic.parameters(), 0.1).step()
    statistics = net.recalibrate(net.min_config, [torch.randn(2, 3, 8, 8).to(own)])
    assert {tensor.dtype for tensor in statistics.values()} == {torch.float32}


def test_a_module_that_converts_inside_is_float32(tmp_path: Path) -> None:
    module = Converting()
    net = tailor_ir.compile(module, torch.zeros(1, 3, 8, 8))
    check_all_float32(net, tmp_path)
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(net.elastic.eval()(x), module(x), atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", ["of that type", "float32"])
def test_a_file_of_another_type_is_float32_inside(kind: str, ends: str, tmp_path: Path) -> None:
    own, number = KINDS[kind]
    nodes, stored = convolutions()
    stored = [
        helper.make_tensor(t.name, number, t.dims, numpy_helper.to_array(t).ravel().astype(float)) for t in stored
    ]
    if ends == "float32":
        nodes[0].input[0], nodes[-1].output[0] = "x/cast", "y/cast"
        nodes.insert(0, helper.make_node("Cast", ["x"], ["x/cast"], to=number))
        nodes.append(helper.make_node("Cast", ["y/cast"], ["y"], to=TensorProto.FLOAT))
    outer = TensorProto.FLOAT if ends == "float32" else number
    model = model_of(nodes, stored, {"x": ["n", 3, 8, 8]}, {"y": ["n", 5]}, kind=outer)
    before = model.SerializeToString()
    net = tailor_ir.compile(model)
    assert model.SerializeToString() == before
    check_all_float32(net, tmp_path)
    check_forms(net, tmp_path)
    assert {node.op for node in net.structure.graph.nodes}.isdisjoint({"Cast"})
    x = torch.randn(3, 3, 8, 8).to(torch.float32 if ends == "float32" else own)
    net.elastic.activate(net.max_config)
    answer = net.elastic(x)
    nodes, stored = convolutions()
    (expected,) = run(model_of(nodes, stored, {"x": ["n", 3, 8, 8]}, {"y": ["n", 5]}), x.float().numpy())
    rounding = {"float16": 1e-3, "float64": 1e-6, "bfloat16": 1e-2}[kind]
    assert float(np.abs(answer.detach().numpy() - expected).max()) < rounding * float(np.abs(expected).max())


def test_numbers_beyond_float32_stay_finite() -> None:
    nodes = [helper.make_node("Max", ["x", "least"], ["y"])]
    least = numpy_helper.from_array(np.full((3,), np.finfo(np.float64).min), "least")
    net = tailor_ir.compile(model_of(nodes, [least], {"x": ["n", 3]}, {"y": ["n", 3]}, kind=TensorProto.DOUBLE))
    assert all(tensor.isfinite().all() for tensor in net.elastic.tensors().values())
