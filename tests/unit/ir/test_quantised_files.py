"""Files in QDQ form are the network before it was quantised; other integer operators are refused."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

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
)

X: Shapes = {"x": ["n", 3, 8, 8]}
Y: Shapes = {"y": ["n", 5]}


def pair(
    source: str, target: str, zero: np.integer, scale: float = 1e-3, domain: str = ""
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """A value that is quantised on its way."""
    names = [f"{target}/scale", f"{target}/zero"]
    nodes = [
        helper.make_node("QuantizeLinear", [source, *names], [f"{target}/q"], f"{target}/quantise", domain=domain),
        helper.make_node("DequantizeLinear", [f"{target}/q", *names], [target], domain=domain),
    ]
    return nodes, [constant(names[0], np.float32(scale)), constant(names[1], zero)]


def quantised(zero: np.integer, *, with_activation: bool, domain: str = "") -> onnx.ModelProto:
    """The small network with rounded values before and behind its first activation."""
    nodes, stored = convolutions()
    first, kept = pair("a", "a/dq", zero, domain=domain)
    nodes[1] = helper.make_node("Relu" if with_activation else "Identity", ["a/dq"], ["b/plain"])
    second, more = pair("b/plain", "b", zero, domain=domain)
    model = model_of([nodes[0], *first, nodes[1], *second, *nodes[2:]], [*stored, *kept, *more], X, Y)
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("with_activation", [True, False])
@pytest.mark.parametrize("zero", [np.int8(0), np.uint8(0), np.int8(-128), np.uint8(100)])
def test_rounding_is_left_out_and_a_range_from_zero_stays(
    zero: np.integer, with_activation: bool, domain: str, tmp_path: Path
) -> None:
    model = quantised(zero, with_activation=with_activation, domain=domain)
    net = tailor_ir.compile(model)
    assert any(
        "the file is quantised: 2 times QuantizeLinear, first at 'a/dq/quantise'" in line for line in net.remarks
    )
    ops = [node.op for node in net.structure.graph.nodes]
    from_zero = int(zero) == np.iinfo(zero.dtype).min
    assert ops.count("Clip") == from_zero
    assert ops.count("Relu") == 1 + with_activation
    check_forms(net, tmp_path)
    net.elastic.activate(net.max_config)
    (x,) = net.sample_inputs(net.max_config, np.random.default_rng(0), batch=2)
    if with_activation or from_zero:
        nodes, stored = convolutions()
        top = np.float32(255e-3)
        nodes[1:2] = [helper.make_node("Clip", ["a", "low", "top"], ["b"])]
        limits = [constant("low", np.float32(0)), constant("top", top if from_zero else np.float32(1e9))]
        (expected,) = run(model_of(nodes, [*stored, *limits], X, Y), x)
        assert_close([expected], answers(net.elastic, [x]))


def test_values_that_are_moved_as_integers(tmp_path: Path) -> None:
    nodes, stored = convolutions()
    (quantise, dequantise), kept = pair("b", "b/dq", np.int8(0))
    dequantise.input[0] = "moved"
    nodes[2].input[0] = "b/dq"
    pool = helper.make_node("MaxPool", ["b/dq/q"], ["moved"], kernel_shape=[2, 2], strides=[2, 2])
    model = model_of([*nodes[:2], quantise, pool, dequantise, *nodes[2:]], [*stored, *kept], X, Y)
    net = tailor_ir.compile(model)
    check_forms(net, tmp_path)
    assert "MaxPool" in {node.op for node in net.structure.graph.nodes}


def test_integers_that_are_given_are_scaled(tmp_path: Path) -> None:
    nodes, stored = convolutions()
    nodes[0].input[0] = "x/scaled"
    stored += [constant("scale", np.float32(1 / 255)), constant("zero", np.uint8(128))]
    model = model_of([helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["x/scaled"]), *nodes], stored, X, Y)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    net = tailor_ir.compile(model)
    check_forms(net, tmp_path)
    net.elastic.activate(net.max_config)
    x = np.random.default_rng(0).integers(256, size=(2, 3, 8, 8)).astype(np.uint8)
    assert_close(run(model, x), answers(net.elastic, [x]))


@pytest.mark.parametrize("case", ["output", "operator", "QLinearConv", "ConvInteger"])
def test_other_integers_are_one_line(case: str) -> None:
    nodes, stored = convolutions()
    (quantise, dequantise), kept = pair("b", "b/dq", np.uint8(0))
    outputs: dict[str, Sizes] = {"y": ["n", 5]}
    if case == "output":
        outputs |= {"b/dq/q": ["n", 32, 8, 8]}
    elif case == "operator":
        dequantise.input[0] = "sum"
        nodes.insert(2, helper.make_node("Add", ["b/dq/q", "b/dq/q"], ["sum"], "sum of integers"))
    else:
        nodes.insert(2, helper.make_node(case, ["b", "w2"], ["odd"], "odd"))
    nodes[1:2] = [nodes[1], quantise]
    nodes.append(dequantise)
    with pytest.raises(tailor_ir.ImportFailed, match="quantised") as failure:
        tailor_ir.compile(model_of(nodes, [*stored, *kept], X, outputs))
    assert "\n" not in str(failure.value)
