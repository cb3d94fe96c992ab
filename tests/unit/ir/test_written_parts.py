"""Writing into a part of a tensor: channels, rows, every other element, lists of positions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator
from torch import nn

import tailor_ir
from tailor_ir.errors import ImportFailed
from tailor_ir.reading.indexing import write_block
from tests.unit.ir.around import SIDE, WIDTH, array, check, check_file, file_around, is_elastic, network

Write = Callable[[torch.Tensor], torch.Tensor]


class Partial(nn.Module):
    """A convolution of a quarter of the channels. Source: FasterNet (CVPR 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(WIDTH // 4, WIDTH // 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, : WIDTH // 4] = self.conv(y[:, : WIDTH // 4])
        return y


def shift(x: torch.Tensor) -> torch.Tensor:
    """Source: TSM (ICCV 2019), along rows."""
    y = torch.zeros_like(x)
    y[:, :4, 1:] = x[:, :4, :-1]
    y[:, 4:8, :-1] = x[:, 4:8, 1:]
    y[:, 8:] = x[:, 8:]
    return y


def every_other_column(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[..., ::2] = 2 * y[..., ::2]
    return y


def every_third_channel_from_the_second(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1::3] = 2 * y[:, ::3]
    return y


def checkerboard(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, :, ::2, 1::2] = 3 * y[:, :, 1::2, ::2]
    return y


def keypoints(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, [0, 5, 3]] = y[:, [1, 2, 4]]
    return y


def one_row(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, :, 0] = y[:, :, -1]
    y[:, 2] = 0.5
    return y


def pairs(x: torch.Tensor) -> torch.Tensor:
    return x.index_put((torch.arange(len(x))[:, None], torch.tensor([[0, 3]]), torch.tensor([[1, 2]])), x[:, :2, 0])


def added(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 4:8] += 1.5
    return y.index_add(1, torch.tensor([0, 2, 1]), x[:, :3])


def added_at_repeated_channels(x: torch.Tensor) -> torch.Tensor:
    return x.index_add(1, torch.tensor([0, 2, 2, 5, 2, 0]), x[:, 4:10], alpha=0.5)


def added_at_repeated_rows(x: torch.Tensor) -> torch.Tensor:
    """There are more parts than rows."""
    rows = torch.arange(x.shape[2]).repeat(2) // 2
    return x.index_add(2, rows, torch.cat((x, 2 * x), 2))


def accumulated(x: torch.Tensor) -> torch.Tensor:
    return x.index_put((torch.arange(len(x))[:, None], torch.tensor([[1, 1, 2]])), x[:, :3], accumulate=True)


def largest(x: torch.Tensor) -> torch.Tensor:
    return x.index_reduce(1, torch.tensor([0, 2, 2, 5]), x[:, 4:8], "amax")


def smallest_of_pixels(x: torch.Tensor) -> torch.Tensor:
    """Each row of an image has positions of its own."""
    places = (torch.arange(x.shape[2])[:, None] + torch.arange(4) // 2).clamp(max=x.shape[3] - 1)
    return x.scatter_reduce(3, places.expand(*x.shape[:2], -1, -1), x[..., :4], "amin")


def multiplied(x: torch.Tensor) -> torch.Tensor:
    places = torch.tensor([0, 3, 3])[:, None].expand(*x.shape[:2], 3, x.shape[3])
    return x.scatter_reduce(2, places, x[:, :, 1:4], "prod")


def copied(x: torch.Tensor) -> torch.Tensor:
    return x.index_copy(1, torch.tensor([0, 3]), 2 * x[:, 1:3])


def scattered(x: torch.Tensor) -> torch.Tensor:
    return torch.select_scatter(torch.slice_scatter(x, 2 * x[:, :6], 1, 3, 9), x[:, 1], 1, 0)


def scattered_in_steps(x: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(x, 2 * x[:, :, :4], 2, 1, 8, 2)


@pytest.mark.long_cases("shift-set", "checkerboard-set", "added-set")
@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (Partial(), {"resolution", "width_mult"}),
        (shift, {"resolution", "width_mult"}),
        (every_other_column, {"resolution", "width_mult"}),
        (every_third_channel_from_the_second, {"resolution"}),
        (checkerboard, {"resolution", "width_mult"}),
        (keypoints, {"resolution"}),
        (one_row, {"resolution"}),
        (pairs, set()),
        (added, {"resolution"}),
        (added_at_repeated_channels, {"resolution"}),
        (added_at_repeated_rows, {"width_mult"}),
        (accumulated, set()),
        (largest, {"resolution"}),
        (smallest_of_pixels, {"width_mult"}),
        (multiplied, {"width_mult"}),
        (copied, {"resolution"}),
        (scattered, {"resolution"}),
        (scattered_in_steps, {"width_mult"}),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_network_that_writes_into_parts_compiles(body: Write, kinds: set[str], tmp_path: Path) -> None:
    net = check(network(body), tmp_path, side=16)
    assert all(is_elastic(net, kind) for kind in kinds), net.space.variables


@st.composite
def writes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[np.ndarray, ...], str]:
    """A shape (samples, …), positions along some of its first axes, all samples, and how to join what meets at one place."""
    shape = (2, *draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    depth = draw(st.integers(2, len(shape)))
    reduction = draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    places = [np.arange(2)]
    for size in shape[1:depth]:
        step = draw(st.integers(1, 3))
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start + 1, size))
        single = reduction == "none"
        most = size if single else 2 * size
        listed = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=most, unique=single))
        places.append(np.asarray(listed) if draw(st.booleans()) else np.arange(start, stop, step))
    return shape, tuple(places), reduction


@settings(max_examples=60)
@given(writes(), st.booleans())
def test_a_write_as_slices_gives_what_the_scattering_gives(
    case: tuple[tuple[int, ...], tuple[np.ndarray, ...], str], negative: bool
) -> None:
    shape, places, reduction = case
    index = np.stack(np.meshgrid(*places, indexing="ij"), -1)
    index = index - np.asarray(shape[: len(places)]) if negative else index
    rng = np.random.default_rng(0)
    data, value = (
        rng.standard_normal(size).astype(np.float32) for size in (shape, (*index.shape[:-1], *shape[len(places) :]))
    )
    graph = scattering(data.shape, index, value.shape, reduction)
    before = run(graph, data, value)
    node = graph.nodes[0]
    assert write_block(graph, node)
    graph.cleanup().toposort()
    assert "ScatterND" not in {each.op for each in graph.nodes}
    np.testing.assert_allclose(run(graph, data, value), before, rtol=1e-5, atol=1e-5)


def test_positions_that_differ_between_samples_stay() -> None:
    index = np.asarray([[[0, 1]], [[1, 2]]])  # one channel of each sample, not the same
    graph = scattering((2, 4, 3), index, (2, 1, 3), "none")
    assert not write_block(graph, graph.nodes[0])


def test_the_largest_at_computed_positions_is_refused() -> None:
    body = network(lambda x: x.scatter_reduce(1, x[:, :4].argsort(1), x[:, :4], "amax"))
    with pytest.raises(ImportFailed, match=r"reduction 'max'; allowed: .* constant positions; compare"):
        tailor_ir.compile(body, torch.zeros(1, 3, SIDE, SIDE))


TURNED: dict[str, tuple[list[int], list[object], tuple[int, ...]]] = {
    "rows": ([2, 0, 1, 3], [[0], [3], [-7]], (3, 1, WIDTH, SIDE)),
    "columns": ([3, 0, 1, 2], [[5], [2]], (2, 1, WIDTH, SIDE)),
    "pixels": ([2, 3, 0, 1], [[0, 1], [3, 3], [7, -1]], (3, 1, WIDTH)),
}
"""Order of the axes before a write, positions, and the shape of what is written there."""


@pytest.mark.parametrize("name", TURNED)
def test_a_file_that_turns_its_axes_around_a_write_compiles(name: str, tmp_path: Path) -> None:
    """torch's default exporter puts the written axes first."""
    order, positions, shape = TURNED[name]
    nodes = [
        helper.make_node("Transpose", ["a"], ["turned"], perm=order),
        helper.make_node("Shape", ["a"], ["batch"], start=0, end=1),
        helper.make_node("Concat", ["before", "batch", "after"], ["whole"], axis=0),
        helper.make_node("Expand", ["value", "whole"], ["values"]),
        helper.make_node("ScatterND", ["turned", "positions", "values"], ["written"]),
        helper.make_node("Transpose", ["written"], ["b"], perm=np.argsort(order).tolist()),
    ]
    tensors = {"positions": np.asarray(positions), "before": np.asarray(shape[:1]), "after": np.asarray(shape[2:])}
    check_file(file_around(nodes, {**tensors, "value": array(*shape)}), tmp_path)


def scattering(shape: tuple[int, ...], index: np.ndarray, value: tuple[int, ...], reduction: str) -> gs.Graph:
    operands = [
        gs.Variable("data", np.float32, shape),
        gs.Constant("index", index),
        gs.Variable("value", np.float32, value),
    ]
    result = gs.Variable("result", np.float32, shape)
    node = gs.Node("ScatterND", "write", {"reduction": reduction}, operands, [result])
    return gs.Graph([node], [operands[0], operands[2]], [result], opset=18)


def run(graph: gs.Graph, data: np.ndarray, value: np.ndarray) -> np.ndarray:
    (result,) = ReferenceEvaluator(gs.export_onnx(graph)).run(None, {"data": data, "value": value})
    return np.asarray(result)
