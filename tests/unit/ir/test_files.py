"""ONNX files as people have them: where weights stand, what outputs are, external data, functions, quantisation, opsets."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import tailor_ir
from tests.support.ir.onnx_files import (
    Shapes,
    Sizes,
    answers,
    assert_close,
    check_forms,
    constant,
    convolutions,
    model_of,
    run,
    weight,
)

X: Shapes = {"x": ["n", 3, 8, 8]}
Y: Shapes = {"y": ["n", 5]}


def parameters(net: tailor_ir.SuperNet) -> int:
    return sum(one.numel() for one in net.elastic.parameters())


def check_largest(net: tailor_ir.SuperNet, model: onnx.ModelProto, share: float = 1e-5) -> None:
    """The largest SubNet answers as the file, in batches of two sizes."""
    net.elastic.eval()
    net.elastic.activate(net.max_config)
    for batch in (1, 3):
        given = net.sample_inputs(net.max_config, np.random.default_rng(batch), batch=batch)
        assert_close(run(model, *given), answers(net.elastic, given), share)


# -- weights ----------------------------------------------------------------------------------------------------------

Held = Callable[[TensorProto], list[onnx.NodeProto]]


def as_node(tensor: TensorProto) -> list[onnx.NodeProto]:
    return [helper.make_node("Constant", [], [tensor.name], value=tensor)]


def behind_identity(tensor: TensorProto) -> list[onnx.NodeProto]:
    held = helper.make_node("Constant", [], [f"{tensor.name}/held"], value=tensor)
    return [held, helper.make_node("Identity", [f"{tensor.name}/held"], [tensor.name])]


def behind_cast(tensor: TensorProto) -> list[onnx.NodeProto]:
    double = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
    held = helper.make_node("Constant", [], [f"{tensor.name}/held"], value=double)
    return [held, helper.make_node("Cast", [f"{tensor.name}/held"], [tensor.name], to=TensorProto.FLOAT)]


def behind_dequantise(tensor: TensorProto) -> list[onnx.NodeProto]:
    numbers = numpy_helper.to_array(tensor)
    scale = np.float32(np.abs(numbers).max() / 127)
    whole = constant("whole", np.round(numbers / scale).astype(np.int8))
    names = [f"{tensor.name}/{part}" for part in ("whole", "scale", "zero")]
    parts = (whole, constant("scale", scale), constant("zero", np.int8(0)))
    held = [helper.make_node("Constant", [], [n], value=part) for n, part in zip(names, parts, strict=True)]
    return [*held, helper.make_node("DequantizeLinear", names, [tensor.name])]


@pytest.mark.parametrize("held", [as_node, behind_identity, behind_cast, behind_dequantise])
def test_weights_in_constants_are_trained_and_sorted(held: Held, tmp_path: Path) -> None:
    nodes, stored = convolutions()
    plain = tailor_ir.compile(model_of(nodes, stored, X, Y))
    model = model_of([*(node for tensor in stored for node in held(tensor)), *nodes], [], X, Y)
    net = tailor_ir.compile(model)
    assert parameters(net) == parameters(plain) > 0
    assert [v.name for v in net.space.variables] == [v.name for v in plain.space.variables]
    check_largest(net, model)
    before = [one.clone() for one in net.elastic.parameters()]
    net.sort_channels()
    assert not all(torch.equal(one, other) for one, other in zip(before, net.elastic.parameters(), strict=True))
    check_largest(net, model)
    check_forms(net, tmp_path)


def test_scales_and_shifts_behind_layers_are_weights_and_other_constants_are_none() -> None:
    def held(tensor: TensorProto) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [tensor.name], value=tensor)

    nodes = [
        *map(held, (weight("w", 16, 3, 3, 3), weight("scale", 1, 16, 1, 1), weight("shift", 1, 16, 1, 1))),
        *map(held, (weight("mean", 1, 3, 1, 1), weight("grid", 1, 1, 6, 6), weight("v", 16, 5))),
        helper.make_node("Sub", ["x", "mean"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["b"]),
        helper.make_node("Mul", ["b", "scale"], ["c"]),
        helper.make_node("Add", ["c", "shift"], ["d"]),
        helper.make_node("Add", ["d", "grid"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "v"], ["y"]),
    ]
    model = model_of(nodes, [], X, Y)
    net = tailor_ir.compile(model)
    assert set(net.structure.graph.parameters) == {"w", "scale", "shift", "v"}
    assert {"mean", "grid"} <= set(net.structure.graph.constants)
    check_largest(net, model)


def test_a_network_without_weights_says_so() -> None:
    net = tailor_ir.compile(model_of([helper.make_node("Relu", ["x"], ["y"])], [], X, {"y": ["n", 3, 8, 8]}))
    assert net.remarks == ("the network has no weights that could be trained",)


# -- outputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["w3", "x", "f", "y", "x again", "stored, computed"])
def test_outputs_of_every_kind(second: str, tmp_path: Path) -> None:
    nodes, stored = convolutions()
    outputs: dict[str, Sizes] = {"y": ["n", 5]}
    if second == "x again":
        nodes += [helper.make_node("Identity", ["x"], [name]) for name in ("z", "z2")]
        outputs |= {"z": ["n", 3, 8, 8], "z2": ["n", 3, 8, 8]}
    elif second == "stored, computed":
        nodes.append(helper.make_node("Mul", ["w3", "w3"], ["z"]))
        outputs |= {"z": [5, 32]}
    elif second == "y":
        nodes.append(helper.make_node("Identity", ["y"], ["z"]))
        outputs |= {"z": ["n", 5]}
    else:
        known: Shapes = {"w3": [5, 32], "x": ["n", 3, 8, 8], "f": ["n", 32]}
        outputs[second] = known[second]
    model = model_of(nodes, stored, X, outputs)
    net = tailor_ir.compile(model)
    check_largest(net, model)
    check_forms(net, tmp_path)
    net.save(tmp_path / "saved")
    check_forms(tailor_ir.load(tmp_path / "saved"), tmp_path)


class Framed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.o = (
            torch.nn.Conv2d(3, 16, 3, padding=1),
            torch.nn.Conv2d(16, 16, 3),
            torch.nn.Linear(16, 5),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.a(x))
        framed = y.new_zeros(y.shape[0], 16, y.shape[2] + 2, y.shape[3] + 2)
        framed[:, :, 1:-1, 1:-1] = y
        return self.o(self.b(framed).mean((2, 3)))


def test_names_in_an_export_are_unique(tmp_path: Path) -> None:
    check_forms(tailor_ir.compile(Framed().eval(), torch.randn(1, 3, 8, 8)), tmp_path)


def test_nodes_of_equal_names_get_names_of_their_own(tmp_path: Path) -> None:
    nodes, stored = convolutions()
    for node, name in zip(nodes, ("r_2", "r", "r", "r_2", "", "r", "r_6"), strict=True):
        node.name = name
    net = tailor_ir.compile(model_of(nodes, stored, X, Y))
    names = [node.name for node in net.structure.graph.nodes]
    assert len(set(names)) == len(names)
    check_forms(net, tmp_path)


# -- external data ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        ("short", r"tensor 'w1' is stored in 'net.data' from byte \d+, 3456 bytes of a file of 200; .* copy it again"),
        ("pointer", r"tensor 'w1' is stored in 'net.data' from byte \d+, 3456 bytes of a file of \d+; .*Git LFS"),
        ("missing", "tensor 'w1' is stored in 'net.data', which is not there; copy it beside the model"),
        ("folder", "allowed: files inside the model's own folder"),
        ("offset", "tensor 'w1' is stored in 'net.data' from byte 99999999, 3456 bytes of a file of"),
        ("length", "tensor 'w1' is stored in 'net.data' from byte 0, 16 bytes of a file of"),
        ("no number", "tensor 'w1' is stored in 'net.data' at a place that is no number"),
        ("absolute", "allowed: files inside the model's own folder"),
    ],
)
def test_external_data_that_cannot_be_read_is_one_line(damage: str, line: str, tmp_path: Path) -> None:
    nodes, stored = convolutions()
    path, data = tmp_path / "net.onnx", tmp_path / "net.data"
    onnx.save(model_of(nodes, stored, X, Y), path, save_as_external_data=True, location="net.data", size_threshold=16)
    if damage in ("short", "pointer"):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3456\n"
        data.write_bytes(data.read_bytes()[:200] if damage == "short" else pointer)
    elif damage in ("missing", "folder"):
        data.unlink()
        if damage == "folder":
            data.mkdir()
    else:
        model = onnx.load(path, load_external_data=False)
        key, value = {
            "offset": ("offset", "99999999"),
            "length": ("length", "16"),
            "no number": ("offset", "first"),
            "absolute": ("location", str(data.parent.parent / "other.data")),
        }[damage]
        entry = next(entry for entry in model.graph.initializer[0].external_data if entry.key == key)
        entry.value = value
        path.write_bytes(model.SerializeToString())
    with pytest.raises(tailor_ir.ImportFailed) as failure:
        tailor_ir.compile(path)
    assert re.search(line, str(failure.value))
    assert "\n" not in str(failure.value)


def test_whole_external_data_is_read(tmp_path: Path) -> None:
    nodes, stored = convolutions()
    path, model = tmp_path / "net.onnx", model_of(nodes, stored, X, Y)
    onnx.save(model, path, save_as_external_data=True, location="net.data", size_threshold=16)
    check_largest(tailor_ir.compile(path), model_of(*convolutions(), X, Y))
    with pytest.raises(tailor_ir.ImportFailed, match="stored in another file, which a model in memory does not hold"):
        tailor_ir.compile(onnx.load(path, load_external_data=False))


# -- functions and forms ----------------------------------------------------------------------------------------------


def test_functions_are_inlined(tmp_path: Path) -> None:
    nodes, stored = convolutions()
    opset = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Sigmoid", ["v"], ["s"]), helper.make_node("Mul", ["v", "s"], ["r"])]
    nodes[1] = helper.make_node("own", ["a"], ["b"], "called", domain="here")
    model = model_of(nodes, stored, X, Y)
    model.functions.append(helper.make_function("here", "own", ["v"], ["r"], body, opset))
    model.opset_import.append(helper.make_opsetid("here", 1))
    net = tailor_ir.compile(model)
    check_largest(net, model)
    check_forms(net, tmp_path)


@pytest.mark.parametrize("like", ["x", "whole"])
def test_cast_like(like: str) -> None:
    nodes, stored = convolutions()
    nodes[1:2] = [
        helper.make_node("CastLike", ["a", like], ["a/like"]),
        helper.make_node("Cast", ["a/like"], ["b"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, [*stored, constant("whole", np.zeros(1, np.int64))], X, Y)
    check_largest(tailor_ir.compile(model), model)


def one_more(*between: onnx.NodeProto, stored: tuple[TensorProto, ...] = (), opset: int = 17) -> onnx.ModelProto:
    """The small network with other nodes from b to m in the place of its first activation."""
    nodes, weights = convolutions()
    nodes[2].input[0] = "m"
    return model_of([*nodes[:2], *between, *nodes[2:]], [*weights, *stored], X, Y, opset)


SCALES = constant("scales", np.asarray([1, 1, 2, 2], np.float32))
FORMS = {
    "Upsample of opset 7": one_more(helper.make_node("Upsample", ["b"], ["m"], scales=[1.0, 1.0, 2.0, 2.0]), opset=7),
    "Upsample of opset 9": one_more(helper.make_node("Upsample", ["b", "scales"], ["m"]), stored=(SCALES,), opset=9),
    "Resize of opset 10": one_more(helper.make_node("Resize", ["b", "scales"], ["m"]), stored=(SCALES,), opset=10),
    "Dropout of opset 7": one_more(helper.make_node("Dropout", ["b"], ["m"], ratio=0.5), opset=7),
    "Clip of opset 7": one_more(helper.make_node("Clip", ["b"], ["m"], min=0.0, max=6.0), opset=7),
    "Slice of opset 9": one_more(
        helper.make_node("Slice", ["b"], ["m"], axes=[2, 3], starts=[1, 1], ends=[7, 7]), opset=9
    ),
    "Pad of opset 10": one_more(helper.make_node("Pad", ["b"], ["m"], pads=[0, 0, 1, 1, 0, 0, 1, 1]), opset=10),
    "Softmax of opset 11": one_more(helper.make_node("Softmax", ["b"], ["m"], axis=1), opset=11),
    "Split of opset 11": one_more(
        helper.make_node("Split", ["b"], ["p", "q"], axis=1, split=[16, 16]),
        helper.make_node("Concat", ["q", "p"], ["m"], axis=1),
        opset=11,
    ),
    "a batch of one written in reshapes": one_more(
        helper.make_node("Reshape", ["b", "flat"], ["p"]),
        helper.make_node("Reshape", ["p", "image"], ["m"]),
        stored=(constant("flat", np.asarray([1, 32, -1])), constant("image", np.asarray([1, 32, 8, 8]))),
    ),
    "numbers of Constant nodes": one_more(
        helper.make_node("Constant", [], ["half"], value_float=0.5), helper.make_node("Mul", ["b", "half"], ["m"])
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_files(form: str, tmp_path: Path) -> None:
    model = FORMS[form]
    net = tailor_ir.compile(model)
    check_forms(net, tmp_path)
    net.elastic.eval()
    net.elastic.activate(net.max_config)
    for batch in (1, 3):
        (x,) = net.sample_inputs(net.max_config, np.random.default_rng(batch), batch=batch)
        one_by_one = np.concatenate([run(model, x[row : row + 1])[0] for row in range(batch)])
        assert_close([one_by_one], answers(net.elastic, [x]))


def test_images_that_early_opsets_enlarge_keep_their_coordinates() -> None:
    model = one_more(helper.make_node("Resize", ["b", "scales"], ["m"], mode="linear"), stored=(SCALES,), opset=10)
    with suppress(tailor_ir.ImportFailed):  # of coordinates that no rule knows
        check_largest(tailor_ir.compile(model), model)


@pytest.mark.parametrize("samples", ["open", 1, 2])
def test_a_squeeze_without_axes_keeps_the_batch(samples: int | str, tmp_path: Path) -> None:
    nodes, stored = convolutions()
    nodes[-1:] = [
        helper.make_node("Gemm", ["f", "w3", "b3"], ["s"], "head", transB=1),
        helper.make_node("Squeeze", ["s"], ["y"], "squeeze"),
    ]
    stored[-2:] = [weight("w3", 1, 32), weight("b3", 1)]
    batch = "n" if samples == "open" else samples
    model = model_of(nodes, stored, {"x": [batch, 3, 8, 8]}, {"y": None})
    net = tailor_ir.compile(model)
    check_forms(net, tmp_path)
    net.elastic.activate(net.max_config)
    count = 1 if samples == 1 else 2
    (x,) = net.sample_inputs(net.max_config, np.random.default_rng(0), batch=count)
    (found,) = answers(net.elastic, [x])
    assert found.shape == (count,)
    assert_close([each.reshape(count) for each in run(model, x)], [found])


# -- what cannot be read ----------------------------------------------------------------------------------------------

REFUSED = {
    "a Transpose whose order is no list": helper.make_node("Transpose", ["b"], ["m"], "odd", perm=2),
    "a Transpose of too many axes": helper.make_node("Transpose", ["b"], ["m"], "odd", perm=[0, 1, 2, 3, 4]),
    "a Concat along an axis that is none": helper.make_node("Concat", ["b", "b"], ["m"], "odd", axis=7),
    "a Conv whose kernel is no list": helper.make_node("Conv", ["b", "w2"], ["m"], "odd", kernel_shape=3, pads=[1] * 4),
    "sums of sizes that do not agree": helper.make_node("Add", ["b", "w3"], ["m"], "odd"),
    "a sum with a name that is nowhere": helper.make_node("Add", ["b", "nowhere"], ["m"], "odd"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_form_of_an_operator_is_one_line(case: str) -> None:
    with pytest.raises(tailor_ir.ImportFailed) as failure:
        tailor_ir.compile(one_more(REFUSED[case]))
    assert "\n" not in str(failure.value)


# -- remarks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", ["bias", "Add", "Mul and Add", "Add of a Constant"])
def test_folded_norms_are_remarked_wherever_the_shift_is(shift: str) -> None:
    nodes, stored, value = [], [], "x"
    for i, channels in enumerate((3, 16, 16)):
        stored.append(weight(f"w{i}", 16, channels, 3, 3))
        bias = [f"b{i}"] if shift == "bias" else []
        stored.append(weight(f"b{i}", 16) if bias else weight(f"b{i}", 1, 16, 1, 1))
        nodes.append(helper.make_node("Conv", [value, f"w{i}", *bias], [f"c{i}"], pads=[1] * 4))
        value = f"c{i}"
        if shift == "Mul and Add":
            stored.append(weight(f"s{i}", 1, 16, 1, 1))
            nodes.append(helper.make_node("Mul", [value, f"s{i}"], [f"m{i}"]))
            value = f"m{i}"
        if shift == "Add of a Constant":
            nodes.insert(0, helper.make_node("Constant", [], [f"b{i}"], value=stored.pop()))
        if not bias:
            nodes.append(helper.make_node("Add", [value, f"b{i}"], [f"d{i}"]))
            value = f"d{i}"
        nodes.append(helper.make_node("Relu", [value], [f"e{i}"]))
        value = f"e{i}"
    nodes += [helper.make_node("GlobalAveragePool", [value], ["g"]), helper.make_node("Flatten", ["g"], ["y"])]
    remark, *_ = tailor_ir.compile(model_of(nodes, stored, X, {"y": ["n", 16]})).remarks
    assert remark.startswith("no BatchNorm, and 3 convolutions with biases")
    assert "dynamo=False" in remark


def test_open_sizes_that_are_written_as_minus_one(tmp_path: Path) -> None:
    nodes, stored = convolutions()
    model = model_of(nodes, stored, {"x": [-1, 3, 8, 8]}, {"y": [-1, 5]})
    check_forms(tailor_ir.compile(model), tmp_path)
    converted = tailor_ir.convert(model)
    assert converted.difference is not None
    assert converted.difference < 1e-5
    assert [one.type.tensor_type.shape.dim[0].dim_value for one in converted.model.graph.input] == [-1]


OWN_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "RNN": ["Relu"]}


@pytest.mark.parametrize(("op", "rows"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("steps", ["y", ""])
def test_a_recurrent_layer_from_the_last_step_to_the_first(op: str, rows: int, steps: str, tmp_path: Path) -> None:
    shapes = {"w": (1, rows * 8, 6), "r": (1, rows * 8, 8), "b": (1, rows * 16)}
    settings: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {"activations": OWN_ACTIVATIONS[op]}
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node(op, ["t", "w", "r", "b"], [steps, "h"], hidden_size=8, direction="reverse", **settings),
        helper.make_node("Squeeze", ["h", "axis0"], ["last"]),
    ]
    told: dict[str, Sizes] = {"last": ("batch", 8)}
    if steps:
        nodes += [
            helper.make_node("Squeeze", ["y", "axis1"], ["s"]),
            helper.make_node("Transpose", ["s"], ["all"], perm=[1, 0, 2]),
        ]
        told["all"] = ("batch", 5, 8)
    axes = [constant(f"axis{axis}", [axis]) for axis in (0, 1)]
    stored = [*(weight(name, *shape) for name, shape in shapes.items()), *axes]
    model = model_of(nodes, stored, {"x": ("batch", 5, 6)}, told)
    net = tailor_ir.compile(model)
    check_largest(net, model)
    check_forms(net, tmp_path)
