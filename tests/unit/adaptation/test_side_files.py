"""SubNets of every kind of normalisation adapt alone: the SuperNet stays as it is, side files fit one SubNet."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

from tailor_ir import Config, SuperNet
from tasks.adaptation import (
    METHODS,
    AdaptiveSubnet,
    MethodName,
    MethodSettings,
    load_adapted,
    make_method,
    save_adapted,
)
from tasks.base.errors import UserError
from tasks.evaluation.adapted import read_side_file
from tests.support.adaptation.small_subnets import batches, smallest, supernet


@pytest.fixture(scope="module", params=["batch", "layer", "group"])
def net(request: pytest.FixtureRequest) -> SuperNet:
    return supernet(request.param)


def adapted(net: SuperNet, config: Config, name: MethodName = "tent", seed: int = 0) -> AdaptiveSubnet:
    subnet = AdaptiveSubnet.of(net, config)
    source = batches(1, 4)
    settings = MethodSettings(method=name, learning_rate=0.01, views=2, entropy_share=1.0, recover_below=0.0)
    method = make_method(subnet, settings, source)
    for x_BCHW in batches(2, shift=1.0, seed=seed + 1):
        assert method.adapt(x_BCHW).shape == (8, 5)
    return subnet


@pytest.mark.parametrize("name", METHODS)
def test_adapting_a_subnet_leaves_all_weights_of_the_supernet_bit_equal(net: SuperNet, name: MethodName) -> None:
    before = {key: tensor.clone() for key, tensor in net.elastic.tensors().items()}
    x_BCHW = batches(1)[0]
    largest = net.build(net.max_config)(x_BCHW)
    subnet = adapted(net, smallest(net), name)
    learns = name != "batchnorm" or subnet.has_statistics
    assert bool(subnet.state()) == learns
    after = net.elastic.tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())
    assert torch.equal(net.build(net.max_config)(x_BCHW), largest)


def test_a_subnet_that_has_not_adapted_answers_as_the_built_one(net: SuperNet) -> None:
    x_BCHW = batches(1)[0]
    subnet = AdaptiveSubnet.of(net, smallest(net))
    assert torch.equal(subnet(x_BCHW), net.build(smallest(net))(x_BCHW))
    other = adapted(net, smallest(net))
    assert not torch.equal(other(x_BCHW), subnet(x_BCHW))
    other.reset()
    assert torch.equal(other(x_BCHW), subnet(x_BCHW))


def test_a_side_file_brings_a_subnet_back_as_it_was(net: SuperNet, tmp_path: Path) -> None:
    file = tmp_path / "adapted.safetensors"
    subnet = adapted(net, smallest(net))
    save_adapted(file, subnet, net, smallest(net))
    other = AdaptiveSubnet.of(net, smallest(net))
    load_adapted(file, other, net, smallest(net))
    x_BCHW = batches(1)[0]
    assert torch.equal(other(x_BCHW), subnet(x_BCHW))
    assert other.rule.steps == subnet.rule.steps == 2
    assert read_side_file(file).sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    plain = net.build(smallest(net))
    plain.load_state_dict(subnet.state(), strict=False)
    assert torch.equal(plain(x_BCHW), subnet(x_BCHW))
    largest = sum(tensor.numel() for tensor in net.build(smallest(net)).state_dict().values())
    assert sum(tensor.numel() for tensor in subnet.state().values()) < largest / 3


def test_a_side_file_of_another_subnet_is_one_clear_line(tmp_path: Path) -> None:
    net = supernet("batch")
    file = tmp_path / "adapted.safetensors"
    save_adapted(file, adapted(net, smallest(net)), net, smallest(net))
    largest = AdaptiveSubnet.of(net, net.max_config)
    digests = [net.space.digest(config) for config in (smallest(net), net.max_config)]
    with pytest.raises(
        UserError, match=rf"belongs to the SubNet {digests[0]}; allowed: {digests[1]}; load the side file"
    ):
        load_adapted(file, largest, net, net.max_config)
    assert largest.state() == {}
    statistics = net.recalibrate(smallest(net), batches(1, shift=2.0))
    with pytest.raises(UserError, match="belongs to the SubNet with the BatchNorm statistics"):
        load_adapted(file, AdaptiveSubnet.of(net, smallest(net), statistics), net, smallest(net))
    with torch.no_grad():
        next(iter(net.elastic.parameters())).add_(1)
    with pytest.raises(UserError, match="belongs to the SuperNet"):
        load_adapted(file, AdaptiveSubnet.of(net, smallest(net)), net, smallest(net))


@pytest.mark.parametrize("content", [b"", b"no tensors", None])
def test_a_side_file_that_is_torn_is_one_clear_line(content: bytes | None, tmp_path: Path) -> None:
    net = supernet("group")
    file = tmp_path / "adapted.safetensors"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"side file '.*' *: cannot be read .*adapt the SubNet again"):
        load_adapted(file, AdaptiveSubnet.of(net, smallest(net)), net, smallest(net))


def test_a_network_without_normalisation_cannot_adapt() -> None:
    with pytest.raises(UserError, match="no normalisation layer with a scale; allowed: networks with BatchNorm"):
        AdaptiveSubnet(nn.Linear(3, 3))
