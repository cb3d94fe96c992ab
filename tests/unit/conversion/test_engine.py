"""The conversion as a whole: rules that are wrong are undone and named, and what cannot be converted is refused."""

from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tailor_ir
from tailor_ir.conversion import convert, count_nodes, engine
from tailor_ir.conversion.engine import RULES, Rewrite
from tests.support.conversion.small_models import ints, model, node, number, operators, weights


def wrong_rule(factor: float) -> Rewrite:
    """A rule that multiplies stored weights, once."""

    def apply(graph: gs.Graph) -> int:
        convolutions = [each for each in graph.nodes if each.op == "Conv" and each.inputs[1].name != "wrong"]
        for each in convolutions:
            each.inputs[1] = gs.Constant("wrong", each.inputs[1].values * np.float32(factor))
        return len(convolutions)

    return apply


CONV = model([node("Conv", "x w", "i"), node("Identity", "i", "j"), node("Relu", "j", "y")], {"w": weights(4, 4, 3, 3)})


def answers(made: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    """What onnxruntime gives with its default settings."""
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip([each.name for each in session.get_inputs()], inputs, strict=True)))


def test_a_rule_that_changes_outputs_is_undone_and_named_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "RULES", {"wrong": wrong_rule(1.5), **RULES})
    made = model([node("Conv", "x w", "i"), node("Mul", "i two", "y")], {"w": weights(4, 4, 3, 3), "two": number(2)})
    found = convert(made)
    (undone,) = found.undone
    assert undone.name == "wrong"
    assert undone.reason.startswith("outputs changed by 0.5, allowed 1e-05")
    assert operators(found.model) == ["Conv"]
    assert found.difference is not None
    assert found.difference <= 1e-6
    assert [rule.name for rule in found.rules] == ["scales and shifts after"]


def test_a_rule_that_only_rounds_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "RULES", {"wrong": wrong_rule(1.000001)})
    found = convert(CONV)
    assert not found.undone
    assert found.difference is not None
    assert 0 < found.difference < 1e-5


def test_a_rule_whose_model_does_not_run_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(graph: gs.Graph) -> int:
        (relu,) = [each for each in graph.nodes if each.op == "Relu"]
        relu.op = "Gemm"
        return 1

    monkeypatch.setattr(engine, "RULES", {"broken": apply})
    found = convert(CONV)
    assert [each.name for each in found.undone] == ["broken"]
    assert operators(found.model) == ["Conv", "Relu"]


@pytest.mark.parametrize("check", [True, False])
def test_a_failure_of_onnxslim_is_named_and_own_rules_go_on(check: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: onnx.ModelProto, **options: object) -> onnx.ModelProto:
        raise KeyError("nobody\nknows")

    monkeypatch.setattr("onnxslim.slim", fails)
    made = model([node("Conv", "x w", "i"), node("Mul", "i two", "y")], {"w": weights(4, 4, 3, 3), "two": number(2)})
    found = convert(made, check=check)
    assert [(each.name, each.reason) for each in found.undone] == [("onnxslim", "'nobody\\nknows'")]
    assert operators(found.model) == ["Conv"]


def test_padding_as_tensorflow_computes_it_stays_at_its_sides() -> None:
    """onnxslim's inference of shapes takes 1 // 2 for 1, and so would put the padding before the map."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape two", "size", axis=0),
        node("Sub", "size five", "total"),
        node("Div", "total double", "begin"),
        node("Sub", "total begin", "end"),
        node("Concat", "none none begin begin none none end end", "pads", axis=0),
        node("Pad", "x pads", "p"),
        node("MaxPool", "p", "y", kernel_shape=[3, 3], strides=[2, 2]),
    ]
    arrays = {"two": ints(2), "five": ints(5), "double": ints(2), "none": ints(0)}
    made = model(nodes, arrays)
    found = convert(made)
    assert found.undone == ()
    assert operators(found.model) == ["Pad", "MaxPool"]
    assert found.difference == 0


def test_weights_that_callers_may_replace_stay_inputs() -> None:
    made = model([node("Conv", "x w", "i"), node("Mul", "i two", "y")], {"w": weights(4, 4, 3, 3), "two": number(2)})
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (4, 4, 3, 3)))
    found = convert(made)
    assert operators(found.model) == ["Conv", "Mul"]
    assert found.model.graph.input == made.graph.input
    assert {tensor.name for tensor in found.model.graph.initializer} == {"w", "two"}


def test_without_checks_nothing_is_compared() -> None:
    found = convert(CONV, check=False)
    assert found.difference is None
    assert {rule.difference for rule in found.rules} == {None}
    assert operators(found.model) == ["Conv", "Relu"]


def test_a_dynamic_batch_stays_dynamic() -> None:
    made = model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n"),
            node("Concat", "n minus", "t", axis=0),
            node("Reshape", "x t", "f"),
            node("Gemm", "f w", "y"),
        ],
        {"zero": ints(0), "minus": ints(-1), "w": weights(144, 3)},
        shape=("batch", 4, 6, 6),
    )
    found = convert(made)
    assert operators(found.model)[-2:] == ["Reshape", "Gemm"]
    for batch in (1, 5):
        x = weights(batch, 4, 6, 6, seed=batch)
        assert np.allclose(answers(found.model, x)[0], answers(made, x)[0], atol=1e-6)


def test_whole_numbers_as_inputs_are_zeros_which_are_good_indices() -> None:
    made = model(
        [node("Gather", "table x", "e"), node("Identity", "e", "i"), node("Relu", "i", "y")],
        {"table": weights(3, 5)},
        shape=("batch", 7),
        kind=TensorProto.INT64,
    )
    found = convert(made)
    assert operators(found.model) == ["Gather", "Relu"]
    assert found.difference == 0


def test_values_that_branches_read_keep_their_names() -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph(
            [node(op, "j", f"out_{op}")],
            op,
            [],
            [helper.make_tensor_value_info(f"out_{op}", TensorProto.FLOAT, (2, 4, 6, 6))],
        )

    made = model(
        [
            node("Identity", "x", "i"),
            node("Identity", "i", "j"),
            node("ReduceSum", "i", "sum", keepdims=0),
            node("Greater", "sum zero", "c"),
            node("If", "c", "k", then_branch=branch("Relu"), else_branch=branch("Neg")),
            node("Identity", "k", "l"),
            node("Abs", "l", "y"),
        ],
        {"zero": number(0)},
    )
    found = convert(made)
    assert operators(found.model) == ["ReduceSum", "Greater", "If", "Abs"]
    for sign in (1, -1):
        x = np.full((2, 4, 6, 6), sign, np.float32)
        assert np.array_equal(answers(found.model, x)[0], answers(made, x)[0])


def test_a_large_tensor_that_is_made_of_little_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LARGEST_STORED_MIB", 1)
    elements = 2 * 2**18
    made = model(
        [
            node("Expand", "one s", "big"),
            node("Mul", "x big", "product"),
            node("ReduceSum", "product", "y", keepdims=0),
        ],
        {"one": number(1), "s": ints(elements)},
        shape=(1,),
    )
    found = convert(made)
    assert operators(found.model) == ["Expand", "Mul", "ReduceSum"]
    assert found.bytes_after < 2000


def test_the_frame_of_a_file_stays() -> None:
    made = model([node("Identity", "x", "i"), node("Relu", "i", "y")])
    made.producer_name, made.model_version, made.doc_string = "somebody", 7, "what it is for"
    made.metadata_props.add(key="author", value="me")
    converted = convert(made).model
    assert (converted.producer_name, converted.model_version, converted.doc_string) == ("somebody", 7, "what it is for")
    assert converted.metadata_props == made.metadata_props
    assert (converted.ir_version, converted.opset_import) == (made.ir_version, made.opset_import)


def test_weights_of_few_bits_stay_so() -> None:
    made = model(
        [node("DequantizeLinear", "q s", "w"), node("Identity", "x", "i"), node("Conv", "i w", "y")],
        {"q": (weights(4, 4, 3, 3) * 100).astype(np.int8), "s": number(0.01)},
    )
    found = convert(made)
    assert operators(found.model) == ["DequantizeLinear", "Conv"]
    assert found.bytes_after < 1000


def test_random_numbers_cannot_be_compared() -> None:
    made = model([node("RandomNormalLike", "x", "i"), node("Identity", "i", "j"), node("Mul", "x j", "y")])
    with pytest.raises(tailor_ir.TailorError, match="the model has RandomNormalLike, whose results differ in each run"):
        convert(made)
    assert operators(convert(made, check=False).model) == ["RandomNormalLike", "Mul"]


def test_old_opsets_are_refused() -> None:
    made = model([node("Relu", "x", "y")])
    made.opset_import[0].version = 6
    with pytest.raises(tailor_ir.TailorError, match="the file has opset 6; allowed: 7 or later; export it again"):
        convert(made)


def test_constant_nodes_are_not_counted() -> None:
    made = model([node("Constant", "", "c", value_float=2.0), node("Mul", "x c", "y")])
    assert count_nodes(made) == 1


def test_a_file_that_onnxruntime_cannot_run_is_refused_in_one_line_and_converted_without_checks() -> None:
    made = model([node("Identity", "x", "i"), node("Relu", "i", "y")])
    made.graph.node[1].domain = "nobody.knows"
    made.opset_import.add(domain="nobody.knows", version=1)
    with pytest.raises(
        tailor_ir.TailorError, match=r"conversion: onnxruntime cannot run .*check=false converts"
    ) as found:
        convert(made)
    assert "\n" not in str(found.value)
    assert operators(convert(made, check=False).model) == ["Relu"]


def test_external_data_becomes_a_part_of_the_file(tmp_path: Path) -> None:
    made = onnx.load_from_string(CONV.SerializeToString())  # saving changes it
    onnx.save(made, tmp_path / "a.onnx", save_as_external_data=True, location="a.bin", size_threshold=0)
    found = convert(tmp_path / "a.onnx")
    x = weights(2, 4, 6, 6, seed=3)
    assert np.array_equal(answers(found.model, x)[0], answers(CONV, x)[0])
