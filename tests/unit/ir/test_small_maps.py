"""Pools that round up on maps smaller than their kernels, as a small resolution leaves them: all forms compute the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tailor_ir
from tailor_ir.graph import Node
from tailor_ir.ops import OPERATORS, NodeShapes
from tailor_ir.subnets.onnx_export import emit, to_onnx
from tests.support import examples
from tests.support.ir.invariants import EXPORT_TOLERANCE, check_largest, check_subnet, difference

CHANNELS, SAMPLES = 3, 2


def openvino_answers(model: bytes, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    import profiling_agents  # noqa: F401 - before OpenVINO, which else tells its maker of this import

    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled({f"in{at}": values for at, values in enumerate(inputs)})
    return [np.array(found[at]) for at in range(len(compiled.outputs))]


def onnxruntime_answers(model: bytes, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return list(session.run(None, {f"in{at}": values for at, values in enumerate(inputs)}))


@st.composite
def wide_pools(draw: st.DrawFn) -> tuple[Node, tuple[int, int]]:
    """A pool, each side of whose kernel is that of the padded map or longer, by less than a stride; and the size of the map."""
    size = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    pads = draw(st.tuples(*[st.integers(0, 1)] * 4))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    longer = [draw(st.integers(0, stride - 1)) for stride in strides]
    kernel = tuple(size[axis] + pads[axis] + pads[axis + 2] + longer[axis] for axis in range(2))
    op = draw(st.sampled_from(["AveragePool", "MaxPool"]))
    found: dict[str, Any] = {"ceil_mode": 1, "kernel_shape": kernel, "pads": pads, "strides": strides}
    if op == "AveragePool":
        found["count_include_pad"] = draw(st.integers(0, 1))
    attributes = tuple(sorted(found.items()))
    return Node(name="pool", op=op, inputs=("in0",), outputs=("out0",), attributes=attributes), size


@given(wide_pools())
@settings(max_examples=examples(40), deadline=None)
def test_a_kernel_that_ends_with_the_map_computes_the_same(pool: tuple[Node, tuple[int, int]]) -> None:
    node, size = pool
    shape, given_shape = (SAMPLES, CHANNELS, *size), (SAMPLES, CHANNELS, 1, 1)
    shapes = NodeShapes((shape,), (shape,), (given_shape,), ((-1, *given_shape[1:]),))
    record = OPERATORS[node.op]
    assert record.lower is not None
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = record.lower(node, shapes, {})(x)
    assert expected.shape == given_shape
    attributes = record.attributes_of(node, shapes)
    pads = node.ints("pads")
    assert attributes["kernel_shape"] == tuple(size[axis] + pads[axis] + pads[axis + 2] for axis in range(2))
    taken, given = gs.Variable("in0", np.float32, shape), gs.Variable("out0", np.float32, given_shape)
    model = to_onnx(emit(node.op, "pool", [taken], [given], attributes), [taken], [given], "pool").SerializeToString()
    for answers in (onnxruntime_answers, openvino_answers):
        (got,) = answers(model, [x.numpy()])
        assert difference(expected, torch.from_numpy(got)) <= EXPORT_TOLERANCE, answers


class Shrinking(nn.Module):
    """A convolution and pools that halve the map, rounding up, as often as its resolution allows, and once more."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.pools = nn.Sequential(
            nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False),
            nn.MaxPool2d(2, 2, ceil_mode=True),
            nn.AvgPool2d(2, 2, ceil_mode=True),
            nn.MaxPool2d(2, 2, ceil_mode=True),
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pools(self.stem(x)).mean((2, 3)))


@pytest.mark.long
def test_subnets_of_a_small_resolution_are_one_in_all_forms_and_strict_runtimes_take_their_operators(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    network, sample = Shrinking().eval(), torch.randn(1, 3, 32, 32)
    net = tailor_ir.compile(network, sample, {"resolution": [8, 16, 32], "*.width_mult": [0.5, 1]})
    check_largest(net, network, sample)
    for resolution in (8, 16, 32):
        check_subnet(net, {**net.max_config, "resolution": resolution}, tmp_path, sample)
    kernels: dict[str, set[Any]] = {"AveragePool": set(), "MaxPool": set()}
    rng = np.random.default_rng(0)
    for feature in net.unique_operators():
        if feature.operator in kernels:
            kernels[feature.operator].add(dict(feature.attributes)["kernel_shape"])
        model = tailor_ir.operator_model(feature)
        inputs = [rng.standard_normal(shape).astype(np.float32) for shape in feature.input_shapes]
        expected, got = onnxruntime_answers(model, inputs), openvino_answers(model, inputs)
        tensors = (list(map(torch.from_numpy, each)) for each in (expected, got))
        assert difference(*tensors) <= EXPORT_TOLERANCE, feature
    assert kernels == {"AveragePool": {(2, 2), (1, 1)}, "MaxPool": {(2, 2), (1, 1)}}
