"""Alternatives to blocks: exact counts, the invariants of all SubNets, the first weights, and what is refused."""

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

import tailor_ir
from tailor_ir.alternatives import ALTERNATIVES
from tailor_ir.alternatives.convolutions import diagonal, ghosts, paired, separated, squeezed
from tailor_ir.alternatives.least_squares import ReplacedLayer
from tailor_ir.alternatives.low_rank import svd, tucker
from tailor_ir.errors import SpaceError
from tailor_ir.graph import Node
from tailor_ir.spaces.selectors import SpaceSpec
from tests.support import examples, long
from tests.support.ir.invariants import check_largest, check_subnet, difference
from tests.support.ir.networks import ResidualBlock, from_timm, perturb, small_net

SAMPLE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
ALL: SpaceSpec = {"alternatives": "auto"}
SIZES: SpaceSpec = {"*.width_mult": "auto", "*.depth": "auto", "*.expand_ratio": "auto", **ALL}


def kinds_of(net: tailor_ir.SuperNet) -> set[str]:
    names = {choice for v in net.space.variables if v.kind == "block" for choice in v.choices[:-1]}
    return {kind.name for kind in ALTERNATIVES.values() if not names.isdisjoint(kind.choices)}


@cache
def compiled(name: str) -> tuple[nn.Module, torch.Tensor, tailor_ir.SuperNet]:
    model, sample = from_timm(name)
    return model, sample, tailor_ir.compile(model, sample, SIZES)


# -- counts ------------------------------------------------------------------------------------------------------------


NAMED = ["merged_2", "merged_3", "pruned_0.5", "low_rank_0.5", "separable", "fire", "ghost"]


@cache
def legal_in(blocks: int, downsampling: bool) -> frozenset[str]:
    """Names of the alternatives that a small network can have."""
    net = tailor_ir.compile(small_net(blocks=blocks, downsampling=downsampling), SAMPLE, ALL)
    return frozenset(str(choice) for v in net.space.variables for choice in v.choices)


@pytest.mark.long
@settings(max_examples=examples(12), deadline=None)
@example(blocks=4, names={"merged_2", "merged_3", "pruned_0.5"}, depth=True, downsampling=False)
@example(blocks=4, names={"merged_2", "merged_3", "fire"}, depth=True, downsampling=True)
@given(
    blocks=st.integers(1, 4),
    names=st.sets(st.sampled_from(NAMED), min_size=1, max_size=3),
    depth=st.booleans(),
    downsampling=st.booleans(),
)
def test_counts_are_those_of_brute_force(blocks: int, names: set[str], depth: bool, downsampling: bool) -> None:
    downsampling &= blocks > 1
    legal = names & legal_in(blocks, downsampling)
    assume(legal)
    spec: SpaceSpec = {"alternatives": sorted(legal), **({"*.depth": "auto"} if depth and blocks > 1 else {})}
    net = tailor_ir.compile(small_net(blocks=blocks, downsampling=downsampling), SAMPLE, spec)
    seen = set()
    for row in product(*(range(n) for n in net.space.cardinalities)):
        subnet = net.structure.subnet(np.array(row))
        seen.add((tuple((node.name, node.inputs) for node in subnet.nodes), subnet.outputs))
    assert net.space.distinct == len(seen)


@pytest.mark.long
@settings(max_examples=examples(6), deadline=None)
@example(blocks=3, kinds={"merged", "pruned_0.5"})
@given(
    blocks=st.integers(2, 3),
    kinds=st.sets(st.sampled_from(["merged", "pruned_0.5", "separable"]), min_size=1, max_size=2),
)
def test_counts_with_elastic_sizes_are_those_of_brute_force(blocks: int, kinds: set[str]) -> None:
    spec: SpaceSpec = {
        "alternatives": sorted(kinds),
        "*.depth": "auto",
        "*.width_mult": [0.5, 1],
        "*.expand_ratio": [1, 2],
    }
    net = tailor_ir.compile(small_net(blocks=blocks), SAMPLE, spec)
    axes = net.structure.axis_map.axes
    seen = set()
    for row in product(*(range(n) for n in net.space.cardinalities)):
        subnet = net.structure.subnet(np.array(row))
        shapes = (tuple(map(subnet.sizes.shape, (axes[name] for name in node.inputs if name))) for node in subnet.nodes)
        seen.add((tuple((node.name, node.inputs) for node in subnet.nodes), tuple(shapes), subnet.outputs))
    assert net.space.distinct == len(seen)


# -- invariants --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("network", "kinds"),
    [
        long("resnet26", set(ALTERNATIVES)),
        ("mobilenetv2_050", {"merged", "pruned", "low_rank", "ghost"}),
        long("vit_tiny_patch16_224", {"merged", "pruned", "low_rank"}),
    ],
)
def test_all_kinds_keep_the_invariants(network: str, kinds: set[str], tmp_path: Path) -> None:
    model, sample, net = compiled(network)
    assert kinds_of(net) >= kinds
    check_largest(net, model, sample)
    rng = np.random.default_rng(0)
    unique = net.unique_operators().keys()
    for config in [net.min_config, *(net.space.sample(rng) for _ in range(6))]:
        check_subnet(net, config, tmp_path, sample)
        assert set(net.operators(config)) <= unique


@pytest.mark.long
def test_the_network_itself_keeps_its_weights_and_what_is_elastic() -> None:
    model, sample, net = compiled("resnet26")
    for name, tensor in model.state_dict().items():
        if name in net.structure.graph.initializers:
            assert torch.equal(net.elastic.tensor(name), tensor), name
    plain = tailor_ir.compile(model, sample, {name: value for name, value in SIZES.items() if name != "alternatives"})
    assert [v for v in net.space.variables if v.kind != "block"] == list(plain.space.variables)
    assert net.max_config.keys() >= plain.max_config.keys()


@pytest.mark.long
def test_a_config_of_names_is_saved_and_read(tmp_path: Path) -> None:
    net = compiled("resnet26")[2]
    net.save(tmp_path)
    again = tailor_ir.load(tmp_path)
    assert again.space.variables == net.space.variables
    config = {"stage.1.block.2.block": "merged_2"}
    assert again.space.digest(config) == net.space.digest(config) != net.space.digest({})
    assert "stage.1.block.1.block" not in again.space.canonical(config)
    assert again.macs(config) < again.macs({})


@pytest.mark.long
def test_each_alternative_takes_fewer_macs_in_the_order_of_its_choices() -> None:
    net = compiled("resnet26")[2]
    for variable in net.space.variables:
        if variable.kind == "block":
            assert variable.choices[-1] == "original"
            single = [one for one in variable.choices if not str(one).startswith("merged")]
            macs = [net.macs({variable.name: choice}) for choice in single]
            assert macs == sorted(macs), variable
            assert macs[-2] < macs[-1]


# -- weights that they begin with --------------------------------------------------------------------------------------


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def layer(weight: torch.Tensor) -> ReplacedLayer:
    return ReplacedLayer(node=Node(name="conv", op="Conv", inputs=("x", "w"), outputs=("y",)), weight=weight)


def test_low_rank_is_exact_at_full_rank() -> None:
    down, up = svd(layer(random(12, 20)), 12)
    assert torch.allclose(up @ down, random(12, 20))
    weight = random(10, 8, 3, 3)
    into, core, out = tucker(layer(weight), 8, 10)
    assert torch.allclose(torch.einsum("pi,qpkl,oq->oikl", into, core, out), weight)


def test_tucker_is_no_worse_than_its_first_projection() -> None:
    weight = random(24, 16, 3, 3)
    into, core, out = tucker(layer(weight), 6, 9)
    error = (torch.einsum("pi,qpkl,oq->oikl", into, core, out) - weight).norm()
    u = torch.linalg.svd(weight.permute(1, 0, 2, 3).flatten(1))[0][:, :6]
    w = torch.linalg.svd(weight.flatten(1))[0][:, :9]
    first = torch.einsum("oikl,ip,jp,oq,rq->rjkl", weight, u, u, w, w)
    assert error <= (first - weight).norm() * (1 + 1e-9)


def test_a_separable_kernel_is_found() -> None:
    depthwise, pointwise = random(6, 1, 3, 3), random(10, 6, 1, 1)
    weight = pointwise * depthwise.transpose(0, 1)
    first, second = separated(layer(weight))
    assert torch.allclose(second * first.transpose(0, 1), weight)


def test_groups_keep_what_they_read_themselves() -> None:
    weight = random(8, 4, 3, 3)
    grouped = diagonal(layer(weight), 2)
    assert torch.equal(grouped[:4], weight[:4, :2])
    assert torch.equal(grouped[4:], weight[4:, 2:])


def test_fire_is_exact_without_its_relu_and_at_full_rank() -> None:
    weight = random(8, 6, 3, 3)
    squeeze, expand = squeezed(weight, 6)
    assert torch.allclose(torch.einsum("oskl,si->oikl", expand, squeeze[:, :, 0, 0]), weight)


def test_ghosts_of_multiples_are_exact() -> None:
    first = random(4, 3, 3, 3) * torch.tensor([4.0, 3, 2, 5]).reshape(-1, 1, 1, 1)
    weight = torch.cat([first, 0.1 * first[[2, 0, 3, 1]]])
    ordered = weight[torch.from_numpy(paired(layer(weight)))]
    primary, cheap = ghosts(layer(ordered))
    assert torch.allclose(cheap[:, 0, 1, 1].reshape(-1, 1, 1, 1) * primary, ordered[4:])


@torch.no_grad()
def test_what_is_nearly_free_costs_nearly_nothing() -> None:
    """A network whose kernels are separable has the same answers with separable convolutions."""
    model, _ = from_timm("resnet26")
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            depthwise, pointwise = separated(layer(module.weight))
            module.weight.copy_(pointwise * depthwise.transpose(0, 1))
    sample = torch.randn(2, 3, 32, 32)
    net = tailor_ir.compile(model, sample[:1], {"alternatives": ["separable"]})
    net.elastic.eval().activate(net.min_config)
    assert difference(model(sample), net.elastic(sample)) <= 1e-4


class Scales(nn.Module):
    """One of two scales of channels, which lie in one tensor."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.rand(2, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scales.reshape(2, -1, 1, 1)[1]


def test_a_pruned_block_takes_one_row_of_a_tensor_of_weights(tmp_path: Path) -> None:
    model = small_net()
    for block in model.blocks:
        assert isinstance(block, ResidualBlock)
        block.body.insert(2, Scales(32))
    net = tailor_ir.compile(model, SAMPLE, {"alternatives": ["pruned"]})
    assert kinds_of(net) == {"pruned"}
    check_subnet(net, net.min_config, tmp_path, SAMPLE)


@pytest.mark.long
def test_a_block_that_ends_with_another_has_no_alternatives_of_its_own() -> None:
    model = perturb(timm.create_model("tiny_vit_5m_224", num_classes=10, depths=(1, 1, 1, 1)))
    net = tailor_ir.compile(model, torch.zeros(1, 3, 224, 224), {"alternatives": ["pruned", "merged"]})
    assert any(one.reason == "a block inside of it gives what it gives" for one in net.refused)
    values = [selection.value for selection in net.space.selections]
    assert len(values) == len(set(values)) == len(net.space.variables)


# -- wishes ------------------------------------------------------------------------------------------------------------


def test_alternatives_are_asked_for_by_selector_kind_and_name() -> None:
    spec: SpaceSpec = {"stage.1.block.*.block": ["pruned_0.5", "low_rank"], "stage.1.block.3.block": "frozen"}
    net = tailor_ir.compile(small_net(), SAMPLE, spec)
    found = {v.name: set(v.choices) for v in net.space.variables}
    assert found.keys() == {"stage.1.block.1.block", "stage.1.block.2.block"}
    assert all(choices >= {"pruned_0.5", "original"} and "pruned_0.25" not in choices for choices in found.values())
    assert not any(v.kind == "block" for v in tailor_ir.compile(small_net(), SAMPLE).space.variables)


def test_a_selector_asks_for_a_range_of_blocks() -> None:
    net = tailor_ir.compile(small_net(blocks=4), SAMPLE, {"stage.1.block.[2-3].block": ["pruned_0.5"]})
    assert [v.name for v in net.space.variables] == ["stage.1.block.2.block", "stage.1.block.3.block"]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"alternatives": ["mergd"]}, "mergd; allowed: merged, pruned, low_rank"),
        ({"alternatives": "all"}, "allowed: a list of choices, 'auto' or 'frozen'"),
        ({"stage.9.block.*.block": ["merged"]}, "no variable matches 'stage.9.block.*.block'"),
        ({"stage.1.block.1.block": ["fire"]}, "stage.1.block.1.block=fire: no convolution with a kernel"),
        ({"stage.1.block.1.block": ["merged_2"]}, "it stands for 2 blocks in a row, and there are 1 up to this one"),
        ({"stage.1.block.1.block": ["merged"]}, "'merged' is not legal there (stage.1.block.1.block=merged_2"),
        ({"alternatives": ["fire"]}, "'fire' is legal at no block"),
    ],
)
def test_wishes_that_cannot_be_met_are_one_line(spec: SpaceSpec, words: str) -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=10, depth=2).eval()
    with pytest.raises(SpaceError) as raised:
        tailor_ir.compile(perturb(model), torch.zeros(1, 3, 32, 32), spec)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_network_without_blocks_has_none_and_says_so() -> None:
    model = perturb(
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.Flatten(), nn.Linear(24 * 144, 5))
    )
    net = tailor_ir.compile(model, SAMPLE, {"*": "auto", "alternatives": "auto"})
    assert any(why.startswith("alternatives: the network has no blocks") for why in net.space.dropped)
    with pytest.raises(SpaceError, match="no variable matches"):
        tailor_ir.compile(model, SAMPLE, {"alternatives": ["pruned"]})


@pytest.mark.long
def test_what_is_not_legal_is_said() -> None:
    net = compiled("mobilenetv2_050")[2]
    assert all(one.reason for one in net.refused)
    assert any(one.choice == "fire" for one in net.refused)
