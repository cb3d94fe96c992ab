"""Every pass leaves a network as it must be, and what it breaks is said with the pass and the check."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
import torch
from onnx import TensorProto, helper

import tailor_ir
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.ops import OPERATORS
from tailor_ir.reading import importer
from tailor_ir.rewriting import passes
from tests.support.ir import spec
from tests.support.ir.elastic_networks import NETWORKS, network
from tests.support.ir.networks import from_timm, small_net

REAL = ("mobilenetv3_small_050", "vit_tiny_patch16_224")


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the passes that were checked."""
    names: list[str] = []

    def noted(check: Callable[..., None]) -> Callable[..., None]:
        def call(pass_name: str, *given: Any) -> None:
            check(pass_name, *given)
            names.append(pass_name)

        return call

    monkeypatch.setattr(spec, "check_ir", noted(spec.check_ir))
    monkeypatch.setattr(spec, "check_onnx", noted(spec.check_onnx))
    return names


@pytest.mark.parametrize("name", [*NETWORKS, *REAL])
def test_every_pass_leaves_a_network_as_it_must_be(name: str, passed: list[str]) -> None:
    model, sample = from_timm(name) if name in REAL else (network(name), torch.zeros(1, 3, 32, 32))
    tailor_ir.compile(model, sample)
    onnx_passes = [one.__name__ for one in importer.PASSES]
    ir_passes = [one.__name__ for one in passes.PASSES]
    others = ["fold", "share_rows", "normalise", "import_onnx", "simplify", "repeat_for_samples"]
    assert set(passed) == {*onnx_passes, *ir_passes, *others, "apply_rule"}
    assert [one for one in passed if one in onnx_passes + ir_passes] == onnx_passes + ir_passes


def test_learned_kernels_leave_a_network_as_it_must_be(passed: list[str]) -> None:
    model = network("depthwise convolution, centre of the kernel")
    tailor_ir.compile(model, torch.zeros(1, 3, 32, 32), kernel_transform=True)
    assert passed[-1] == "transform_kernels"


# -- each check finds what it is for ---------------------------------------------------------------------------------


def read() -> tuple[Graph, Tensors]:
    net = tailor_ir.compile(small_net(), torch.zeros(1, 3, 32, 32))
    return net.structure.graph, dict(net.elastic.tensors())


def _changed(graph: Graph, at: int, **changes: Any) -> Graph:
    nodes = list(graph.nodes)
    nodes[at] = replace(nodes[at], **changes)
    return replace(graph, nodes=tuple(nodes))


def _added(graph: Graph, node: Node, shape: tuple[int, ...]) -> Graph:
    shapes = dict(graph.shapes) | dict.fromkeys(node.outputs, shape)
    return replace(graph, nodes=(*graph.nodes, node), shapes=shapes)


def _of(graph: Graph, op: str) -> int:
    return next(at for at, node in enumerate(graph.nodes) if node.op == op)


def twice(graph: Graph, tensors: Tensors) -> Graph:
    return _changed(graph, 1, name=graph.nodes[0].name)


def from_two_places(graph: Graph, tensors: Tensors) -> Graph:
    return _changed(graph, 1, outputs=graph.nodes[0].outputs)


def backwards(graph: Graph, tensors: Tensors) -> Graph:
    return replace(graph, nodes=graph.nodes[::-1])


def no_output(graph: Graph, tensors: Tensors) -> Graph:
    return _changed(graph, -1, outputs=("elsewhere",))


def constant_output(graph: Graph, tensors: Tensors) -> Graph:
    weight = graph.parameters[0]
    nodes = (Node(name="constant", op="Relu", inputs=(weight,), outputs=graph.outputs),)
    return replace(graph, nodes=nodes)


def idle_node(graph: Graph, tensors: Tensors) -> Graph:
    node = Node(name="idle", op="Relu", inputs=graph.inputs, outputs=("unread",))
    return _added(graph, node, graph.shapes[graph.inputs[0]])


def idle_weight(graph: Graph, tensors: Tensors) -> Graph:
    tensors["unread"] = torch.zeros(2)
    return replace(graph, parameters=(*graph.parameters, "unread"), shapes={**graph.shapes, "unread": (2,)})


def two_kinds(graph: Graph, tensors: Tensors) -> Graph:
    return replace(graph, constants=(*graph.constants, graph.parameters[0]))


def other_shape(graph: Graph, tensors: Tensors) -> Graph:
    tensors[graph.parameters[0]] = tensors[graph.parameters[0]][:1]
    return graph


def learned_integers(graph: Graph, tensors: Tensors) -> Graph:
    tensors[graph.parameters[0]] = tensors[graph.parameters[0]].int()
    return graph


def no_shape(graph: Graph, tensors: Tensors) -> Graph:
    unknown = graph.nodes[0].outputs[0]
    return replace(graph, shapes={name: shape for name, shape in graph.shapes.items() if name != unknown})


def other_attribute(graph: Graph, tensors: Tensors) -> Graph:
    return _changed(graph, _of(graph, "Relu"), attributes=(("alpha", 1.0),))


def attribute_of_another_type(graph: Graph, tensors: Tensors) -> Graph:
    return _changed(graph, _of(graph, "Conv"), attributes=(("group", "1"),))


def too_many_operands(graph: Graph, tensors: Tensors) -> Graph:
    at = _of(graph, "Relu")
    return _changed(graph, at, inputs=graph.nodes[at].inputs * 2)


def other_ends(graph: Graph, tensors: Tensors) -> Graph:
    node = Node(name="more", op="Relu", inputs=graph.outputs, outputs=("more",))
    return replace(_added(graph, node, graph.shapes[graph.outputs[0]]), outputs=("more",))


def unheard_operator(graph: Graph, tensors: Tensors) -> Graph:
    return _changed(graph, _of(graph, "Relu"), op="Unheard")


BROKEN: dict[Callable[[Graph, Tensors], Graph], str] = {
    twice: "nodes have names of their own",
    from_two_places: "values have one origin",
    backwards: "nodes stand in an order in which they can run",
    no_output: "outputs are there",
    constant_output: "outputs follow from the input",
    idle_node: "nodes are needed",
    idle_weight: "initializers are read",
    two_kinds: "initializers are of one kind",
    other_shape: "initializers have tensors",
    learned_integers: "what is learned are floats",
    no_shape: "values have shapes",
    other_attribute: "attributes are those of the operator",
    attribute_of_another_type: "attributes are those of the operator",
    too_many_operands: "operands are as many as the operator takes",
    other_ends: "outputs stay what they are",
    unheard_operator: "operators have records",
}


@pytest.mark.parametrize("rewrite", BROKEN, ids=lambda rewrite: rewrite.__name__)
def test_what_a_pass_breaks_is_said_with_the_pass_and_the_check(rewrite: Callable[[Graph, Tensors], Graph]) -> None:
    with pytest.raises(spec.Broken, match=f"^pass '{rewrite.__name__}': {BROKEN[rewrite]}: "):
        spec.after_ir_pass(rewrite)(*read())


def test_attributes_of_every_operator_of_its_own_are_stated() -> None:
    others = [name for name in OPERATORS if not _is_standard(name)]
    assert sorted(others) == sorted(spec.OWN_ATTRIBUTES)


def _is_standard(name: str) -> bool:
    try:
        onnx.defs.get_schema(name, importer.OPSET)
    except onnx.defs.SchemaError:
        return False
    return True


def surgeon_graph() -> gs.Graph:
    """Relu, Neg, Abs."""
    x, a, b, y = (gs.Variable(name, np.float32, (2, 3)) for name in "xaby")
    nodes = [
        gs.Node(op, op, inputs=[before], outputs=[after])
        for op, before, after in (("Relu", x, a), ("Neg", a, b), ("Abs", b, y))
    ]
    return gs.Graph(nodes=nodes, inputs=[x], outputs=[y])


def names_alike(graph: gs.Graph) -> None:
    graph.nodes[0].outputs[0].name = "x"


def forgotten_reader(graph: gs.Graph) -> None:
    del graph.nodes[-1]
    graph.outputs = [graph.nodes[-1].outputs[0]]


def turned(graph: gs.Graph) -> None:
    graph.nodes.reverse()


def never_computed(graph: gs.Graph) -> None:
    node = graph.nodes[0]
    node.inputs.clear()
    node.outputs.clear()


def wider(graph: gs.Graph) -> None:
    graph.outputs[0].shape = (2, 4)


def constant_and_computed(graph: gs.Graph) -> None:
    result = graph.nodes[0].outputs[0]
    result.to_constant(np.zeros((2, 3), np.float32))


BROKEN_ONNX: dict[Callable[[gs.Graph], None], str] = {
    names_alike: "tensors have names of their own",
    forgotten_reader: "tensors and nodes know each other",
    constant_and_computed: "constants are not computed",
    turned: "nodes can run in their order",
    never_computed: "values are computed",
    wider: "outputs keep their shapes",
}


@pytest.mark.parametrize("rewrite", BROKEN_ONNX, ids=lambda rewrite: rewrite.__name__)
def test_what_a_pass_breaks_before_the_ir_is_said_too(rewrite: Callable[[gs.Graph], None]) -> None:
    spec.check_onnx("none", surgeon_graph(), spec.ends_of(surgeon_graph()))
    with pytest.raises(spec.Broken, match=f"^pass '{rewrite.__name__}': {BROKEN_ONNX[rewrite]}: "):
        spec.after_onnx_pass(rewrite)(surgeon_graph())


def test_a_slice_of_everything_keeps_no_other_slices_from_becoming_a_split() -> None:
    """It is taken out, and no longer counts among the slices of its value."""
    bounds = {"zero": 0, "two": 2, "four": 4, "axis": 1}
    constants = [helper.make_tensor(name, TensorProto.INT64, (1,), [value]) for name, value in bounds.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["wide"]),
        helper.make_node("Slice", ["wide", "zero", "four", "axis"], ["all"]),
        helper.make_node("Slice", ["wide", "zero", "two", "axis"], ["first"]),
        helper.make_node("Slice", ["wide", "two", "four", "axis"], ["second"]),
        helper.make_node("Mul", ["first", "second"], ["product"]),
        helper.make_node("Concat", ["all", "product"], ["y"], axis=1),
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, (4, 3, 1, 1), np.arange(12.0))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, size, 8, 8)) for name, size in (("x", 3), ("y", 6))
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "network", ends[:1], ends[1:], [*constants, weight]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    graph, _ = importer.import_onnx(model)
    assert [node.op for node in graph.nodes] == ["Conv", "Split", "Mul", "Concat"]
