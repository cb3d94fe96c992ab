"""The elastic network as a module: plans and modules that are reused, values that are kept, statistics that stay apart."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import tailor_ir
from tailor_ir.axes import Fixed, Product, Sizes, Spatial, Window
from tailor_ir.subnets.plans import make_cut
from tests.support.ir.elastic_networks import NETWORKS, compiled, complete, sample_input
from tests.support.ir.invariants import difference

TOLERANCE = 1e-5
BIAS = "relative position bias, looked up and resampled"
DEPTHWISE = "depthwise convolution, centre of the kernel"


def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def net() -> tailor_ir.SuperNet:
    """Looked up, resampled and cut: every kind of weight that is more than a view."""
    net = compiled(BIAS)
    net.elastic.eval()
    return net


# -- modules and plans -----------------------------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_a_module_made_for_one_subnet_is_wrong_in_no_other(name: str) -> None:
    net = compiled(name)
    net.elastic.eval()
    rng = np.random.default_rng(3)
    configs = [net.space.sample(rng) for _ in range(15)]
    for config in (*configs, *reversed(configs)):
        x = sample_input(net, config)
        net.elastic.activate(config)
        assert difference(net.build(config)(x), net.elastic(x)) <= TOLERANCE, config


@torch.no_grad()
def test_plans_that_had_to_go_are_made_again(net: tailor_ir.SuperNet, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("elastic.PLANS_KEPT", "elastic.OUTLINES_KEPT", "plans.CUTS_KEPT"):
        monkeypatch.setattr(f"tailor_ir.subnets.{limit}", 1)
    monkeypatch.setattr("tailor_ir.subnets.lowering.MODULES_KEPT", 1)
    rng = np.random.default_rng(4)
    for config in [net.space.sample(rng) for _ in range(10)]:
        x = sample_input(net, config)
        net.elastic.activate(config)
        assert difference(net.build(config)(x), net.elastic(x)) <= TOLERANCE, config


@torch.no_grad()
def test_an_activation_leaves_nothing_behind(net: tailor_ir.SuperNet) -> None:
    x = sample_input(net, net.max_config)
    before = net.elastic(x)
    net.elastic.activate(net.min_config)
    net.elastic(sample_input(net, net.min_config))
    net.elastic.activate(net.max_config)
    assert torch.equal(net.elastic(x), before)


# -- values that are kept while no gradients are needed --------------------------------------------------------------


def _in_place(net: tailor_ir.SuperNet) -> None:
    with torch.no_grad():
        for parameter in net.elastic.parameters():
            parameter.mul_(0.7)


def _by_an_optimiser(net: tailor_ir.SuperNet) -> None:
    _train_once(net, torch.optim.SGD(net.elastic.parameters(), lr=0.1))


def _by_fused_sgd(net: tailor_ir.SuperNet) -> None:
    """As in `_by_an_optimiser`, but torch does not count up the versions of the parameters."""
    _train_once(net, torch.optim.SGD(net.elastic.parameters(), lr=0.1, fused=True))


def _by_fused_adamw(net: tailor_ir.SuperNet) -> None:
    _train_once(net, torch.optim.AdamW(net.elastic.parameters(), lr=0.1, fused=True))


def _train_once(net: tailor_ir.SuperNet, optimiser: torch.optim.Optimizer) -> None:
    with torch.enable_grad():
        net.elastic(torch.ones(2, 3, 16, 16)).square().sum().backward()
    optimiser.step()


def _scaled(net: tailor_ir.SuperNet) -> dict[str, torch.Tensor]:
    state = net.elastic.state_dict()
    return {name: 0.7 * tensor if name.startswith("weights.") else tensor for name, tensor in state.items()}


def _by_loading(net: tailor_ir.SuperNet) -> None:
    net.elastic.load_state_dict(_scaled(net))


def _by_assigning(net: tailor_ir.SuperNet) -> None:
    net.elastic.load_state_dict(_scaled(net), assign=True)


CHANGES = (_in_place, _by_an_optimiser, _by_fused_sgd, _by_fused_adamw, _by_loading, _by_assigning)


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_changed_weights_are_seen_by_the_next_call(
    net: tailor_ir.SuperNet, change: Callable[[tailor_ir.SuperNet], None]
) -> None:
    config = complete(net, {"resolution": 16, "stage.1.block.1.heads": 2})
    x = sample_input(net, config)
    net.elastic.activate(config)
    before, version = net.elastic(x), net.elastic.version
    assert torch.equal(net.elastic(x), before)
    assert net.elastic.version == version
    change(net)
    assert net.elastic.version != version
    after = net.elastic(x)
    assert difference(before, after) > 1e-3
    assert difference(net.build(config)(x), after) <= TOLERANCE


@torch.no_grad()
def test_a_copy_shares_nothing(net: tailor_ir.SuperNet) -> None:
    net.elastic.activate(net.min_config)
    x = sample_input(net, net.min_config)
    before = net.elastic(x)
    other = copy.deepcopy(net)
    assert torch.equal(other.elastic(x), before)
    for parameter in other.elastic.parameters():
        parameter.mul_(0.7)
    assert difference(before, other.elastic(x)) > 1e-3
    assert difference(other.build(net.min_config)(x), other.elastic(x)) <= TOLERANCE
    assert torch.equal(net.elastic(x), before)


@torch.no_grad()
def test_mixed_precision_is_over_when_it_is_over(net: tailor_ir.SuperNet) -> None:
    config = complete(net, {"resolution": 16})
    x = sample_input(net, config)
    net.elastic.activate(config)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = net.elastic(x)
    assert mixed.dtype == torch.bfloat16
    assert difference(net.build(config)(x), net.elastic(x)) <= TOLERANCE


def test_what_inference_mode_has_made_can_be_trained(net: tailor_ir.SuperNet) -> None:
    config = complete(net, {"resolution": 16, "stage.1.block.1.heads": 2, "stage.1.block.1.v_scale": 1})
    x = sample_input(net, config)
    with torch.inference_mode():
        net.elastic.activate(config)
        expected = net.elastic(x)
    found = net.elastic(x)
    found.sum().backward()
    assert torch.equal(found, expected)
    assert any(p.grad is not None and bool(p.grad.any()) for p in net.elastic.parameters())


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_another_element_type_reaches_everything(name: str) -> None:
    net = compiled(name)
    net.elastic.eval()
    config = complete(net, net.min_config)
    x = sample_input(net, config)
    net.elastic.activate(config)
    expected = net.elastic(x)
    net.elastic.double()
    found = net.elastic(x.double())
    assert found.dtype == torch.float64
    assert difference(expected.double(), found) <= TOLERANCE


# -- BatchNorm statistics --------------------------------------------------------------------------------------------


def test_recalibrating_one_subnet_changes_no_other_and_nothing_shared() -> None:
    net = compiled(DEPTHWISE)
    net.elastic.eval()
    shared = copies(net.elastic.tensors())
    batches = {
        name: [3 * sample_input(net, config, 8, seed) + 1 for seed in range(2)]
        for name, config in (("a", net.max_config), ("b", complete(net, net.min_config)))
    }
    a = net.recalibrate(net.max_config, batches["a"])
    kept = copies(a)
    b = net.recalibrate(complete(net, net.min_config), batches["b"])
    assert equal(a, kept)
    assert equal(net.elastic.tensors(), shared)
    assert {name for name in b if b[name].shape != a[name].shape}
    assert equal(net.recalibrate(net.max_config, batches["a"]), kept)
    with torch.no_grad():
        net.elastic.activate(net.max_config, a)
        x = sample_input(net, net.max_config)
        own = net.elastic(x)
        assert difference(net.build(net.max_config, a)(x), own) <= TOLERANCE
        net.elastic.activate(net.max_config)
        assert difference(own, net.elastic(x)) > 1e-3


def test_training_writes_no_statistics() -> None:
    net = compiled(DEPTHWISE)
    shared = copies(net.elastic.tensors())
    net.elastic.train()
    for config in (net.max_config, net.min_config):
        net.elastic.activate(config)
        net.elastic(sample_input(net, config, 4)).sum().backward()
    with torch.no_grad():
        net.elastic(sample_input(net, net.min_config, 4))
    assert equal(net.elastic.tensors(), shared)


def test_statistics_of_a_norm_with_two_places_are_means_over_both() -> None:
    net = compiled("one module used twice")
    x = sample_input(net, net.max_config, 8)
    found = net.recalibrate(net.max_config, [x])["block.body.1.running_mean"]
    elastic = net.elastic
    weight, bias = elastic.tensor("block.body.0.weight"), elastic.tensor("block.body.0.bias")
    inputs: list[torch.Tensor] = []
    first = [n for n in elastic.structure.graph.nodes if n.op == "Conv" and n.inputs[1] == "block.body.0.weight"]
    assert len(first) == 2
    with torch.no_grad():
        elastic.train()  # as when statistics are taken, every norm uses those of the batch
        for module in elastic.batch_norms:
            module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        elastic(x)
        elastic.eval()
    before = [x_BCHW for x_BCHW in inputs if x_BCHW.shape[1] == len(bias)][::2]
    expected = torch.stack([x_BCHW.mean((0, 2, 3)) for x_BCHW in before]).mean(0)
    assert weight.shape[0] == len(found)
    assert torch.allclose(found, expected, atol=1e-5)


# -- what a SubNet has -----------------------------------------------------------------------------------------------


@pytest.mark.long_cases("position embedding, resampled")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_subnet_has_nothing_that_only_skipped_blocks_needed(name: str) -> None:
    net = compiled(name)
    elastic = net.elastic
    config = net.min_config
    subnet = net.structure.subnet(net.space.row(config))
    assert len(subnet.nodes) < len(elastic.structure.graph.nodes)
    read = {name for node in subnet.nodes for name in node.inputs} | set(subnet.outputs)
    assert all(read.intersection(node.outputs) for node in subnet.nodes)
    built = net.build(config)
    built(sample_input(net, config)).sum().backward()
    assert [name for name, parameter in built.named_parameters() if parameter.grad is None] == []


def test_every_call_of_a_built_subnet_has_a_module_of_its_own(net: tailor_ir.SuperNet) -> None:
    built = net.build(net.max_config)
    assert isinstance(built, torch.fx.GraphModule)
    targets = [str(node.target) for node in built.graph.nodes if node.op == "call_module"]
    assert len({id(built.get_submodule(target)) for target in targets}) == len(targets) > 20


def test_the_bias_of_a_skipped_attention_is_gone(net: tailor_ir.SuperNet) -> None:
    elastic = net.elastic
    biases = [
        name
        for name in elastic.structure.graph.parameters
        if name.endswith(".bias") and elastic.tensor(name).dim() == 2
    ]
    row = net.space.row({"stage.1.depth": -1})
    read = {n for node in net.structure.subnet(row).nodes for n in node.inputs}
    assert len(biases) == 2
    assert len(read.intersection(biases)) == 1


# -- resampling ------------------------------------------------------------------------------------------------------


def _grid(side: int, patch: int) -> tuple[Sizes, tuple[Window, Window]]:
    """Rows and columns of patches of an image of side × patch pixels; sizes at half of it."""
    height, width = Spatial(side * patch, 0), Spatial(side * patch, 1)
    half = side * patch // 2
    axes = tuple(Window(side, source, patch, 1 - patch, ceil=False) for source in (height, width))
    return Sizes(groups={}, spatial=(half, half), batch=1), axes  # type: ignore[return-value]


@pytest.mark.parametrize("side", [8, 64])
def test_flattened_positions_are_resampled_as_an_image(side: int) -> None:
    sizes, (rows, columns) = _grid(side, 4)
    cut = make_cut((Fixed(1), Product(side**2, (rows, columns)), Fixed(3)), sizes)
    assert cut is not None
    tensor = torch.randn(1, side**2, 3)
    image_BCHW = tensor.reshape(1, side, side, 3).permute(0, 3, 1, 2)
    expected = F.interpolate(image_BCHW, scale_factor=0.5, mode="bicubic").flatten(2).transpose(1, 2)
    assert difference(expected, cut(tensor)) <= TOLERANCE


def test_labels_are_taken_from_the_nearest_position() -> None:
    side = 8
    sizes, (rows, columns) = _grid(side, 4)
    cut = make_cut((Product(side**2, (rows, columns)),), sizes, labels=True)
    assert cut is not None
    tensor = torch.randint(0, 2, (side**2,), dtype=torch.bool)
    image_BCHW = tensor.reshape(1, 1, side, side).float()
    expected = F.interpolate(image_BCHW, size=(side // 2, side // 2), mode="nearest-exact").flatten().bool()
    assert torch.equal(cut(tensor), expected)
