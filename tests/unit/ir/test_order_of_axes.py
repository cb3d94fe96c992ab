"""Channels change their places only where no operator reads them in their order, and sizes are followed through all operators.

Legend: B batch, C channels, T steps, F features.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tailor_ir
from tailor_ir import axes as ax
from tailor_ir.conversion import run
from tailor_ir.dims import Dim
from tailor_ir.graph import Graph, Node
from tailor_ir.ops.registry import Operator, Propagation
from tailor_ir.subnets.plans import reordered
from tests.unit.ir import small_networks as small

TOLERANCE = 2e-5  # of the largest output, fp32
IMAGE, SIGNAL, FEATURES = (1, 1, 8, 8), (1, 1, 128), (1, 12)
KERNEL = torch.tensor([[[0.5, 1.0, -2.0, 0.25, 1.5]]])
BACKWARDS = torch.arange(39, -1, -1)
WHOLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conv": lambda x_BF: F.conv1d(x_BF[:, None], KERNEL, padding=2)[:, 0],
    "conv without padding": lambda x_BF: F.conv1d(x_BF[:, None], KERNEL)[:, 0],
    "conv in steps": lambda x_BF: F.conv1d(x_BF[:, None], KERNEL, stride=3)[:, 0],
    "conv over a reflected pad": lambda x_BF: F.conv1d(F.pad(x_BF[:, None], (2, 2), mode="reflect"), KERNEL)[:, 0],
    "conv over zeros": lambda x_BF: F.conv1d(F.pad(x_BF[:, None], (1, 3)), KERNEL)[:, 0],
    "transposed conv": lambda x_BF: F.conv_transpose1d(x_BF[:, None], KERNEL, stride=2)[:, 0],
    "transposed conv in place": lambda x_BF: F.conv_transpose1d(x_BF[:, None], KERNEL, padding=2)[:, 0],
    "conv over groups of features": lambda x_BF: F.conv1d(x_BF.reshape(-1, 8, 5), KERNEL.expand(8, 8, 5)).flatten(1),
    "conv over two axes": lambda x_BF: F.conv2d(x_BF.reshape(-1, 1, 8, 5), KERNEL[None], padding=(0, 2)).flatten(1),
    "mean pooling": lambda x_BF: F.avg_pool1d(x_BF[:, None], 4)[:, 0],
    "mean pooling in place": lambda x_BF: F.avg_pool1d(x_BF[:, None], 3, 1, 1)[:, 0],
    "max pooling": lambda x_BF: F.max_pool1d(x_BF[:, None], 3, 2, 1)[:, 0],
    "interpolation": lambda x_BF: F.interpolate(x_BF[:, None], scale_factor=2.0, mode="linear")[:, 0],
    "nearest neighbours": lambda x_BF: F.interpolate(x_BF[:, None], size=20, mode="nearest")[:, 0],
    "running sums": lambda x_BF: x_BF.cumsum(1),
    "one half": lambda x_BF: x_BF[:, :20],
    "a part in the middle": lambda x_BF: x_BF[:, 7:31],
    "every second": lambda x_BF: x_BF[:, ::2],
    "backwards": lambda x_BF: x_BF.flip(1),
    "by position": lambda x_BF: x_BF[:, BACKWARDS],
    "few by position": lambda x_BF: x_BF[:, [3, 1, 30]],
    "one by position": lambda x_BF: x_BF[:, 5:6] * x_BF.select(1, 9)[:, None],
    "differences of neighbours": lambda x_BF: x_BF[:, 1:] - x_BF[:, :-1],
    "rolled": lambda x_BF: torch.roll(x_BF, 3, 1),
    "upper triangle": lambda x_BF: torch.triu(x_BF[:, :, None] * x_BF[:, None, :]).sum(2),
    "part of a concatenation": lambda x_BF: torch.cat((x_BF, 2 * x_BF, x_BF.tanh()), 1)[:, 40:80],
    "by position in a concatenation": lambda x_BF: torch.cat((x_BF, x_BF.tanh()), 1)[:, torch.arange(40)],
    "last of a concatenation": lambda x_BF: torch.cat((x_BF, x_BF.mean(1, keepdim=True)), 1)[:, 40, None],
    "largest four": lambda x_BF: x_BF.topk(4, 1).values,
    "space from depth": lambda x_BF: F.pixel_shuffle(x_BF.reshape(-1, 4, 1, 10), 2).flatten(1),
    "depth from space": lambda x_BF: F.pixel_unshuffle(x_BF.reshape(-1, 1, 4, 10), 2).flatten(1),
    "steps of a layer": lambda x_BF: F.unfold(x_BF[:, None, :, None], (5, 1), stride=(5, 1)).flatten(1),
}  # fmt: skip
FREE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x_BF: x_BF.softmax(1),
    "halves": lambda x_BF: torch.mul(*x_BF.chunk(2, 1)),
    "shuffled": lambda x_BF: x_BF.reshape(-1, 4, 10).transpose(1, 2).flatten(1),
    "pixel shuffle": lambda x_BF: F.pixel_shuffle(x_BF.reshape(-1, 40, 1, 1), 2).flatten(1),
    "gated by their mean": lambda x_BF: x_BF * x_BF.mean(1, keepdim=True).sigmoid(),
    "normalised": lambda x_BF: F.normalize(x_BF, dim=1),
}
MODULES: dict[str, tuple[Callable[[], nn.Module], small.Shape]] = {
    "ECA": (small.Eca, IMAGE),
    "linear then conv": (lambda: small.LinearThenConv(inputs=12), FEATURES),
    "mel bands": (small.MelBands, SIGNAL),
    "mel bands in steps": (lambda: small.MelBands(stride=2), SIGNAL),
    "EnvNet": (small.EnvNet, SIGNAL),
    "weighted sums": (small.WeightedSums, IMAGE),
    "transformer": (small.Transformer, IMAGE),
    "grouped queries": (lambda: small.Transformer(groups=2), IMAGE),
    "pooled channels": (small.PooledChannels, IMAGE),
    "pooled channels, then their largest": (lambda: small.PooledChannels(flat=False), IMAGE),
    "shuffled groups": (small.Shuffled, IMAGE),
    **{name: (partial(small.Features, between), FEATURES) for name, between in (WHOLE | FREE).items()},
}  # fmt: skip


@cache
def made(name: str) -> tuple[nn.Module, tailor_ir.SuperNet]:
    torch.manual_seed(0)
    build, shape = MODULES[name]
    model = build().eval()
    return model, tailor_ir.compile(model, torch.randn(shape))


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max() / a.abs().max())


@pytest.mark.long_cases("transformer", "grouped queries")
@pytest.mark.parametrize("name", MODULES)
def test_any_order_of_channels_that_no_operator_reads_in_order_gives_the_same(name: str) -> None:
    model, net = made(name)
    x = torch.randn(3, *MODULES[name][1][1:])
    axis_map, rng = net.structure.axis_map, np.random.default_rng(0)
    free = {axis.group for axes in axis_map.axes.values() for axis in _channels(axes)} - axis_map.ordered.keys()
    order = {group: rng.permutation(axis_map.groups[group]) for group in free}
    with torch.no_grad():
        for tensors in (net.elastic.tensors(), reordered(net.elastic.tensors(), axis_map, order)):
            for tensor_name, tensor in tensors.items():
                net.elastic.tensor(tensor_name).copy_(tensor.clone())
            net.elastic.eval().activate(net.max_config)
            assert difference(model(x), net.elastic(x)) <= TOLERANCE
        net.sort_channels()
        net.elastic.activate(net.max_config)
        assert difference(model(x), net.elastic(x)) <= TOLERANCE


def _channels(axes: tuple[ax.Axis, ...]) -> list[ax.Channels]:
    return [leaf for axis in axes for leaf in axis.leaves if isinstance(leaf, ax.Channels)]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", MODULES)
def test_subnets_are_the_same_elastic_built_and_exported(name: str, tmp_path: Path) -> None:
    _, net = made(name)
    for seed, config in enumerate((net.min_config, *(net.space.sample(np.random.default_rng(k)) for k in range(2)))):
        for batch in (1, 3):
            x = torch.from_numpy(net.sample_input(config, np.random.default_rng(seed), batch))
            net.elastic.eval().activate(config)
            with torch.no_grad():
                expected = net.elastic(x)
                assert difference(expected, net.build(config)(x)) <= TOLERANCE
            net.export(config, tmp_path / "subnet.onnx", batch=batch)
            model = onnx.load(tmp_path / "subnet.onnx")
            (found,) = run(model, {model.graph.input[0].name: x.numpy()})
            assert difference(expected, torch.from_numpy(found)) <= 1e-4


@pytest.mark.parametrize("name", MODULES)
def test_numbers_of_windows_follow_from_positions_alone(name: str) -> None:
    _, net = made(name)
    for axes in net.structure.axis_map.axes.values():
        for axis in axes:
            assert not _counted(axis), axis


def _counted(axis: ax.Axis) -> frozenset[int]:
    inside = axis.channel_groups if isinstance(axis, ax.Window | ax.Scaled) else frozenset[int]()
    return inside.union(*(_counted(part) for part in axis.parts))


@pytest.mark.parametrize("name", FREE)
def test_operators_without_order_leave_channels_to_be_sorted(name: str) -> None:
    _, net = made(name)
    assert net.structure.axis_map.groups
    assert not net.structure.axis_map.ordered


@pytest.mark.parametrize(
    "name", ["ECA", "linear then conv", "mel bands", "running sums", "conv", "mean pooling in place"]
)
def test_channels_that_are_read_in_order_keep_it_and_are_cut(name: str) -> None:
    _, net = made(name)
    ordered = net.structure.axis_map.ordered
    assert {sizing.group for sizing in net.space.sizings} & ordered.keys()
    assert all("reads them in their order" in why for why in ordered.values())


def test_an_operator_that_does_not_state_its_order_has_one_along_all_axes() -> None:
    node = Node(name="n", op="New", inputs=("x", ""), outputs=("y",))
    graph = Graph(
        nodes=(node,), inputs=("x",), outputs=("y",), shapes={"x": (2, 3), "y": (2, 4)}, parameters=(), statistics=(),
        constants=(),
    )  # fmt: skip
    p = Propagation(graph, {})
    dims: list[Dim] = [*p.of("x"), *p.of("y")]
    assert Operator(names=("New",), axes=lambda node, p: ()).ordered(node, p) == tuple(dims)
