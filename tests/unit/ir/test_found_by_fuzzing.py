"""Small networks that random ones were shrunk to: each was a fault, and holds now whatever holds for all networks."""

import numpy as np
import pytest
import torch

import tailor_ir
from tests.fuzzing.checks import Outcome, examine
from tests.fuzzing.networks import Network, Step

IMAGE = {"x": ("float32", ("N", 3, 6, 5))}
KERNEL = {"w": (8, 3, 3, 3)}
CONVOLUTION = Step("Conv", "x w", "u", {"pads": [1, 1, 1, 1]})


def holds(network: Network) -> Outcome:
    """What came of a network that compiles without a fault."""
    outcome = examine(network)
    assert not outcome.faults, outcome.faults
    assert not outcome.refused
    return outcome


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [[2, 1, 1, 0], [0, 2, 0, 1], [-1, 1, 2, 0], [0, -1, 0, 1]], ids=str)
def test_padding_of_named_axes(mode: str, pads: list[int]) -> None:
    steps = (CONVOLUTION, Step("Pad", "u p _ a", "y", {"mode": mode}))
    holds(
        Network(
            inputs=IMAGE, steps=steps, outputs=("y",), weights=KERNEL, constants={"p": pads, "a": [-2, 3]}, opset=19
        )
    )


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_padding_of_channels(mode: str) -> None:
    steps = (CONVOLUTION, Step("Pad", "u p", "y", {"mode": mode}), Step("Conv", "y v", "z"))
    weights, pads = {**KERNEL, "v": (4, 11, 3, 3)}, [0, 1, 0, 1, 0, 2, 1, 1]
    holds(Network(inputs=IMAGE, steps=steps, outputs=("z",), weights=weights, constants={"p": pads}, opset=19))


@pytest.mark.parametrize(("op", "last"), [("ArgMax", 0), ("ArgMax", 1), ("ArgMin", 0), ("ArgMin", 1)])
def test_positions_of_equal_entries(op: str, last: int) -> None:
    steps = (
        Step("Greater", "x limit", "u"),
        Step("Cast", "u", "v", {"to": 1}),
        Step("TopK", "v count", "values places", {"largest": int(op == "ArgMax")}),
        Step(op, "v", "place", {"axis": 2, "select_last_index": last}),
    )
    outputs = ("values", "places", "place")
    holds(Network(inputs=IMAGE, steps=steps, outputs=outputs, constants={"limit": 0.1, "count": [3]}))


def test_a_clip_without_limits() -> None:
    steps = (CONVOLUTION, Step("Clip", "u", "y"), Step("ReduceMean", "y", "z", {"axes": [2, 3], "keepdims": 0}))
    holds(Network(inputs=IMAGE, steps=steps, outputs=("z",), weights=KERNEL))


RESIZES = (
    ("_ scales", {"axes": [2, 3]}),
    ("_ _ sizes", {"axes": [-2, -1]}),
    ("_ _ sizes", {"axes": [3, 2], "keep_aspect_ratio_policy": "stretch", "antialias": 0}),
    ("_ _ sizes", {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
)


@pytest.mark.parametrize(("inputs", "attributes"), RESIZES)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resizing_of_named_axes(inputs: str, attributes: dict[str, object], mode: str) -> None:
    settings = {"mode": mode, "coordinate_transformation_mode": "asymmetric" if mode == "nearest" else "half_pixel"}
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    steps = (CONVOLUTION, Step("Resize", f"u {inputs}", "y", {**attributes, **settings, **more}))
    sizes = [10, 12] if attributes["axes"] == [3, 2] else [12, 10]
    constants = {"scales": [2.0, 2.0]} if "scales" in inputs else {"sizes": sizes}
    holds(Network(inputs=IMAGE, steps=steps, outputs=("y",), weights=KERNEL, constants=constants, opset=19))


@pytest.mark.parametrize(
    "step",
    [
        Step("AveragePool", "u", "y", {"kernel_shape": [2, 2], "dilations": [1, 1]}),
        Step("Cast", "u", "y", {"to": 1, "saturate": 1}),
        Step("ReduceSum", "u", "y", {"noop_with_empty_axes": 1}),
        Step("ReduceMax", "u", "y", {"noop_with_empty_axes": 1, "keepdims": 0}),
        Step("ReduceMean", "u axes", "y", {"noop_with_empty_axes": 0}),
    ],
    ids=str,
)
def test_attributes_of_later_opsets(step: Step) -> None:
    steps, constants = (CONVOLUTION, step), {"axes": [2, 3]} if "axes" in step.inputs else {}
    holds(Network(inputs=IMAGE, steps=steps, outputs=("y",), weights=KERNEL, constants=constants, opset=19))


def test_a_half_that_is_an_output_and_changes_places() -> None:
    steps = (
        CONVOLUTION,
        Step("Slice", "u two end two", "tail"),
        Step("Slice", "u zero two two", "head"),
        Step("Concat", "tail head", "y", {"axis": 2}),
    )
    constants = {"zero": [0], "two": [2], "end": [2**63 - 1]}
    holds(Network(inputs=IMAGE, steps=steps, outputs=("head", "y"), weights=KERNEL, constants=constants))


def test_truth_values_as_an_input() -> None:
    steps = (Step("Cast", "x", "u", {"to": 1}), Step("Gemm", "u w b", "y", {"transB": 1}))
    weights = {"w": (8, 6), "b": (8,)}
    holds(Network(inputs={"x": ("bool", ("N", 6))}, steps=steps, outputs=("y",), weights=weights))


def test_an_answer_made_of_weights_alone_is_a_copy() -> None:
    """Callers may change it, and read it without `detach` where no gradient is recorded."""
    steps = (CONVOLUTION, Step("Celu", "w", "y", {"alpha": 1.0}), Step("ReduceMean", "u", "z", {"axes": [2, 3]}))
    network = Network(inputs=IMAGE, steps=steps, outputs=("z", "y"), weights=KERNEL)
    holds(network)
    net = tailor_ir.compile(network.model(2))
    x = torch.zeros(2, 3, 6, 5)
    for module in (net.elastic.eval(), net.build(net.max_config)):
        with torch.no_grad():
            first, again = module(x)[1], module(x)[1]
            assert not first.requires_grad
            assert torch.equal(first.clone(), again)
            first.zero_()
            assert torch.equal(module(x)[1], again)


def test_normalised_rows_of_an_image_are_as_many_as_the_resolution_has() -> None:
    steps = (
        Step("Gather", "x zero", "u", {"axis": 1}),
        Step("Reshape", "u pairs", "v"),
        Step("InstanceNormalization", "v ones zeros", "y"),
    )
    constants = {"zero": 0, "pairs": [0, 2, -1], "ones": [1.0, 1.0], "zeros": [0.0, 0.0]}
    image = {"x": ("float32", ("N", 3, 4, 4))}
    assert holds(Network(inputs=image, steps=steps, outputs=("y",), constants=constants)).subnets >= 1


def test_positions_that_name_all_channels_keep_them() -> None:
    steps = (
        Step("Conv", "x w", "u", {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        Step("Reshape", "u flat", "v"),
        Step("Gather", "b places", "t"),
        Step("Squeeze", "t ends", "s"),
        Step("Add", "v s", "a"),
        Step("ReduceMean", "a", "y", {"axes": [2]}),
    )
    constants = {"flat": [0, 1, -1], "places": [list(range(127, -1, -1))], "ends": [0, 2]}
    image = {"x": ("float32", ("N", 3, 8, 8))}
    holds(Network(inputs=image, steps=steps, outputs=("y",), weights={**KERNEL, "b": (128, 1)}, constants=constants))


@pytest.mark.parametrize("further", ["mean", "variance"])
def test_statistics_of_a_norm_in_training_form_are_refused_where_they_are_read(further: str) -> None:
    steps = (
        Step("BatchNormalization", "w ones zeros zeros ones", "v mean variance", {"training_mode": 1}),
        Step("Conv", "x v", "u", {"pads": [1, 1, 1, 1]}),
        Step("Tanh", further, "y"),
    )
    constants = {"ones": [1.0, 1.0, 1.0], "zeros": [0.0, 0.0, 0.0]}
    network = Network(inputs=IMAGE, steps=steps, outputs=("u", "y"), weights=KERNEL, constants=constants)
    outcome = examine(network)
    assert not outcome.faults
    assert outcome.refused.startswith(f"operator 'Tanh' at 'Tanh_y': reads '{further}', a further output of a norm")
    whole = Network(inputs=IMAGE, steps=steps[:2], outputs=("u", further), weights=KERNEL, constants=constants)
    assert "a further output of a norm" in examine(whole).refused


@pytest.mark.parametrize("positions", [4, 5])
def test_a_norm_over_positions_is_not_folded_into_a_linear_map_though_it_has_as_many_results(positions: int) -> None:
    steps = (Step("MatMul", "x w", "u"), Step("BatchNormalization", "u g b bm g", "y"))
    weights = {"w": (3, 4), "g": (positions,), "b": (positions,), "bm": (positions,)}
    rows = {"x": ("float32", ("N", positions, 3))}
    holds(Network(inputs=rows, steps=steps, outputs=("y",), weights=weights))


def test_layers_behind_a_value_that_is_an_output_itself_are_in_every_subnet() -> None:
    steps = (Step("Flatten", "x", "v"), Step("Gemm", "v w", "y", {"transB": 1}), Step("Sin", "v", "z"))
    image = {"x": ("float32", ("N", 3, 4, 4))}
    holds(Network(inputs=image, steps=steps, outputs=("v", "y", "z"), weights={"w": (4, 48)}))


def test_a_weight_that_meets_channels_in_two_orders_keeps_them() -> None:
    steps = (
        Step("Conv", "x w", "u", {"strides": [2, 2]}),
        Step("Reshape", "u rows", "v"),
        Step("Transpose", "v", "t", {"perm": [0, 2, 1]}),
        Step("Flatten", "t", "one"),
        Step("Flatten", "v", "other"),
        Step("Gemm", "one a", "p", {"transB": 1}),
        Step("Gemm", "other a", "q", {"transB": 1}),
        Step("Sum", "p q", "y"),
    )
    image = {"x": ("float32", ("N", 3, 8, 8))}
    weights, constants = {"w": (8, 3, 2, 2), "a": (16, 128)}, {"rows": [0, 0, -1]}
    holds(Network(inputs=image, steps=steps, outputs=("y",), weights=weights, constants=constants))


@pytest.mark.parametrize(("mode", "pads"), [("reflect", [2, 2]), ("reflect", [0, 3]), ("wrap", [3, 1])])
def test_what_is_padded_from_itself_is_long_enough_in_every_subnet(mode: str, pads: list[int]) -> None:
    steps = (CONVOLUTION, Step("Pad", "u p", "y", {"mode": mode}))
    constants = {"p": [0, 0, pads[0], pads[0], 0, 0, pads[1], pads[1]]}
    image = {"x": ("float32", ("N", 3, 8, 8))}
    holds(Network(inputs=image, steps=steps, outputs=("y",), weights=KERNEL, constants=constants, opset=19))


@pytest.mark.parametrize("operator", ["InstanceNormalization", "GroupNormalization"])
def test_norms_of_one_value_each_run_in_a_batch_of_one(operator: str) -> None:
    attributes = {"num_groups": 8} if operator == "GroupNormalization" else {}
    steps = (
        Step("MatMul", "x w", "u"),
        Step("Transpose", "u", "v", {"perm": [0, 2, 1]}),
        Step(operator, "v g b", "n", attributes),
        Step("Tanh", "n", "y"),
    )
    constants = {"g": [1.0] * 8, "b": [0.5] * 8}
    rows = {"x": ("float32", ("N", 1, 3))}
    holds(Network(inputs=rows, steps=steps, outputs=("y",), weights={"w": (3, 8)}, constants=constants, opset=21))


def test_a_batch_norm_has_any_number_of_axes() -> None:
    steps = (CONVOLUTION, Step("Unsqueeze", "u two", "v"), Step("BatchNormalization", "v g b bm g", "y"))
    weights = {**KERNEL, "g": (8,), "b": (8,), "bm": (8,)}
    constants = {"two": [2, 3]}
    image = {"x": ("float32", ("N", 3, 8, 8))}
    holds(Network(inputs=image, steps=steps, outputs=("y",), weights=weights, constants=constants))


def test_files_of_two_inputs_with_an_open_batch_need_no_example() -> None:
    steps = (Step("Gemm", "x v", "u"), Step("Gemm", "z w", "t"), Step("Add", "u t", "s"), Step("Tanh", "s", "y"))
    rows = {"x": ("float32", ("N", 8)), "z": ("float32", ("N", 6))}
    holds(Network(inputs=rows, steps=steps, outputs=("y",), weights={"v": (8, 16), "w": (6, 16)}))


@pytest.mark.parametrize("pads", [(0, 2), (2, 0), (3, 1), (2, 5)])
def test_an_axis_shorter_than_its_padding_from_itself_comes_several_times(pads: tuple[int, int]) -> None:
    steps = (Step("Pad", "x p", "u", {"mode": "wrap"}), Step("Conv", "u w", "y", {"pads": [1, 1, 1, 1]}))
    constants = {"p": [0, pads[0], 0, 0, 0, pads[1], 0, 2]}
    weights = {"w": (8, 1 + sum(pads), 3, 3)}
    image = {"x": ("float32", ("N", 1, 8, 8))}
    holds(Network(inputs=image, steps=steps, outputs=("y",), weights=weights, constants=constants, opset=19))


def test_a_transpose_without_an_order_turns_all_axes_round() -> None:
    steps = (
        Step("Gemm", "x v", "u"),
        Step("Transpose", "u", "t"),
        Step("Transpose", "t", "r"),
        Step("Gemm", "r w", "y"),
    )
    holds(
        Network(inputs={"x": ("float32", ("N", 8))}, steps=steps, outputs=("y",), weights={"v": (8, 16), "w": (16, 4)})
    )


def test_positions_from_the_end_are_looked_up() -> None:
    steps = (CONVOLUTION, Step("Gather", "u p", "y", {"axis": 2}))
    image = {"x": ("float32", ("N", 3, 8, 8))}
    holds(Network(inputs=image, steps=steps, outputs=("y",), weights=KERNEL, constants={"p": [0, -1, -3]}))


def test_a_norm_in_training_form_has_a_default_epsilon() -> None:
    steps = (
        Step("BatchNormalization", "w ones zeros zeros ones", "v mean variance", {"training_mode": 1}),
        Step("Conv", "x v", "y", {"pads": [1, 1, 1, 1]}),
    )
    constants = {"ones": [1.0, 1.0, 1.0], "zeros": [0.0, 0.0, 0.0]}
    holds(Network(inputs=IMAGE, steps=steps, outputs=("y",), weights=KERNEL, constants=constants))


@pytest.mark.parametrize("axis", [2, -1])
def test_a_single_axis_that_is_no_list(axis: int) -> None:
    """onnxruntime inserts the axis; it refuses the same for other operators than Unsqueeze."""
    steps = (
        CONVOLUTION,
        Step("Unsqueeze", "u axis", "v"),
        Step("ReduceMean", "v", "z", {"axes": [axis], "keepdims": 0}),
        Step("Shape", "z", "sizes"),
        Step("Gather", "sizes zero", "samples"),
        Step("Unsqueeze", "samples zero", "first"),
        Step("Concat", "first rest", "flat", {"axis": 0}),
        Step("Reshape", "z flat", "y"),
    )
    constants = {"axis": axis, "zero": 0, "rest": [8, -1]}
    holds(Network(inputs=IMAGE, steps=steps, outputs=("y",), weights=KERNEL, constants=constants))


SUMS = [(), (1,), (1, 1), (1, 16), (16,)]


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("shape", SUMS, ids=str)
def test_a_gemm_adds_whatever_is_stretched_to_its_result(shape: tuple[int, ...], turned: int) -> None:
    steps = (Step("Gemm", "x w b", "u", {"transB": turned}), Step("Relu", "u", "v"), Step("Gemm", "v wv", "y"))
    weights = {"w": (16, 3) if turned else (3, 16), "b": shape, "wv": (16, 5)}
    rows = {"x": ("float32", ("N", 3))}
    assert holds(Network(inputs=rows, steps=steps, outputs=("y",), weights=weights)).subnets > 1


@pytest.mark.parametrize("added", ["m", "z"])
def test_a_gemm_adds_a_value_that_is_computed(added: str) -> None:
    """One number for each sample, or for each of its entries."""
    steps = (
        Step("ReduceMean", "x", "m", {"axes": [1]}),
        Step("Gemm", "x wz", "z", {"transB": 1}),
        Step("Gemm", f"x w {added}", "u", {"transB": 1}),
        Step("Gemm", "u wv", "y", {"transB": 1}),
    )
    weights = {"w": (16, 3), "wz": (16, 3), "wv": (5, 16)}
    holds(Network(inputs={"x": ("float32", ("N", 3))}, steps=steps, outputs=("y",), weights=weights).needed())


@pytest.mark.parametrize("axis", [3, [3]], ids=str)
def test_running_sums_along_an_axis_that_is_a_number_or_a_list_of_one(axis: int | list[int]) -> None:
    steps = (CONVOLUTION, Step("CumSum", "u axis", "y"))
    holds(Network(inputs=IMAGE, steps=steps, outputs=("y",), weights=KERNEL, constants={"axis": axis}))


@pytest.mark.parametrize("results", ["_ y", "_ _ y", "y _ _", "y _ c"])
def test_results_of_a_recurrent_layer_that_are_left_out(results: str) -> None:
    turned = Step("Transpose", "x", "s", {"perm": [1, 0, 2]})
    steps = (turned, Step("LSTM", "s w wr", results, {"hidden_size": 6}))
    weights = {"w": (1, 24, 3), "wr": (1, 24, 6)}
    outputs = tuple(name for name in results.split() if name != "_")
    holds(Network(inputs={"x": ("float32", ("N", 4, 3))}, steps=steps, outputs=outputs, weights=weights))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("operands", ["s w wr", "s w wr b _ h"])
def test_a_gru_that_resets_its_state_before_the_product(operands: str, direction: str) -> None:
    """This form is ONNX's default. torch has the other one."""
    sides = 2 if direction == "bidirectional" else 1
    steps = (
        Step("Transpose", "x", "s", {"perm": [1, 0, 2]}),
        Step("MatMul", "x wh", "m"),
        Step("ReduceMax", "m", "t", {"axes": [1], "keepdims": 0}),
        Step("Reshape", "t apart", "r"),
        Step("Transpose", "r", "h", {"perm": [1, 0, 2]}),
        Step("GRU", operands, "_ last", {"hidden_size": 16, "direction": direction}),
        Step("ReduceMean", "last", "v", {"axes": [0], "keepdims": 0}),
        Step("MatMul", "v wv", "y"),
    )
    weights = {"w": (sides, 48, 3), "wr": (sides, 48, 16), "b": (sides, 96), "wh": (3, 16 * sides), "wv": (16, 5)}
    rows = {"x": ("float32", ("N", 4, 3))}
    constants = {"apart": [-1, sides, 16]}
    network = Network(inputs=rows, steps=steps, outputs=("y",), weights=weights, constants=constants)
    assert holds(network.needed()).subnets > 1


@pytest.mark.parametrize("entries", [16, 40, 512])
@pytest.mark.parametrize("axis", [0, 1])
def test_stored_numbers_that_are_looked_up_one_by_one(entries: int, axis: int) -> None:
    rng = np.random.default_rng(0)
    table, places = rng.standard_normal((entries, entries)), rng.integers(-entries, entries, (8, 3))
    steps = (CONVOLUTION, Step("GatherElements", "table places", "g", {"axis": axis}), Step("Reshape", "g shape", "r"))
    constants = {"table": table.tolist(), "places": places.tolist(), "shape": [1, 8, 3, 1]}
    pooled = Step("ReduceMean", "u", "m", {"axes": [2, 3]})
    holds(
        Network(
            inputs=IMAGE,
            steps=(*steps, pooled, Step("Mul", "m r", "y")),
            outputs=("y",),
            weights=KERNEL,
            constants=constants,
        )
    )


FROM_THE_END = {
    "rows of a weight": (Step("Squeeze", "n axes", "s"), Step("Gather", "w s", "y")),
    "entries of a value": (Step("GatherElements", "x n", "y", {"axis": 2}),),
    "writes": (Step("ReduceMax", "x", "v", {"axes": [2]}), Step("ScatterElements", "x n v", "y", {"axis": 2})),
}


@pytest.mark.parametrize("use", FROM_THE_END)
def test_computed_positions_may_count_from_the_end(use: str) -> None:
    largest = Step("ArgMax", "x", "a", {"axis": 2, "keepdims": 1})
    steps = (largest, Step("Sub", "a two", "n"), *FROM_THE_END[use])
    weights, constants = {"w": (5, 8)}, {"two": 2, "axes": [2]}
    network = Network(
        inputs={"x": ("float32", ("N", 4, 3))}, steps=steps, outputs=("y",), weights=weights, constants=constants
    )
    holds(network.needed())


def test_a_squeeze_that_would_drop_a_single_sample_is_compared_with_several() -> None:
    """The file answers one sample otherwise, since the axes behind the batch are others there."""
    squeezed = (Step("Unsqueeze", "u axes", "s"), Step("Squeeze", "s", "t"))
    steps = (CONVOLUTION, *squeezed, Step("ReduceMean", "t", "y", {"axes": [1], "keepdims": 0}))
    holds(Network(inputs=IMAGE, steps=steps, outputs=("y",), weights=KERNEL, constants={"axes": [1]}))


@pytest.mark.parametrize("opset", [15, 17])
def test_a_squeeze_without_axes_keeps_the_batch_of_a_file_for_one_sample(opset: int) -> None:
    network = Network(
        inputs={"x": ("float32", ("N", 4, 1)), "z": ("float32", ("N", 4))},
        steps=(Step("Squeeze", "x", "s"), Step("Add", "s z", "y")),
        outputs=("y",),
        opset=opset,
        fixed_batch=1,
    )
    holds(network)
    assert tailor_ir.compile(network.model(1)).structure.graph.batch_axes == (), "of both inputs the first axis"


def test_a_norm_of_words_that_are_masked_is_compared_with_its_definition() -> None:
    """ONNX divides by the deviation plus 1e-9; onnxruntime by the deviation, which is 0 in words that are masked."""
    words = (Step("Gather", "table x", "t"), Step("Greater", "x limit", "g"), Step("Cast", "g", "m", {"to": 1}))
    masked = (*words, Step("Unsqueeze", "m last", "u"), Step("Mul", "t u", "v"))
    norm = Step("MeanVarianceNormalization", "v", "n", {"axes": [2]})
    network = Network(
        inputs={"x": ("int64", ("N", 8))},
        steps=(*masked, norm, Step("MatMul", "n w", "y")),
        outputs=("y",),
        weights={"table": (16, 6), "w": (6, 8)},
        constants={"limit": 4, "last": [2]},
    )
    net = tailor_ir.compile(network.model(2))
    with torch.no_grad():
        assert net.elastic.eval()(torch.zeros(2, 8, dtype=torch.int64)).isfinite().all()


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("between", ["MatMul", "Relu"])
def test_a_resize_that_onnxruntime_would_move_a_transpose_behind(between: str, mode: str) -> None:
    """It then refuses its own graph, whose first resized axis is the channels; a SubNet may lack the layer between."""
    steps = (
        Step("Transpose", "x", "t", {"perm": [0, 2, 3, 1]}),
        Step("MatMul", "t w", "m"),
        Step("Relu", "m", "r"),
        Step("Resize", f"{'m' if between == 'MatMul' else 'r'} _ factors", "y", {"mode": mode}),
    )
    network = Network(
        inputs={"x": ("float32", ("N", 3, 4, 4))},
        steps=steps,
        outputs=("y",),
        weights={"w": (3, 3)},
        constants={"factors": [1.0, 1.0, 0.5, 0.5]},
    )
    holds(network.needed())


def test_a_padding_that_onnxruntime_would_merge_into_a_pooling() -> None:
    """It takes zeros for minus infinity, in the given file, too, whose answers are compared."""
    steps = (CONVOLUTION, Step("Pad", "u c", "p"), Step("MaxPool", "p", "m", {"kernel_shape": [3, 3]}))
    constants = {"c": [0, 0, 0, 1, 0, 0, 1, 0]}
    negative = (Step("Abs", "m", "a"), Step("Neg", "a", "y"))
    holds(Network(inputs=IMAGE, steps=(*steps, *negative), outputs=("y",), weights=KERNEL, constants=constants))
    pooled = (Step("Pad", "x c", "p"), Step("MaxPool", "p", "y", {"kernel_shape": [3, 3]}))
    holds(Network(inputs=IMAGE, steps=pooled, outputs=("y",), constants=constants))


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("end", [1, 2])
def test_a_padding_that_onnxruntime_would_merge_into_an_average(end: int, ceil: int) -> None:
    """It refuses pads as wide as the kernel, and rounds other sizes up."""
    average = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0], "ceil_mode": ceil}
    steps = (CONVOLUTION, Step("Pad", "u c", "p"), Step("AveragePool", "p", "y", average))
    constants = {"c": [0, 0, end, 1, 0, 0, end, 0]}
    holds(Network(inputs=IMAGE, steps=steps, outputs=("y",), weights=KERNEL, constants=constants))


@pytest.mark.parametrize("axis", [2, 3])
def test_two_positions_that_are_divided_into_both_ends_keep_the_resolution(axis: int) -> None:
    """Each end exists at every resolution, but one position has no two ends."""
    steps = (Step("Split", "x", "a b", {"axis": axis}), Step("Sub", "a b", "y"))
    network = Network(inputs={"x": ("float32", ("N", 4, 2, 2))}, steps=steps, outputs=("y",))
    holds(network)
    assert "pieces of constant sizes" in tailor_ir.compile(network.model(2)).structure.axis_map.resolution_frozen


def test_an_activation_of_a_constant_of_one_number() -> None:
    steps = (Step("Softsign", "half", "third"), Step("Mul", "x third", "y"))
    network = Network(inputs={"x": ("float32", ("N", 4))}, steps=steps, outputs=("y",), constants={"half": 0.5})
    holds(network)
    net = tailor_ir.compile(network.model(2))
    assert torch.allclose(net.elastic.eval()(torch.full((2, 4), 3.0)), torch.ones(2, 4))
