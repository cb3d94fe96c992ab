"""Shared weights: gradients, BatchNorm statistics of SubNets, sorted channels."""

from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir.subnets.onnx_export import to_onnx
from tests.support.ir.networks import from_timm, small_net

NETWORKS = ["resnet26", "mobilenetv3_small_050", "vit_tiny_patch16_224"]


@pytest.mark.few("mobilenetv3_small_050")
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_the_elastic_network_equal_those_of_the_built_subnet(name: str) -> None:
    network, sample = from_timm(name)
    net = tailor_ir.compile(network, sample)
    net.elastic.eval()
    config = net.space.sample(np.random.default_rng(1))
    x = torch.randn(net.input_shape(config, 2), generator=torch.Generator().manual_seed(0))
    net.elastic.activate(config)
    net.elastic(x).square().sum().backward()
    built = net.build(config)
    built(x).square().sum().backward()
    expected = sum(float(p.grad.abs().double().sum()) for p in built.parameters() if p.grad is not None)
    found = sum(float(p.grad.abs().double().sum()) for p in net.elastic.parameters() if p.grad is not None)
    assert expected > 0
    assert found == pytest.approx(expected, rel=1e-3)


def test_gradient_of_a_narrow_convolution_falls_on_its_slice_alone() -> None:
    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 32, 32))
    config = net.space.canonical({"stage.1.block.1.expand_ratio": 1.0})
    net.elastic.activate(config)
    net.elastic(torch.randn(2, 3, 32, 32)).sum().backward()
    gradient = net.elastic.weights["blocks/0/body/0/weight"].grad
    assert gradient is not None
    assert gradient[:16].abs().sum() > 0
    assert gradient[16:].abs().sum() == 0


def test_statistics_of_one_subnet_do_not_leak_into_another() -> None:
    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 32, 32))
    net.elastic.eval()
    x = torch.randn(4, 3, 32, 32)
    net.elastic.activate(net.max_config)
    before = net.elastic(x)
    small = net.recalibrate(net.min_config, [torch.randn(net.input_shape(net.min_config, 8)) * 3])
    net.elastic.activate(net.min_config, small)
    own = net.elastic(x[..., :16, :16])
    net.elastic.activate(net.min_config)
    shared = net.elastic(x[..., :16, :16])
    net.elastic.activate(net.max_config)
    assert torch.equal(net.elastic(x), before)
    assert not torch.equal(own, shared)


def test_recalibrated_statistics_are_means_over_the_batches() -> None:
    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 32, 32))
    batches = [torch.randn(8, 3, 32, 32) + i for i in range(3)]
    statistics = net.recalibrate(net.max_config, batches)
    model = small_net()
    stem = model.stem[0]
    with torch.no_grad():
        expected = torch.stack([stem(b).mean((0, 2, 3)) for b in batches]).mean(0)
    found = statistics["stem.1.running_mean"]
    assert torch.allclose(found, expected, atol=1e-5)


def test_statistics_follow_a_subnet_into_its_copy() -> None:
    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 32, 32))
    net.elastic.eval()
    config = net.min_config
    statistics = net.recalibrate(config, [torch.randn(net.input_shape(config, 16))])
    x = torch.randn(net.input_shape(config, 2))
    net.elastic.activate(config, statistics)
    assert torch.allclose(net.elastic(x), net.build(config, statistics)(x), atol=1e-6)


def test_training_uses_batch_statistics_and_writes_none() -> None:
    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 32, 32))
    before = {name: tensor.clone() for name, tensor in net.elastic.tensors().items()}
    net.elastic.train()
    net.elastic.activate(net.max_config)
    x = torch.randn(4, 3, 32, 32)
    model = small_net().train()
    assert torch.allclose(net.elastic(x), model(x), atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.elastic.tensors().items())


def test_two_users_of_one_weight_share_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            self.conv = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(torch.relu(self.conv(self.stem(x))))

    model = Tied().eval()
    net = tailor_ir.compile(model, torch.randn(1, 3, 16, 16))
    assert sorted(net.structure.graph.parameters) == ["conv.bias", "conv.weight", "stem.bias", "stem.weight"]
    x = torch.randn(2, 3, 16, 16)
    assert torch.allclose(net.elastic.eval()(x), model(x), atol=1e-5)


@torch.no_grad()
def test_channels_are_sorted_by_importance_and_the_function_stays() -> None:
    model = small_net()
    torch.nn.init.uniform_(model.get_parameter("blocks.0.body.1.weight"), 0.1, 2.0)
    net = tailor_ir.compile(model, torch.randn(1, 3, 32, 32))
    x = torch.randn(2, 3, 32, 32)
    before = net.elastic.eval()(x)
    net.sort_channels()
    assert torch.allclose(net.elastic(x), before, atol=1e-5)
    scale, own, later_scale, later_own = (
        net.elastic.tensor(f"blocks.0.body.{norm}.{name}").detach()
        for norm in (1, 4)
        for name in ("weight", "running_var")
    )
    deviation = scale.abs() * (own / (own + 1e-5)).sqrt()
    folded = (
        net.elastic.tensor("blocks.0.body.3.weight").detach() * (later_scale / later_own.sqrt())[:, None, None, None]
    )
    score = deviation * folded.abs().sum((0, 2, 3))
    assert torch.all(score[:-1] >= 0.999 * score[1:])


class SharedHead(nn.Module):
    """One head, a GroupNorm and linear maps among its layers, on two levels of features."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.linear = nn.Linear(8, 6)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x).relu().flatten(2).transpose(1, 2)).mean(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = self.stem(x).relu()
        return self.head(high) + self.head(self.down(high).relu())


def test_files_of_networks_that_share_weights_are_written_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = SharedHead().eval()
    net = tailor_ir.compile(model, torch.zeros(1, 3, 16, 16))
    net.unique_operators()
    net.export(net.max_config, tmp_path / "net.onnx")
    tailor_ir.compile(tmp_path / "net.onnx")
    assert capfd.readouterr() == ("", "")
    stored = onnx.load(tmp_path / "net.onnx").graph.initializer
    assert sum(list(tensor.dims) == [8, 6] for tensor in stored) == 1
    x = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    assert np.allclose(found, model(torch.from_numpy(x)).detach(), atol=1e-5)


def test_constants_of_one_name_keep_their_values() -> None:
    def number(value: float) -> gs.Constant:
        return gs.Constant("c", np.full(1, value, np.float32))

    x, y, z = (gs.Variable(name, np.float32, (1,)) for name in "xyz")
    nodes = [gs.Node("Add", "a", inputs=[x, number(1)], outputs=[y])]
    nodes += [gs.Node("Sum", "b", inputs=[y, number(2), number(1), number(2)], outputs=[z])]
    model = to_onnx(nodes, [x], [z], "sums")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.zeros(1, np.float32)})[0].tolist() == [6.0]
