"""A SubNet that has adapted has tensors of its own: networks and files have them, other SubNets and shared weights do not."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import nn

import tailor_ir
from tailor_ir import Config, SuperNet
from tests.support import examples
from tests.support.ir.elastic_networks import NETWORKS, Convolutional, compiled, inverted
from tests.support.ir.networks import perturb

TOLERANCE = 1e-5
"""Of the largest output, fp32."""


def transformed() -> SuperNet:
    """Kernels that follow from learned transforms: computed weights."""
    torch.manual_seed(0)
    network = perturb(Convolutional(inverted(7), inverted(7)))
    wish = {"*.kernel_size": [3, 5, 7], "*.expand_ratio": [1, 2]}
    return tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), wish, kernel_transform=True)


TRANSFORMED, TWICE = "learned transforms of kernels", "one module used twice"


@pytest.fixture(scope="module", params=[*(name for name in NETWORKS if name != TWICE), TRANSFORMED])
def net(request: pytest.FixtureRequest) -> SuperNet:
    return transformed() if request.param == TRANSFORMED else compiled(request.param)


def moved(network: nn.Module, rng: np.random.Generator, share: float) -> dict[str, torch.Tensor]:
    """A share of the floating-point tensors of a network, each a little greater than it is."""
    known = {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
    chosen = [name for name in known if rng.random() < share] or [next(iter(known))]
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    return {name: known[name] + 0.1 * torch.rand(known[name].shape, generator=generator) for name in chosen}


def answers(file: Path, x: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def sampled(net: SuperNet, rng: np.random.Generator) -> Config:
    return net.space.canonical(net.space.sample(rng))


@pytest.mark.few(3)
@settings(max_examples=examples(6))
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.2, 1.0]))
def test_networks_and_files_have_what_is_a_subnets_own(
    net: SuperNet, seed: int, share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("own")
    config, before = sampled(net, rng), {name: tensor.clone() for name, tensor in net.elastic.tensors().items()}
    network = net.build(config)
    state = moved(network, rng, share)
    network.load_state_dict(state, strict=False)
    own = net.own_tensors(config, state)
    built = net.build(config, own).state_dict()
    assert all(torch.equal(tensor, built[name]) for name, tensor in network.state_dict().items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.elastic.tensors().items())
    x = torch.from_numpy(rng.standard_normal(net.input_shape(config)).astype(np.float32))
    with torch.inference_mode():
        expected = network(x).numpy()
    net.export_together({"adapted": (config, own), "largest": (net.max_config, None)}, folder)
    net.export(config, folder / "alone.onnx", statistics=own, fold_batch_norm=True)
    for name in ("adapted.onnx", "alone.onnx"):
        assert np.abs(answers(folder / name, x) - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_files_beside_an_adapted_subnet_are_as_they_were(net: SuperNet, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    config = net.min_config
    own = net.own_tensors(config, moved(net.build(config), rng, 1.0))
    x = torch.from_numpy(rng.standard_normal(net.input_shape(net.max_config)).astype(np.float32))
    found = {}
    for name, tensors in (("before", None), ("adapted", own)):
        (tmp_path / name).mkdir()
        net.export_together({"largest": (net.max_config, None), "small": (config, tensors)}, tmp_path / name)
        found[name] = load_file(tmp_path / name / "weights.safetensors"), answers(tmp_path / name / "largest.onnx", x)
    assert np.array_equal(found["before"][1], found["adapted"][1])
    after = {tensor.tobytes() for tensor in found["adapted"][0].values()}
    common = {name: tensor for name, tensor in found["before"][0].items() if name.endswith("/common")}
    assert common
    assert all(tensor.tobytes() in after for tensor in common.values())


def test_a_tensor_that_two_layers_have_is_one_tensor_of_the_network() -> None:
    net = compiled(TWICE)
    network = net.build(net.max_config)
    names = [name for name, _ in network.named_parameters()]
    both = [name for name in names if len(net.own_tensors(net.max_config, {name: torch.ones(1)})) == 1]
    assert both == names
    every = net.own_tensors(net.max_config, dict(network.named_parameters()))
    assert len(every) < len(names)
