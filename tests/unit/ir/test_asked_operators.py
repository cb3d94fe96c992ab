"""Operators that people ask for: in modules, and in files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn
from torch.nn import functional as F

import tailor_ir
from tests.unit.ir.around import (
    SIDE,
    WIDTH,
    array,
    check,
    check_file,
    file_around,
    is_elastic,
    network,
    node,
    operators_of,
)

Body = Callable[[torch.Tensor], torch.Tensor]


class Shuffled(nn.Module):
    """Two grouped convolutions with their channels shuffled between. Source: ShuffleNet (CVPR 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(WIDTH, WIDTH, 1, groups=4)
        self.shuffle = nn.ChannelShuffle(4)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.shuffle(torch.relu(self.first(x))))


class GroupedQueries(nn.Module):
    """Attention with 8 heads of queries and 2 of keys and values. Source: GQA (EMNLP 2023)."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(2).transpose(1, 2)
        q = self.q(rows).unflatten(-1, (8, 4)).transpose(1, 2)
        k, v = self.kv(rows).unflatten(-1, (2, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2)).transpose(1, 2).unflatten(2, x.shape[2:])


BODIES: dict[str, tuple[Body | nn.Module, set[str]]] = {
    "sinc": (torch.sinc, {"resolution", "width_mult"}),
    "channel shuffle": (Shuffled(), {"resolution"}),
    "channel shuffle as a function": (lambda x: F.channel_shuffle(x, 2), {"resolution"}),
    "grouped queries": (GroupedQueries(), {"resolution"}),
    "grouped queries, causal": (GroupedQueries(causal=True), set()),
    "transposed convolution to a size": (nn.ConvTranspose2d(WIDTH, WIDTH, 3, 3, 1, output_padding=2), {"resolution"}),
}


@pytest.mark.parametrize("name", BODIES)
def test_modules(name: str, tmp_path: Path) -> None:
    body, elastic = BODIES[name]
    net = check(network(body), tmp_path)
    assert all(is_elastic(net, kind) for kind in elastic), (net.space.variables, net.space.dropped)


def test_the_gradient_of_sinc_is_finite_at_zero() -> None:
    net = tailor_ir.compile(network(torch.sinc), torch.zeros(1, 3, 8, 8))
    net.elastic(torch.zeros(2, 3, 8, 8)).sum().backward()
    assert all(bool(w.grad.isfinite().all()) for w in net.elastic.weights.values() if w.grad is not None)


# -- transposed convolutions of files --------------------------------------------------------------------------------

WEIGHTS = {"w": array(WIDTH, WIDTH, 3, 3, scale=0.1), "c": array(WIDTH)}
TRANSPOSED: dict[str, dict[str, object]] = {
    "as large as it comes": {"strides": [2, 2], "output_shape": [17, 17]},
    "padded unevenly": {"strides": [2, 2], "output_shape": [16, 14]},
    "padded unevenly, more at the end": {"strides": [2, 2], "output_shape": [16, 14], "auto_pad": "SAME_UPPER"},
    "larger than it comes": {"strides": [2, 2], "output_shape": [18, 18]},
    "more at one side": {"strides": [2, 2], "pads": [0, 1, 1, 0], "output_padding": [1, 1]},
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_of_files(name: str, tmp_path: Path) -> None:
    net = check_file(file_around([node("ConvTranspose", "w", "c", **TRANSPOSED[name])], WEIGHTS), tmp_path)
    assert is_elastic(net, "width_mult")


# -- unpooling and deformable convolutions ---------------------------------------------------------------------------


class Unpooled(nn.Module):
    """Down and up again by the positions of the largest values. Source: SegNet (TPAMI 2017)."""

    def __init__(self, size: bool = False, **settings: Any) -> None:
        super().__init__()
        self.settings, self.size = settings, size
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, positions = F.max_pool2d(x, **self.settings, return_indices=True)
        size = x.shape[-2:] if self.size else None
        return F.max_unpool2d(self.conv(y), positions, **self.settings, output_size=size)


class UnpooledRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, positions = F.max_pool1d(x.flatten(2), 2, return_indices=True)
        return F.max_unpool1d(y, positions, [2]).unflatten(2, x.shape[2:])


class Deformed(nn.Module):
    """A convolution with learned offsets. Source: DCNv2 (CVPR 2019)."""

    def __init__(self, groups: int = 1, sets: int = 1, mask: bool = True, stride: int = 1, bias: bool = True) -> None:
        super().__init__()
        self.deform = pytest.importorskip("torchvision").ops.deform_conv2d
        self.settings, self.mask = {"stride": stride, "padding": 1}, mask
        self.offset = nn.Conv2d(WIDTH, 18 * sets, 3, padding=1, stride=stride)
        self.modulation = nn.Conv2d(WIDTH, 9 * sets, 3, padding=1, stride=stride)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH // groups, 3, 3) * 0.1)
        self.bias = nn.Parameter(torch.randn(WIDTH)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.sigmoid(self.modulation(x)) if self.mask else None
        return self.deform(x, 2 * self.offset(x), self.weight, self.bias, mask=mask, **self.settings)


MOVED: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "unpooling": (lambda: Unpooled(kernel_size=2), {"resolution", "width_mult"}),
    "unpooling to a size": (lambda: Unpooled(size=True, kernel_size=3, stride=2, padding=1), {"width_mult"}),
    "unpooling of rows": (UnpooledRows, {"width_mult"}),
    "deformable": (Deformed, {"resolution", "width_mult"}),
    "deformable, smaller, without mask and bias": (lambda: Deformed(mask=False, stride=2, bias=False), {"resolution"}),
    "deformable in groups": (lambda: Deformed(groups=4, sets=2), {"resolution"}),
}
LONG = {"unpooling to a size", "deformable, smaller, without mask and bias", "deformable in groups"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in MOVED])
def test_operators_that_read_and_write_at_computed_positions(name: str, tmp_path: Path) -> None:
    make, elastic = MOVED[name]
    net = check(network(make()), tmp_path)
    assert {"MaxUnpool", "DeformConv"} & operators_of(net)
    assert all(is_elastic(net, kind) for kind in elastic), (net.space.variables, net.space.dropped)
    for feature in net.operators(net.min_config):
        onnx.checker.check_model(onnx.load_from_string(tailor_ir.operator_model(feature)))


def test_positions_that_are_read_otherwise_are_refused() -> None:
    def positions(x: torch.Tensor) -> torch.Tensor:
        return x + F.interpolate(F.max_pool2d(x, 2, return_indices=True)[1].float(), scale_factor=2)

    with pytest.raises(tailor_ir.ImportFailed, match=r"operator 'MaxPool' at .* gives positions as well"):
        tailor_ir.compile(network(positions), torch.zeros(1, 3, 8, 8))


def test_a_deformable_convolution_of_a_file(tmp_path: Path) -> None:
    deform = node("DeformConv", "w", "o", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    offsets = onnx.helper.make_node("Conv", ["a", "wo"], ["o"], "offsets", pads=[1, 1, 1, 1])
    check_file(file_around([offsets, deform], {**WEIGHTS, "wo": array(18, WIDTH, 3, 3)}, opset=19), tmp_path)


# -- sums of blocks of files -----------------------------------------------------------------------------------------

BLOCKS: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
    "overlapping": ([9, 9], [2, 2], {}),
    "apart, with a rest": ([17, 16], [2, 2], {"strides": [2, 2]}),
    "padded unevenly": ([8, 7], [2, 2], {"pads": [1, 2, 0, 1], "dilations": [1, 2]}),
    "along one axis": ([66], [4], {"pads": [0, 1]}),
    "of volumes": ([5, 5, 4], [2, 2, 1], {}),
}
"""The image's size, the block's, and the rest; there are as many blocks as pixels."""


@pytest.mark.parametrize("name", BLOCKS)
def test_sums_of_blocks_of_files(name: str, tmp_path: Path) -> None:
    size, block, settings = BLOCKS[name]
    nodes = [
        helper.make_node("Reshape", ["a", "rows"], ["blocks"]),
        helper.make_node("Col2Im", ["blocks", "size", "block"], ["image"], "sum", **settings),
        helper.make_node("Reshape", ["image", "flat"], ["b"]),
    ]
    numbers = {"size": size, "block": block, "rows": [0, WIDTH, SIDE * SIDE], "flat": [0, WIDTH // 4, -1, 1]}
    tensors = {key: np.asarray(value) for key, value in numbers.items()}
    net = check_file(file_around(nodes, tensors, opset=18, channels=WIDTH // 4), tmp_path)
    assert "ConvTranspose" in operators_of(net)
