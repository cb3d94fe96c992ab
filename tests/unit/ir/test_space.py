"""Counting, canonical configs, selectors and refusals."""

from itertools import product

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tailor_ir
from tailor_ir import Config
from tailor_ir.errors import SpaceError
from tailor_ir.spaces.selectors import SpaceSpec
from tests.support import examples
from tests.support.ir.networks import small_net

SAMPLE = torch.randn(1, 3, 32, 32)


@pytest.fixture(scope="module")
def net() -> tailor_ir.SuperNet:
    wish: SpaceSpec = {
        "resolution": [16, 32],
        "stage.1.depth": [-2, -1, 0],
        "stage.1.width_mult": [0.5, 1],
        "stage.1.block.*.expand_ratio": [0.5, 1, 2],
    }
    return tailor_ir.compile(small_net(), SAMPLE, wish)


def all_configs(net: tailor_ir.SuperNet) -> list[Config]:
    """Every combination of choices."""
    names = [variable.name for variable in net.space.variables]
    return [dict(zip(names, c, strict=True)) for c in product(*(v.choices for v in net.space.variables))]


def test_counts_of_a_small_space(net: tailor_ir.SuperNet) -> None:
    assert net.space.modifications == 2 + 3 + 2 + 3 * 3
    assert net.space.codes == len(all_configs(net)) == 2 * 3 * 2 * 27


def test_distinct_counts_subnets_that_differ_by_brute_force(net: tailor_ir.SuperNet) -> None:
    different = {net.operators(config) for config in all_configs(net)}
    assert net.space.distinct == len(different)
    assert len({net.space.digest(config) for config in all_configs(net)}) == len(different)


@pytest.mark.long
@settings(max_examples=examples(25), deadline=None)
@given(channels=st.sampled_from([8, 12, 24]), hidden=st.sampled_from([8, 20, 48]), blocks=st.integers(2, 3))
def test_distinct_is_exact_for_random_networks(channels: int, hidden: int, blocks: int) -> None:
    net = tailor_ir.compile(small_net(channels, hidden, blocks), SAMPLE)
    sampled = all_configs(net)
    if len(sampled) > 3000:
        sampled = [c for c in sampled if c.get("resolution") == net.max_config.get("resolution")]
    different = {net.operators(config) for config in sampled}
    factor = 1 if len(sampled) == net.space.codes else len(net.space.variables[0].choices)
    assert net.space.distinct == factor * len(different)


def test_equal_subnets_have_equal_canonical_configs(net: tailor_ir.SuperNet) -> None:
    by_operators: dict[tuple, Config] = {}
    for config in all_configs(net):
        canonical = net.space.canonical(config)
        assert by_operators.setdefault(net.operators(config), canonical) == canonical
        assert net.operators(canonical) == net.operators(config)
        assert net.space.canonical(canonical) == canonical


def test_canonical_drops_the_variables_of_skipped_blocks(net: tailor_ir.SuperNet) -> None:
    canonical = net.space.canonical({"stage.1.depth": -2, "stage.1.block.3.expand_ratio": 0.5})
    assert "stage.1.block.3.expand_ratio" not in canonical
    assert "stage.1.block.1.expand_ratio" in canonical


def test_encoding_round_trips(net: tailor_ir.SuperNet) -> None:
    rng = np.random.default_rng(0)
    configs = [net.space.sample(rng) for _ in range(50)]
    codes = net.space.encode(configs)
    assert [net.space.decode(row) for row in codes] == configs
    assert np.array_equal(net.space.canonical_codes(codes), codes)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"stage.9.depth": [0, -1]}, "no variable matches 'stage.9.depth'; allowed: resolution, stage.1.depth"),
        ({"stage.1.depth": [0, -3]}, r"stage.1.depth=-3 leaves no block .*\(3 blocks\); allowed: 0, -1, -2"),
        ({"stage.1.depth": [-1]}, "must include 0"),
        ({"stage.1.width_mult": [0.5, 1.5, 1]}, "allowed: above 0, up to 1"),
        ({"stage.1.width_mult": [0.9, 1]}, "the same 16 channels as another choice"),
        ({"stage.1.block.1.expand_ratio": [2, 4]}, "up to the network's own, 2"),
        ({"resolution": [64, 32]}, "larger than the network's own, 32"),
        ({"resolution": "all"}, "allowed: a list of choices, 'auto' or 'frozen'"),
    ],
)
def test_bad_spaces_are_refused(wish: dict, message: str) -> None:
    with pytest.raises(tailor_ir.SpaceError, match=message):
        tailor_ir.compile(small_net(), SAMPLE, wish)


def test_what_is_not_named_stays_as_it_is() -> None:
    net = tailor_ir.compile(small_net(), SAMPLE, {"stage.*.depth": "auto"})
    assert [variable.name for variable in net.space.variables] == ["stage.1.depth"]


def test_the_beginning_of_names_stands_for_all_variables_under_it() -> None:
    kinds = [v.kind for v in tailor_ir.compile(small_net(), SAMPLE, {"stage.1": "auto"}).space.variables]
    assert kinds == ["depth", "expand_ratio", "expand_ratio", "expand_ratio"]
    net = tailor_ir.compile(small_net(), SAMPLE, {"stage": "auto", "stage.1.block": "frozen"})
    assert [variable.name for variable in net.space.variables] == ["stage.1.depth"]


def test_equal_widths_of_a_selector_of_several_are_left_out_with_a_word() -> None:
    net = tailor_ir.compile(small_net(), SAMPLE, {"*.width_mult": [0.5, 0.9, 1]})
    assert [variable.choices for variable in net.space.variables] == [(0.5, 1)]
    assert any("width_mult=0.9: the same" in dropped for dropped in net.space.dropped)


def test_later_selectors_override_earlier_ones() -> None:
    wish: SpaceSpec = {"stage.1.block.*.expand_ratio": [1, 2], "stage.1.block.2.expand_ratio": [0.5, 2]}
    net = tailor_ir.compile(small_net(), SAMPLE, wish)
    assert [variable.choices for variable in net.space.variables] == [(1, 2), (0.5, 2), (1, 2)]


@pytest.mark.parametrize(
    ("config", "message"),
    [({"depth": 0}, "no variable 'depth'"), ({"stage.1.depth": 1}, "stage.1.depth=1; allowed: -2, -1, 0")],
)
def test_bad_configs_are_refused(net: tailor_ir.SuperNet, config: dict, message: str) -> None:
    with pytest.raises(tailor_ir.ConfigError, match=message):
        net.elastic.activate(config)


@pytest.mark.long
def test_published_counts_of_resnet50_and_mobilenetv2() -> None:
    resolutions = list(range(128, 225, 4))
    resnet = tailor_ir.compile(
        timm.create_model("resnet50"),
        torch.randn(1, 3, 224, 224),
        {
            "resolution": resolutions,
            "*.width_mult": [0.65, 0.8, 1],
            "stage.*.depth": [0, -1, -2],
            "*.expand_ratio": [0.15, 0.2, 0.25],
        },
    )
    assert resnet.space.modifications == 100
    assert resnet.space.codes == 25 * 3**5 * 3**4 * 3**16
    mobilenet = tailor_ir.compile(
        timm.create_model("mobilenetv2_100"),
        torch.randn(1, 3, 224, 224),
        {"resolution": resolutions, "stage.[3-6].depth": [0, -1, -2], "stage.*.expand_ratio": [3, 4, 6]},
    )
    assert mobilenet.space.modifications == 85
    assert mobilenet.space.codes == 25 * 3**4 * 3**16


def test_kernels_smaller_than_their_padding_allows_are_refused() -> None:
    class Residual(nn.Module):
        def __init__(self, padding: int) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            outer = nn.Conv2d(8, 8, 3, padding=4 - padding)
            self.block = nn.Sequential(nn.Conv2d(8, 8, 7, padding=padding), nn.ReLU(), outer)
            self.head = nn.Conv2d(8, 5, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            return self.head(x + self.block(x)).mean((2, 3))

    sample = torch.randn(1, 3, 32, 32)
    wish = {"*.kernel_size": [1, 7]}
    loose = tailor_ir.compile(Residual(3).eval(), sample, wish)
    assert loose.min_config
    with pytest.raises(SpaceError, match=r"kernel_size=1; allowed: 3, 5, 7"):
        tailor_ir.compile(Residual(2).eval(), sample, wish)
