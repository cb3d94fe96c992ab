"""Files with states, constants, inputs of any type, and batches at other places: the pipeline takes them, batch first.

Legend: N samples, B batch, T steps, F features, S numbers of a state.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper, parser

import tailor_ir
from adaptive_runtime.pool.variants import scaling_of
from adaptive_runtime.samples.inputs import GivenPreparation
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tasks.base.errors import UserError
from tasks.data import load_splits
from tasks.data.batches import answers, tensors
from tasks.data.images import resize
from tasks.data.problems import problem_named
from tasks.data.samples import SampleForm, SeveralInputs
from tasks.data.teacher import OnnxNetwork
from tasks.evaluation.models import ModelSettings, create
from tasks.training.compile import resized_output, supernet_of

COUNT, F, S = 40, 6, 4
FIDELITY = problem_named("fidelity", "fidelity")
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
CELL = """
cell (float[batch, 6] x, float[1, batch, 4] h, int64 sr) => (float[batch, 2] y, float[1, batch, 4] hn) {
    rate = Cast<to=1>(sr)
    scaled = Div(x, rate)
    hidden = MatMul(scaled, w)
    positive = Relu(hidden)
    own = MatMul(positive, u)
    before = Squeeze(h, zero)
    kept = MatMul(before, r)
    sum = Add(own, kept)
    new = Tanh(sum)
    y = MatMul(new, v)
    hn = Unsqueeze(new, zero)
}"""
SHAPES = {"w": (6, 16), "u": (16, 4), "r": (4, 4), "v": (4, 2)}


def written(file: Path, text: str, shapes: Mapping[str, tuple[int, ...]] = {}, **stored: Any) -> Path:
    """A network in a file, with random weights of some shapes, and stored values."""
    model = parser.parse_model(HEAD + text)
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, array in (arrays | stored).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    onnx.checker.check_model(model)
    onnx.save(model, file)
    return file


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    return written(tmp_path / "cell.onnx", CELL, SHAPES, zero=np.zeros(1, np.int64))


def config_of(model: Path, arrays: dict[str, np.ndarray], *options: str) -> RunConfig:
    file = model.parent / "inputs.npz"
    np.savez(file, **arrays)  # type: ignore[arg-type]
    given = [f"model.path='{model}'", f"data.path='{file}'", "data.test_share=0.2", *options]
    return validate(RunConfig, compose_config("config", ["model=onnx", "data=unlabelled", *given]))


def x_NF() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(COUNT, F)).astype(np.float32)


def states_of_cell(cell: Path, window: int) -> np.ndarray:
    """The states (N, 1, S) before each sample, step by step in onnxruntime."""
    session, found = onnxruntime.InferenceSession(cell), []
    for row, x_F in enumerate(x_NF()):
        if row % window == 0:
            h = np.zeros((1, 1, S), np.float32)
        found.append(h[:, 0])
        (h,) = session.run(["hn"], {"x": x_F[None], "h": h, "sr": np.array(2)})
    return np.stack(found)


@pytest.mark.parametrize("window", [None, 5])
def test_states_that_data_lack_are_the_networks_own(cell: Path, window: int | None) -> None:
    options = [] if window is None else [f"data.window={window}"]
    config = config_of(cell, {"anything": x_NF()}, "model.constants={sr:2}", *options)
    splits = load_splits(config.data)
    form = splits["train"].form
    assert isinstance(form, SeveralInputs)
    assert {name: one.shape for name, one in form.inputs.items()} == {"x": (F,), "h": (1, S)}
    x, h = (
        torch.cat(each).numpy()
        for each in zip(*(batch for one in splits.values() for batch, _ in one.batches(COUNT)), strict=True)
    )
    wanted = states_of_cell(cell, window or COUNT)
    order = [int(np.abs(x_NF() - row).sum(1).argmin()) for row in x]
    assert sorted(order) == list(range(COUNT))
    np.testing.assert_allclose(h, wanted[order], atol=1e-6)


def test_states_that_data_have_are_taken_as_given(cell: Path) -> None:
    given = np.random.default_rng(2).normal(size=(COUNT, 1, S)).astype(np.float32)
    config = config_of(cell, {"h": given, "x": x_NF()}, "model.constants={sr:2}")
    form = load_splits(config.data)["train"].form
    assert form.names == ("x", "h")  # the order of the network, not of the file of samples


def taken(model: Path, form: SampleForm | SeveralInputs, **settings: Any) -> onnx.ModelProto:
    found = create(ModelSettings(kind="onnx", path=model, **settings), 0, form, problem=FIDELITY)
    assert isinstance(found, onnx.ModelProto)
    onnx.checker.check_model(found, full_check=True)
    return found


OF_CELL = SeveralInputs({"x": SampleForm((F,), given=True), "h": SampleForm((1, S), given=True)})


def test_a_state_has_the_batch_first_and_the_supernet_answers_as_the_file(cell: Path) -> None:
    model = taken(cell, OF_CELL, constants={"sr": 2})
    x, h = torch.from_numpy(x_NF()), torch.randn(COUNT, 1, S)
    y, new = OnnxNetwork(model.SerializeToString())(x, h)
    given = {"x": x.numpy(), "h": h.numpy().transpose(1, 0, 2), "sr": np.array(2)}
    wanted = onnxruntime.InferenceSession(cell).run(None, given)
    np.testing.assert_allclose(y, wanted[0], atol=1e-6)
    np.testing.assert_allclose(new, wanted[1].transpose(1, 0, 2), atol=1e-6)
    net = tailor_ir.compile(model, OF_CELL.blank(1))
    assert [net.structure.graph.batch_axis(name) for name in net.structure.graph.inputs] == [0, 0]
    assert net.space.variables
    net.elastic.eval()
    for found, own in zip(tensors(answers(net.elastic, (x, h))), (y, new), strict=True):
        torch.testing.assert_close(found, own, atol=1e-5, rtol=1e-4)


def test_an_input_that_data_lack_is_one_line_with_the_ways_out(cell: Path) -> None:
    for form, line in (
        (
            OF_CELL,
            r"3 inputs \(x, h, sr\); allowed: x, h, in this order; .*model.constants=\{sr: 0\}.*model.states=\{sr: OUTPUT\}",
        ),
        (SampleForm((F,), given=True), "3 inputs"),
    ):
        with pytest.raises(UserError, match=line):
            taken(cell, form)
    with pytest.raises(UserError, match=r"model.constants: 'rate'; allowed: inputs of the file: x, h, sr"):
        taken(cell, OF_CELL, constants={"rate": 2})
    with pytest.raises(UserError, match=r"model.states: \{h: y_next\}; allowed: INPUT of x, h"):
        config_of(cell, {"x": x_NF()}, "model.constants={sr:2}", "model.states={h:y_next}")


KINDS = {
    "uint8": (2, "uint8"),
    "int32": (6, "int32"),
    "float16": (10, "float16"),
    "double": (11, "float64"),
    "int64": (7, "int64"),
}
POOLED = """{
    real = Cast<to=1>(x)
    pooled = ReduceMean<axes=[2, 3], keepdims=0>(real)
    y = MatMul(pooled, w)
}"""


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_any_type_are_taken(kind: str, tmp_path: Path) -> None:
    text = f"net ({kind}[batch, 3, 8, 8] x) => (float[batch, 5] y) " + POOLED
    file = written(tmp_path / "net.onnx", text, {"w": (3, 5)})
    x = np.random.default_rng(0).integers(0, 200, (COUNT, 3, 8, 8)).astype(KINDS[kind][1])
    config = config_of(file, {"x": x})
    train = load_splits(config.data)["train"]
    model = taken(file, train.form)
    batch, _ = next(train.batches(4))
    (given,) = tensors(batch)
    found = OnnxNetwork(model.SerializeToString())(given)
    weights = numpy_helper.to_array(onnx.load(file).graph.initializer[0])
    np.testing.assert_allclose(found, given.numpy().mean((2, 3)) @ weights, rtol=1e-2 if kind == "float16" else 1e-4)
    net = tailor_ir.compile(model, train.form.blank(1))
    assert net.input_shapes(net.max_config, 2) == {"x": (2, 3, 8, 8)}


def test_whole_numbers_that_are_looked_up_may_be_int32(tmp_path: Path) -> None:
    text = """net (int32[batch, 7] x) => (float[batch, 5] y) {
        rows = Gather(table, x)
        y = ReduceMean<axes=[1], keepdims=0>(rows)
    }"""
    file = written(tmp_path / "net.onnx", text, {"table": (9, 5)})
    x = np.random.default_rng(0).integers(0, 9, (COUNT, 7)).astype(np.int32)
    train = load_splits(config_of(file, {"x": x}).data)["train"]
    model = taken(file, train.form)
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT64
    (given,) = tensors(next(train.batches(4))[0])
    table = numpy_helper.to_array(onnx.load(file).graph.initializer[0])
    np.testing.assert_allclose(OnnxNetwork(model.SerializeToString())(given), table[given.numpy()].mean(1), atol=1e-6)


def test_an_output_with_steps_before_the_batch_is_moved(tmp_path: Path) -> None:
    text = """net (float[batch, 6, 10] x) => (float[time, batch, 4] y, float[batch, 6, 10] same) {
        moved = Transpose<perm=[2, 0, 1]>(x)
        y = MatMul(moved, w)
        same = Relu(x)
    }"""
    file = written(tmp_path / "net.onnx", text, {"w": (6, 4)})
    form = SampleForm((6, 10), given=True)
    x = torch.randn(5, 6, 10)
    y, same = OnnxNetwork(taken(file, form).SerializeToString())(x)
    (wanted, _) = onnxruntime.InferenceSession(file).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(y, wanted.transpose(1, 0, 2), atol=1e-5)
    torch.testing.assert_close(same, x.relu())


def test_a_fixed_batch_of_one_in_a_reshape_is_taken(tmp_path: Path) -> None:
    text = """net (float[1, 3, 4, 4] x) => (float[1, 5] y) {
        flat = Reshape(x, sizes)
        hidden = MatMul(flat, w)
        positive = Relu(hidden)
        y = MatMul(positive, v)
    }"""
    file = written(tmp_path / "net.onnx", text, {"w": (48, 16), "v": (16, 5)}, sizes=np.array([1, 48]))
    form = SampleForm((3, 4, 4), given=True)
    model = taken(file, form)
    x = torch.randn(6, 3, 4, 4)
    net = tailor_ir.compile(model, form.blank(1))
    torch.testing.assert_close(net.elastic.eval()(x), OnnxNetwork(model.SerializeToString())(x), atol=1e-4, rtol=1e-4)


def test_images_with_channels_last_are_scaled_alike_in_training_and_on_a_device() -> None:
    x_NCHW = torch.rand(2, 3, 12, 20)
    wanted = resize(x_NCHW, (6, 10)).movedim(1, 3)
    x_NHWC = x_NCHW.movedim(1, 3)
    torch.testing.assert_close(resize(x_NHWC, (6, 10)), wanted)
    assert resize(x_NHWC, (12, 20)) is x_NHWC
    scale = scaling_of(GivenPreparation(shape=(12, 20, 3), size=(6, 10, 3)), (1, 6, 10, 3))
    assert scale is not None
    np.testing.assert_allclose(scale(x_NHWC.numpy()), wanted.numpy(), atol=1e-5)
    assert tuple(resize(torch.rand(2, 64, 100, 1), (50, 1)).shape) == (2, 64, 50, 1)  # a signal, with channels first


def test_a_resolution_that_changes_the_number_of_answers_is_fixed(tmp_path: Path) -> None:
    text = """net (float[batch, 3, 64, 64] x) => (float[batch, 4, places] y) {
        a = Conv<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(x, w)
        b = Relu(a)
        c = Conv<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(b, u)
        y = Reshape(c, sizes)
    }"""
    shapes = {"w": (16, 3, 3, 3), "u": (4, 16, 3, 3)}
    file = written(tmp_path / "net.onnx", text, shapes, sizes=np.array([0, 4, -1]))
    config = config_of(file, {"x": np.random.default_rng(0).random((COUNT, 3, 64, 64), np.float32)})
    net = supernet_of(config.compile, config.model, config.data, None, None)
    assert net.space.resolution is None
    assert net.space.variables
    assert net.remarks[-1] == "the resolution is fixed: output 'y' has other positions at another one"
    assert resized_output(tailor_ir.compile(file)) == "y"


def test_steps_of_a_recurrent_layer_are_no_batch() -> None:
    steps = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["steps", 1, F])
    h = helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [1, 1, S])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["steps", 1, 1, S])
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=(1, 3 * S, size)).astype(np.float32), name)
        for name, size in (("w", F), ("r", S))
    ]
    node = helper.make_node("GRU", ["x", "w", "r", "", "", "h"], ["y"], hidden_size=S)
    graph = helper.make_graph([node], "gru", [steps, h], [y], weights)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    axes = tailor_ir.batch_axes(model, {"x": torch.zeros(5, 1, F), "h": torch.zeros(1, 1, S)})
    assert axes.inputs[0] == 1


def test_a_file_that_takes_one_sample_and_drops_its_axis_answers_batches(tmp_path: Path) -> None:
    text = """net (float[batch, 6] x) => (float[found] y) {
        one = Reshape(x, sizes)
        hidden = MatMul(one, w)
        y = Squeeze(hidden)
    }"""
    file = written(tmp_path / "net.onnx", text, {"w": (6, 4)}, sizes=np.array([1, 6]))
    x = torch.randn(5, 6)
    weights = numpy_helper.to_array(onnx.load(file).graph.initializer[0])
    np.testing.assert_allclose(OnnxNetwork(file)(x), x.numpy() @ weights, rtol=1e-4, atol=1e-5)
