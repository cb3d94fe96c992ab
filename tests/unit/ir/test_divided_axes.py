"""Axes that are joined, shuffled and divided: U-Nets, and networks that shuffle channels."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tailor_ir
from tailor_ir.axes import Product, surviving
from tailor_ir.dims import AxisTable, DimPool
from tailor_ir.graph import Graph, Node
from tailor_ir.ops.layout import divide
from tailor_ir.ops.registry import Propagation
from tests.support.ir.invariants import check_largest, check_network, check_subnet
from tests.support.ir.networks import perturb

LEAST_SUBNETS, MOST_MACS = 10_000, 0.25


def layers(channels: int, out: int) -> nn.Module:
    first = (nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
    return nn.Sequential(*first, nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


class UNet(nn.Module):
    """Encoder and decoder whose levels are joined by concatenation. transposed: how the decoder enlarges its images."""

    def __init__(self, *, transposed: bool, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        pairs = list(pairwise(widths))
        self.encoder = nn.ModuleList([layers(3, width), *(layers(a, b) for a, b in pairs)])
        self.pool = nn.MaxPool2d(2)
        larger = [
            nn.ConvTranspose2d(b, a, 2, stride=2)
            if transposed
            else nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(b, a, 1))
            for a, b in pairs
        ]
        self.larger = nn.ModuleList(larger)
        self.decoder = nn.ModuleList(layers(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = []
        for level, encode in enumerate(self.encoder):
            x = encode(self.pool(x) if level else x)
            levels.append(x)
        for level in reversed(range(len(self.decoder))):
            x = self.decoder[level](torch.cat((levels[level], self.larger[level](x)), 1))
        return self.head(x)


class Shuffled(nn.Module):
    """Two convolutions side by side, their channels in turn, divided, and one half convolved; `rounds` times."""

    def __init__(self, channels: int, rounds: int) -> None:
        super().__init__()
        self.stem = nn.ModuleList(nn.Conv2d(3, channels, 3, stride=2, padding=1) for _ in range(2))
        self.rounds = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels), nn.ReLU()) for _ in range(rounds)
        )
        self.head = nn.Linear(2 * channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([conv(x) for conv in self.stem], 1)
        for convolve in self.rounds:
            b, c, h, w = x.shape
            kept, changed = x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w).chunk(2, 1)
            x = torch.cat((kept, convolve(changed)), 1)
        return self.head(x.mean((2, 3)))


@pytest.mark.long
@pytest.mark.parametrize("transposed", [True, False])
def test_unets_have_many_subnets_equal_in_three_forms(transposed: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, sample = perturb(UNet(transposed=transposed)), torch.randn(1, 3, 32, 32)
    net = tailor_ir.compile(model, sample)
    check_largest(net, model, sample)
    for config in (net.min_config, net.space.sample(np.random.default_rng(0))):
        check_subnet(net, config, tmp_path, sample)
    assert net.space.distinct >= LEAST_SUBNETS
    assert net.macs(net.min_config) <= MOST_MACS * net.macs(net.max_config)


@pytest.mark.long
def test_shufflenets_have_many_subnets_equal_in_three_forms(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, sample = perturb(torchvision.models.shufflenet_v2_x1_0(num_classes=5)), torch.randn(1, 3, 32, 32)
    net = tailor_ir.compile(model, sample)
    check_largest(net, model, sample)
    for config in (net.min_config, net.space.sample(np.random.default_rng(0))):
        check_subnet(net, config, tmp_path, sample)
        assert set(net.operators(config)) <= net.unique_operators().keys()
    assert net.space.distinct >= LEAST_SUBNETS
    assert net.macs(net.min_config) <= MOST_MACS * net.macs(net.max_config)


@pytest.mark.parametrize("rounds", [1, 3])
def test_shuffled_channels_stay_elastic_as_long_as_they_can_be_halved(rounds: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = check_network(perturb(Shuffled(64, rounds)), torch.randn(1, 3, 16, 16), tmp_path, subnets=1)
    shared = [axis for axes in net.structure.axis_map.axes.values() for axis in axes if isinstance(axis, Product)]
    assert any(axis.groups for axis in shared)
    assert "width_mult" in {v.kind for v in net.space.variables}
    assert not any("takes elements" in why for reasons in net.structure.axis_map.frozen.values() for why in reasons)


@settings(deadline=None)
@given(
    halves=st.integers(1, 6).map(lambda n: 2 * n),
    inner=st.integers(2, 4),
    kept=st.integers(1, 6),
    piece=st.integers(1, 11),
)
def test_pieces_of_a_flattening_are_those_of_its_first_factor(halves: int, inner: int, kept: int, piece: int) -> None:
    node = Node(name="split", op="Split", inputs=(), outputs=())
    graph = Graph(nodes=(), inputs=(), outputs=(), shapes={}, parameters=(), statistics=(), constants=())
    pool = DimPool()
    p = Propagation(graph, {}, pool)
    group = pool.free(halves)
    whole = pool.product((group, pool.fixed(inner)))
    first = min(piece, halves - 1)
    pieces = divide(node, p, whole, [first * inner, (halves - first) * inner])
    assert pieces is not None
    assert divide(node, p, whole, [1, halves * inner - 1]) is None
    table = AxisTable()
    axes, axis = [table.axis(each) for each in pieces], table.axis(whole)
    channels = {number: np.arange(min(kept, size)) for number, size in table.groups.items()}
    before = np.concatenate([surviving(axes[0], channels), axes[0].size + surviving(axes[1], channels)])
    assert np.array_equal(surviving(axis, channels), before)
