"""Inputs whose batch is not their first axis (states), that have none, or are single numbers; stored initial states."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import tailor_ir
from tailor_ir.graph import NO_BATCH
from tests.support.ir.onnx_files import (
    answers,
    assert_close,
    check_forms,
    constant,
    convolutions,
    model_of,
    run,
    weight,
)

STEPS, FEATURES, HIDDEN = 6, 32, 16


class Streaming(nn.Module):
    """A recurrent layer with its state among inputs and outputs, (layers, batch, size)."""

    def __init__(self, kind: str = "GRU", layers: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.layers = kind, layers
        self.conv, self.out = nn.Conv1d(4, FEATURES, 3), nn.Linear(HIDDEN, 3)
        self.rnn = getattr(nn, kind)(FEATURES, HIDDEN, layers, batch_first=True)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = states[0] if self.kind == "GRU" else states
        y, new = self.rnn(torch.relu(self.conv(x)).transpose(1, 2), given)
        return self.out(y[:, -1]), *((new,) if self.kind == "GRU" else new)


class Scaled(nn.Module):
    """A number for all samples: a rate that decides, or a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 16, 3), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.conv(x)).mean((2, 3)) * number.to(x.dtype)
        return self.out(y)


def states(kind: str, layers: int, batch: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(layers, batch, HIDDEN) for _ in range(1 if kind == "GRU" else 2))


@pytest.mark.parametrize(("kind", "layers"), [("GRU", 1), ("GRU", 2), ("LSTM", 1)])
@pytest.mark.parametrize("form", ["module", "open file", "fixed file"])
@pytest.mark.filterwarnings("ignore")
def test_states_have_their_batch_in_the_middle(kind: str, layers: int, form: str, tmp_path: Path) -> None:
    module = Streaming(kind, layers).eval()
    sample = (torch.randn(1, 4, STEPS + 2), *states(kind, layers, 1))
    network: nn.Module | Path = module
    if form != "module":
        network = tmp_path / "net.onnx"
        names = ["x", *(f"s{i}" for i in range(len(sample) - 1))]
        axes = {name: {0 if name == "x" else 1: "n"} for name in names} if form == "open file" else None
        torch.onnx.export(module, sample, network, dynamo=False, opset_version=17, input_names=names, dynamic_axes=axes)
    net = tailor_ir.compile(network, sample)
    assert net.structure.graph.batch_axes == (0,) + (1,) * (len(sample) - 1)
    assert net.space.distinct > 1
    check_forms(net, tmp_path)
    net.elastic.activate(net.max_config)
    for batch in (1, 3):
        given = (torch.randn(batch, 4, STEPS + 2), *states(kind, layers, batch))
        with torch.no_grad():
            expected = [one.numpy() for one in module(*given)]
        assert_close(expected, answers(net.elastic, [one.numpy() for one in given]))
        assert_close(expected, answers(net.build(net.max_config), [one.numpy() for one in given]))
    shapes = net.input_shapes(net.max_config, batch=3)
    assert [*shapes.values()][1] == (layers, 3, HIDDEN)
    net.save(tmp_path / "saved")
    assert tailor_ir.load(tmp_path / "saved").structure.graph == net.structure.graph


def test_the_order_of_inputs_does_not_matter(tmp_path: Path) -> None:
    class StateFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Streaming()

        def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found: tuple[torch.Tensor, ...] = self.inner(x, state)
            return found

    net = tailor_ir.compile(StateFirst().eval(), (torch.zeros(1, 1, HIDDEN), torch.randn(1, 4, STEPS + 2)))
    assert net.structure.graph.batch_axes == (1, 0)
    check_forms(net, tmp_path)


@pytest.mark.parametrize("form", ["module", "file"])
@pytest.mark.parametrize("kind", ["whole", "truth", "float"])
@pytest.mark.filterwarnings("ignore")
def test_single_numbers_are_constants_or_inputs_of_all_samples(form: str, kind: str, tmp_path: Path) -> None:
    module = Scaled().eval()
    number = torch.tensor({"whole": 2, "truth": True, "float": 1.5}[kind])
    sample = (torch.randn(1, 3, 8, 8), number)
    network: nn.Module | Path = module
    if form == "file":
        network = tmp_path / "net.onnx"
        axes = {"x": {0: "n"}}
        torch.onnx.export(
            module, sample, network, dynamo=False, opset_version=17, input_names=["x", "number"], dynamic_axes=axes
        )
    net = tailor_ir.compile(network, sample)
    check_forms(net, tmp_path)
    net.elastic.activate(net.max_config)
    x = torch.randn(3, 3, 8, 8)
    expected = module(x, number)
    if kind == "float":
        assert net.structure.graph.batch_axes == (0, NO_BATCH)
        assert torch.allclose(net.elastic(x, number), expected, atol=1e-5)
        assert torch.allclose(net.elastic(x, 2 * number), module(x, 2 * number), atol=1e-5)
    else:
        assert len(net.structure.graph.inputs) == 1
        assert torch.allclose(net.elastic(x), expected, atol=1e-5)
        assert any(f"is kept as the constant {number.item()}" in remark for remark in net.remarks)


def chosen() -> onnx.ModelProto:
    """A network whose branches are chosen by a rate."""
    nodes, stored = convolutions()
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["a"], ["b"], op)],
            op,
            [],
            [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
        )
        for op in ("Relu", "Sigmoid")
    ]
    nodes[1:2] = [
        helper.make_node("Equal", ["rate", "known"], ["same"]),
        helper.make_node("If", ["same"], ["b"], "choice", then_branch=branches[0], else_branch=branches[1]),
    ]
    model = model_of(nodes, [*stored, constant("known", np.int64(16000))], {"x": ["n", 3, 8, 8]}, {"y": ["n", 5]})
    model.graph.input.append(helper.make_tensor_value_info("rate", TensorProto.INT64, []))
    return model


@pytest.mark.parametrize(("rate", "taken"), [(16000, "Relu"), (8000, "Sigmoid")])
def test_a_rate_chooses_the_branch(rate: int, taken: str, tmp_path: Path) -> None:
    model = chosen()
    net = tailor_ir.compile(model, (torch.zeros(1, 3, 8, 8), torch.tensor(rate)))
    assert net.remarks[0] == f"input 'rate' is kept as the constant {rate}"
    assert taken in {node.op for node in net.structure.graph.nodes}
    check_forms(net, tmp_path)
    net.elastic.activate(net.max_config)
    (x,) = net.sample_inputs(net.max_config, np.random.default_rng(0), batch=3)
    assert_close(run(model, x, np.asarray(rate)), answers(net.elastic, [x]))
    with pytest.raises(
        tailor_ir.ImportFailed, match=r"input 'rate' is a single number; .* give examples of all inputs"
    ):
        tailor_ir.compile(model)


@pytest.mark.parametrize("batch", ["n", 1])
@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_a_stored_state_is_one_for_all_samples(batch: str | int, op: str, tmp_path: Path) -> None:
    gates = {"GRU": 3, "LSTM": 4}[op]
    states = ["h"] if op == "GRU" else ["h", "c"]
    extra: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node(op, ["t", "w", "r", "", "", *states], ["s", "last"], "layer", hidden_size=HIDDEN, **extra),
        helper.make_node("Reshape", ["last", "sizes"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["y"]),
    ]
    stored = [weight("w", 1, gates * HIDDEN, FEATURES), weight("r", 1, gates * HIDDEN, HIDDEN), weight("v", HIDDEN, 5)]
    stored += [constant("sizes", np.asarray([-1, HIDDEN])), *(weight(name, 1, 1, HIDDEN) for name in states)]
    model = model_of(nodes, stored, {"x": [batch, STEPS, FEATURES]}, {"y": [batch, 5]})
    net = tailor_ir.compile(model)
    check_forms(net, tmp_path)
    net.elastic.activate(net.max_config)
    (x,) = net.sample_inputs(net.max_config, np.random.default_rng(0), batch=3)
    one_by_one = np.concatenate([run(model, x[row : row + 1])[0] for row in range(3)])
    assert_close([one_by_one], answers(net.elastic, [x]))


def test_a_file_that_mixes_its_one_sample_with_other_axes_is_one_line() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Gemm", ["t", "w"], ["a"]),
        helper.make_node("ReduceSum", ["a", "axis"], ["y"], keepdims=0),
    ]
    stored = [weight("w", 1, 7), constant("axis", np.asarray([0]))]
    with pytest.raises(tailor_ir.ImportFailed) as failure:
        tailor_ir.compile(model_of(nodes, stored, {"x": [1, 4]}, {"y": [7]}))
    assert "\n" not in str(failure.value)


def test_batches_that_differ_are_refused_unless_the_network_takes_them() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    with pytest.raises(tailor_ir.ImportFailed, match=r"tensors of 1, 2 samples; allowed: .* takes as the batch"):
        tailor_ir.compile(Sum(), (torch.randn(1, 3, 8, 8), torch.randn(2, 3, 8, 8)))


class TimeFirst(nn.Module):
    """A network of signals (T, N, C): the second axis is the batch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.into, self.out = kind, nn.Linear(8, FEATURES), nn.Linear(HIDDEN, 3)
        self.layer: nn.Module = nn.GRU(FEATURES, HIDDEN)
        if kind == "attention":
            self.layer, self.out = nn.TransformerEncoderLayer(FEATURES, 2, 64, 0.0), nn.Linear(FEATURES, 3)

    def forward(self, x: torch.Tensor, *state: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(self.into(x))
        if self.kind == "attention":
            found: torch.Tensor = self.out(self.layer(h))
            return found
        y, new = self.layer(h, *state)
        last = self.out(y[-1] if self.kind == "last" else y)
        return (last, new) if state else last


@pytest.mark.parametrize("steps", [STEPS, 1])
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        *product(["all", "last", "state"], ["module", "open file", "fixed file"]),
        *product(["attention"], ["module", "open file"]),  # a file of one sample does not tell heads from samples
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_batch_is_the_axis_along_which_samples_are_answered_alike(
    kind: str, steps: int, form: str, tmp_path: Path
) -> None:
    module = TimeFirst(kind).eval()

    def drawn(samples: int) -> tuple[torch.Tensor, ...]:
        state = (torch.randn(1, samples, HIDDEN),) if kind == "state" else ()
        return torch.randn(steps, samples, 8), *state

    network: nn.Module | Path = module
    if form != "module":
        network, names = tmp_path / "net.onnx", ["x", "h"][: len(drawn(1))]
        axes = {name: {1: "n"} for name in names} if form == "open file" else None
        torch.onnx.export(
            module, drawn(1), network, dynamo=False, opset_version=17, input_names=names, dynamic_axes=axes
        )
    net = tailor_ir.compile(network, drawn(1))
    assert net.structure.graph.batch_axes == (1,) * len(drawn(1))
    assert any("axis 1 of input" in remark for remark in net.remarks)
    check_forms(net, tmp_path)
    for batch in (1, 3):
        given = drawn(batch)
        with torch.no_grad():
            found = module(*given)
        expected = [one.numpy() for one in (found if isinstance(found, tuple) else (found,))]
        net.elastic.activate(net.max_config)
        assert_close(expected, answers(net.elastic, [one.numpy() for one in given]))
        assert_close(expected, answers(net.build(net.max_config), [one.numpy() for one in given]))


@pytest.mark.parametrize("example", [(STEPS, 2, 8), (STEPS, 8)])
def test_a_network_that_mixes_all_that_may_be_samples_is_refused_in_one_line(example: tuple[int, ...]) -> None:
    with pytest.raises(tailor_ir.ImportFailed, match=r"its steps are the axis of samples; allowed: .*one entry$"):
        tailor_ir.compile(TimeFirst("all").eval(), torch.randn(example))
