"""Gradients of the elastic network are those of the built SubNet, carried back through cuts, look-ups and resampling."""

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir.spaces.selectors import Config
from tailor_ir.subnets.lowering import Lowering
from tailor_ir.subnets.plans import make_cut
from tests.support.ir.elastic_networks import NETWORKS, compiled, complete, network, sample_input

TOLERANCE = 1e-4  # relative to the largest gradient of the tensor, fp32
NO_GRADIENT = 1e-5  # of the largest of all: rounding alone, as of the bias of keys before a softmax
SUBNETS = 6

# what a network must have for its test to mean anything: operators, and kinds of variables
HAS = {
    "convolution and BatchNorm": ({"Conv", "BatchNormalization", "Linear"}, {"expand_ratio", "resolution"}),
    "depthwise convolution, centre of the kernel": ({"Conv", "BatchNormalization"}, {"expand_ratio", "kernel_size"}),
    "grouped convolution and GroupNorm": ({"Conv", "GroupNorm"}, {"expand_ratio"}),
    "standardised weights": ({"Conv", "BatchStandardization"}, {"expand_ratio"}),
    "attention, linear and LayerNorm": (
        {"Linear", "LayerNormalization", "MatMul"},
        {"width_mult", "expand_ratio", "heads", "v_scale"},
    ),
    "position embedding, resampled": ({"Linear", "Add"}, {"resolution", "heads"}),
    "relative position bias, looked up and resampled": ({"Gather"}, {"resolution", "heads"}),
    "one module used twice": ({"Conv", "BatchNormalization"}, {"width_mult", "depth"}),
}


def stored_values(net: tailor_ir.SuperNet, config: Config) -> dict[str, torch.Tensor]:
    """Stored tensors as a SubNet uses them, and what it computes from them alone; differentiable."""
    elastic = net.elastic
    subnet = net.structure.subnet(net.space.row(config))
    lowering = Lowering(elastic.structure.graph, elastic.tensors(), elastic.structure.axis_map)
    values = {}
    for name in elastic.structure.graph.initializers:
        cut = make_cut(elastic.structure.axis_map.axes[name], subnet.sizes, labels=name in elastic.labels)
        values[name] = elastic.tensor(name) if cut is None else cut(elastic.tensor(name))
    for node in subnet.nodes:
        if node.outputs[0] not in lowering.data:
            lowered = lowering.lower(node, subnet.sizes)
            values[node.outputs[0]] = lowered.module(*(values[operand] for operand in lowered.inputs))
    return values


def backward(model: nn.Module, x: torch.Tensor) -> None:
    y = model(x)
    (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(7))).sum().backward()


def expected_gradients(net: tailor_ir.SuperNet, config: Config, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of the shared parameters from those of the built SubNet, each of which must be found among the values."""
    built = net.build(config)
    backward(built, x)
    values = {n: v for n, v in stored_values(net, config).items() if v.requires_grad}
    net.elastic.zero_grad()
    outputs, gradients = [], []
    for name, parameter in built.named_parameters():
        assert parameter.grad is not None, f"{name} has no use"
        same = [v for v in values.values() if v.shape == parameter.shape and torch.allclose(v, parameter, atol=1e-6)]
        assert len(same) == 1, (name, len(same))
        outputs.append(same[0])
        gradients.append(parameter.grad)
    torch.autograd.backward(outputs, gradients)
    return {n: p.grad.clone() for n in net.structure.graph.parameters if (p := net.elastic.tensor(n)).grad is not None}


def check(net: tailor_ir.SuperNet, config: Config) -> None:
    x = sample_input(net, config)
    expected = expected_gradients(net, config, x)
    assert expected
    net.elastic.eval()
    net.elastic.activate(config)
    net.elastic.zero_grad()
    backward(net.elastic, x)
    floor = NO_GRADIENT * max(float(g.abs().max()) for g in expected.values())
    for name in net.structure.graph.parameters:
        found = net.elastic.tensor(name).grad
        if name not in expected:
            assert found is None, f"{name} belongs to nothing that runs"
            continue
        assert found is not None, name
        allowed = TOLERANCE * float(expected[name].abs().max()) + floor
        assert float((found - expected[name]).abs().max()) <= allowed, (name, config)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_has_what_its_name_says(name: str) -> None:
    net = compiled(name)
    operators, kinds = HAS[name]
    assert operators <= {node.op for node in net.structure.graph.nodes}
    assert kinds <= {variable.kind for variable in net.space.variables}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_the_built_subnet(name: str) -> None:
    net = compiled(name)
    rng = np.random.default_rng(0)
    smallest = {variable.name: variable.choices[0] for variable in net.space.variables}
    check(net, net.max_config)
    check(net, net.min_config)
    check(net, complete(net, smallest))
    for _ in range(SUBNETS):
        check(net, net.space.sample(rng))


def test_gradients_of_subnets_add_up_in_the_shared_weights() -> None:
    net = compiled("depthwise convolution, centre of the kernel")
    net.elastic.eval()
    configs = [net.max_config, net.min_config]
    apart: dict[str, torch.Tensor] = {}
    for config in configs:
        net.elastic.zero_grad()
        net.elastic.activate(config)
        backward(net.elastic, sample_input(net, config))
        for name in net.structure.graph.parameters:
            gradient = net.elastic.tensor(name).grad
            if gradient is not None:
                apart[name] = apart.get(name, torch.zeros_like(gradient)) + gradient
    net.elastic.zero_grad()
    for config in configs:
        net.elastic.activate(config)
        backward(net.elastic, sample_input(net, config))
    for name, expected in apart.items():
        found = net.elastic.tensor(name).grad
        assert found is not None
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max())), name


def test_a_module_used_twice_is_one_parameter_and_its_gradients_add_up() -> None:
    net = compiled("one module used twice")
    names = [n for n in net.structure.graph.parameters if n.startswith("block.")]
    assert sorted(names) == sorted(f"block.body.{i}.{kind}" for i in (0, 1, 3, 4, 6) for kind in ("weight", "bias")), (
        "each tensor of the block is there once"
    )
    model = network("one module used twice")
    x = sample_input(net, net.max_config)
    backward(model, x)
    net.elastic.eval()
    net.elastic.activate(net.max_config)
    backward(net.elastic, x)
    for name, parameter in model.named_parameters():
        found = net.elastic.tensor(name).grad
        assert found is not None
        assert parameter.grad is not None
        assert torch.allclose(found, parameter.grad, rtol=1e-4, atol=1e-5 * float(parameter.grad.abs().max())), name
