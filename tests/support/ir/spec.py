"""What must hold of a network after every pass that rewrites it: tables of named checks, and the hook that runs them.

`IR_CHECKS` look at the IR's graphs, `ONNX_CHECKS` at ONNX graphs on their way into the IR. A check yields what is wrong,
one line each; `installed` runs all of them after each pass, and a failure names the pass and the check.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import onnx
import onnx_graphsurgeon as gs
import pytest

from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.ops import OPERATORS
from tailor_ir.reading import importer
from tailor_ir.reading.file_forms import has_fixed_shape
from tailor_ir.reading.trace import OPSET
from tailor_ir.rewriting import passes
from tailor_ir.supernet import compiling, opening, reading

Complaints = Iterator[str]
IrCheck = Callable[[Graph, Tensors], Complaints]
OnnxCheck = Callable[[gs.Graph], Complaints]

OWN_ATTRIBUTES: dict[str, dict[str, type]] = {
    "BatchStandardization": {"epsilon": float},
    "DeformConv": {
        "dilations": tuple,
        "group": int,
        "kernel_shape": tuple,
        "offset_group": int,
        "pads": tuple,
        "strides": tuple,
    },
    "Embedding": {},
    "FilteredResize": {
        "antialias": int,
        "coordinate_transformation_mode": str,
        "cubic_coeff_a": float,
        "exclude_outside": int,
        "extrapolation_value": float,
        "factors": tuple,
        "mode": str,
        "nearest_mode": str,
    },
    "Gelu": {"approximate": str},
    "GroupNorm": {"num_groups": int, "epsilon": float},
    "KernelTransform": {"sizes": tuple},
    "Linear": {},
    "Mish": {},
    "RmsNorm": {"axis": int, "epsilon": float},
    "Roll": {"axis": int, "shift": int},
    "Silu": {},
}
"""Attributes of the IR's own operators; those of ONNX's are in its schemas."""
KINDS = onnx.defs.OpSchema.AttrType
ONNX_TYPES: dict[Any, type] = {
    KINDS.INT: int,
    KINDS.FLOAT: float,
    KINDS.STRING: str,
    KINDS.INTS: tuple,
    KINDS.FLOATS: tuple,
    KINDS.STRINGS: tuple,
}

# -- graphs of the IR ------------------------------------------------------------------------------------------------


def _repeated(names: list[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def nodes_have_names_of_their_own(graph: Graph, tensors: Tensors) -> Complaints:
    yield from (f"node '{name}' is there twice" for name in _repeated([node.name for node in graph.nodes]))


def values_have_one_origin(graph: Graph, tensors: Tensors) -> Complaints:
    computed = [name for node in graph.nodes for name in node.outputs if name]
    names = [*graph.inputs, *graph.initializers, *computed]
    yield from (f"value '{name}' comes from two places" for name in _repeated(names))


def nodes_stand_in_an_order_in_which_they_can_run(graph: Graph, tensors: Tensors) -> Complaints:
    known = {"", *graph.inputs, *graph.initializers}
    for node in graph.nodes:
        yield from (f"'{node.name}' reads '{name}' before it is there" for name in node.inputs if name not in known)
        known.update(node.outputs)


def outputs_are_there(graph: Graph, tensors: Tensors) -> Complaints:
    known = {*graph.inputs, *graph.initializers, *graph.producers()}
    yield from (f"nothing computes the output '{name}'" for name in graph.outputs if name not in known)


def outputs_follow_from_the_input(graph: Graph, tensors: Tensors) -> Complaints:
    reached = set(graph.inputs)
    for node in graph.nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
    fixed = [name for name in graph.outputs if name not in reached]  # stored tensors may be given, beside others
    if len(fixed) == len(graph.outputs):
        yield from (f"no way leads from the input to '{name}'" for name in fixed)


def nodes_are_needed(graph: Graph, tensors: Tensors) -> Complaints:
    read = {*graph.outputs, *(name for node in graph.nodes for name in node.inputs)}
    yield from (f"nothing reads what '{node.name}' gives" for node in graph.nodes if read.isdisjoint(node.outputs))


def initializers_are_read(graph: Graph, tensors: Tensors) -> Complaints:
    read = {*graph.outputs, *(name for node in graph.nodes for name in node.inputs)}
    yield from (f"nothing reads '{name}'" for name in sorted(graph.initializers - read))


def initializers_are_of_one_kind(graph: Graph, tensors: Tensors) -> Complaints:
    names = [*graph.parameters, *graph.statistics, *graph.constants]
    yield from (f"'{name}' is of two kinds, or there twice" for name in _repeated(names))


def initializers_have_tensors(graph: Graph, tensors: Tensors) -> Complaints:
    for name in sorted(graph.initializers):
        if name not in tensors:
            yield f"'{name}' has no tensor"
        elif tuple(tensors[name].shape) != graph.shapes.get(name):
            yield f"'{name}' is {tuple(tensors[name].shape)}, its shape is {graph.shapes.get(name)}"


def what_is_learned_are_floats(graph: Graph, tensors: Tensors) -> Complaints:
    for name in (*graph.parameters, *graph.statistics):
        if name in tensors and not tensors[name].is_floating_point():
            yield f"'{name}' is {tensors[name].dtype}"


def values_have_shapes(graph: Graph, tensors: Tensors) -> Complaints:
    for name in dict.fromkeys((*graph.inputs, *(name for node in graph.nodes for name in node.outputs if name))):
        shape = graph.shapes.get(name)
        if shape is None or not all(type(size) is int and size > 0 for size in shape):
            yield f"the shape of '{name}' is {shape}"


def attributes_are_those_of_the_operator(graph: Graph, tensors: Tensors) -> Complaints:
    for node in graph.nodes:
        if node.op not in OPERATORS:  # is refused later, by its name
            continue
        allowed = _attributes_of(node)
        names = [name for name, _ in node.attributes]
        yield from (f"'{node.name}' has '{name}' twice" for name in _repeated(names))
        for name, value in node.attributes:
            wanted = allowed.get(name)
            if wanted is None:
                yield f"'{node.name}': {node.op} has no attribute '{name}'; it has {sorted(allowed)}"
            elif not isinstance(value, wanted) and not (wanted is float and isinstance(value, int)):
                yield f"'{node.name}': {name} = {value!r}; wanted: {wanted.__name__}"
            elif isinstance(value, tuple) and len({type(item) for item in value}) > 1:
                yield f"'{node.name}': {name} = {value!r} is of several types"


def _attributes_of(node: Node) -> dict[str, type]:
    if node.op in OWN_ATTRIBUTES:
        return OWN_ATTRIBUTES[node.op]
    schema = onnx.defs.get_schema(node.op, OPSET)
    return {name: ONNX_TYPES[found.type] for name, found in schema.attributes.items() if found.type in ONNX_TYPES}


def operands_are_as_many_as_the_operator_takes(graph: Graph, tensors: Tensors) -> Complaints:
    for node in graph.nodes:
        if node.op in OWN_ATTRIBUTES or node.op not in OPERATORS:
            continue
        schema = onnx.defs.get_schema(node.op, OPSET)
        if not schema.min_input <= len(node.inputs) <= schema.max_input:
            yield f"'{node.name}': {node.op} of {len(node.inputs)}; wanted: {schema.min_input} to {schema.max_input}"
        if not schema.min_output <= len(node.outputs) <= schema.max_output:
            yield f"'{node.name}': {node.op} gives {len(node.outputs)} values"


IR_CHECKS: tuple[IrCheck, ...] = (
    nodes_have_names_of_their_own,
    values_have_one_origin,
    nodes_stand_in_an_order_in_which_they_can_run,
    outputs_are_there,
    outputs_follow_from_the_input,
    nodes_are_needed,
    initializers_are_read,
    initializers_are_of_one_kind,
    initializers_have_tensors,
    what_is_learned_are_floats,
    values_have_shapes,
    attributes_are_those_of_the_operator,
    operands_are_as_many_as_the_operator_takes,
)

# -- ONNX graphs on their way into the IR ----------------------------------------------------------------------------


def _values(graph: gs.Graph) -> list[gs.Tensor]:
    found = [t for node in graph.nodes for t in (*node.inputs, *node.outputs) if not t.is_empty()]
    return list({id(tensor): tensor for tensor in (*graph.inputs, *graph.outputs, *found)}.values())


def tensors_have_names_of_their_own(graph: gs.Graph) -> Complaints:
    names = [tensor.name for tensor in _values(graph)]
    yield from (f"two tensors are called '{name}'" for name in _repeated(names))


def tensors_and_nodes_know_each_other(graph: gs.Graph) -> Complaints:
    here = {id(node) for part in (graph, *graph.subgraphs(recursive=True)) for node in part.nodes}
    for tensor in _values(graph):
        yield from (f"'{tensor.name}' comes from a node elsewhere" for node in tensor.inputs if id(node) not in here)
        yield from (f"'{tensor.name}' is read by a node elsewhere" for node in tensor.outputs if id(node) not in here)
        if len(tensor.inputs) > 1:
            yield f"'{tensor.name}' comes from {len(tensor.inputs)} nodes"


def constants_are_not_computed(graph: gs.Graph) -> Complaints:
    constants = (tensor for tensor in _values(graph) if isinstance(tensor, gs.Constant))
    yield from (f"'{tensor.name}' is constant and computed" for tensor in constants if tensor.inputs)


def nodes_can_run_in_their_order(graph: gs.Graph) -> Complaints:
    position = {id(node): at for at, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        for tensor in node.inputs:
            if any(position.get(id(maker), -1) >= position[id(node)] for maker in tensor.inputs):
                yield f"'{node.name}' reads '{tensor.name}' before it is there"


ONNX_CHECKS: tuple[OnnxCheck, ...] = (
    tensors_have_names_of_their_own,
    tensors_and_nodes_know_each_other,
    constants_are_not_computed,
    nodes_can_run_in_their_order,
)

# -- after every pass ------------------------------------------------------------------------------------------------


class Broken(AssertionError):
    """A pass left a network that is not as it must be."""


def _report(pass_name: str, check: Callable[..., Any], complaints: Iterator[str]) -> None:
    found = list(complaints)
    if found:
        what = check.__name__.replace("_", " ")
        raise Broken(f"pass '{pass_name}': {what}: " + "; ".join(found[:5]))


def check_ir(pass_name: str, graph: Graph, tensors: Tensors) -> None:
    """All checks of a graph of the IR. Broken: names the pass, the check and the first places."""
    for check in IR_CHECKS:
        _report(pass_name, check, check(graph, tensors))


def check_kept(pass_name: str, before: Graph, after: Graph) -> None:
    """Inputs and outputs are those from before, of the same shapes; what is new are operators with records. Broken as above."""
    for end in ("inputs", "outputs"):
        was, now = ([(name, g.shapes[name]) for name in getattr(g, end)] for g in (before, after))
        if was != now:
            raise Broken(f"pass '{pass_name}': {end} stay what they are: {was} became {now}")
    new = {node.op for node in after.nodes} - {node.op for node in before.nodes} - set(OPERATORS)
    if new:
        raise Broken(f"pass '{pass_name}': operators have records: none for {', '.join(sorted(new))}")


def check_onnx(pass_name: str, graph: gs.Graph, before: "Ends") -> None:
    """All checks of an ONNX graph, whose ends were `before`. Broken as above."""
    for check in ONNX_CHECKS:
        _report(pass_name, check, check(graph))
    (given, shapes), (now_given, now_shapes) = before, ends_of(graph)
    if not now_given <= given:
        raise Broken(f"pass '{pass_name}': values are computed: nothing computes {', '.join(now_given - given)}")
    if any(was is not None and was != now for was, now in zip(shapes, now_shapes, strict=True)):
        raise Broken(f"pass '{pass_name}': outputs keep their shapes: {shapes} became {now_shapes}")


Ends = tuple[set[str], list[tuple[int, ...] | None]]


def ends_of(graph: gs.Graph) -> Ends:
    """Names of the values that no node computes and that are no constants, and the shapes of the outputs where known."""
    found = [tensor for part in (graph, *graph.subgraphs(recursive=True)) for tensor in _values(part)]
    given = {tensor.name for tensor in found if isinstance(tensor, gs.Variable) and not tensor.inputs}
    return given, [tuple(tensor.shape) if has_fixed_shape(tensor) else None for tensor in graph.outputs]


def after_onnx_pass(rewrite: Callable[..., Any]) -> Callable[..., Any]:
    """The pass, checked."""

    @wraps(rewrite)
    def checked(graph: gs.Graph, *rest: Any) -> Any:
        before = ends_of(graph)
        found = rewrite(graph, *rest)
        check_onnx(rewrite.__name__, graph if found is None else found, before)
        return found

    return checked


def after_ir_pass(rewrite: Callable[..., Any]) -> Callable[..., Any]:
    """The pass, checked; it gives a graph, or a graph and its tensors."""

    @wraps(rewrite)
    def checked(graph: Graph, tensors: Tensors, *rest: Any) -> Any:
        found = rewrite(graph, tensors, *rest)
        after, held = found if isinstance(found, tuple) else (found, tensors)
        check_ir(rewrite.__name__, after, held)
        check_kept(rewrite.__name__, graph, after)
        return found

    return checked


def after_import(read: Callable[..., tuple[Graph, Tensors]]) -> Callable[..., tuple[Graph, Tensors]]:
    """Reading an ONNX model, checked."""

    @wraps(read)
    def checked(*given: Any, **named: Any) -> tuple[Graph, Tensors]:
        graph, tensors = read(*given, **named)
        check_ir(read.__name__, graph, tensors)
        return graph, tensors

    return checked


@contextmanager
def installed() -> Iterator[None]:
    """While inside, every pass of every network that is compiled is checked."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fold", "share_rows", "normalise"):
            patch.setattr(importer, name, after_onnx_pass(getattr(importer, name)))
        patch.setattr(importer, "PASSES", tuple(map(after_onnx_pass, importer.PASSES)))
        patch.setattr(reading, "import_onnx", after_import(reading.import_onnx))
        patch.setattr(passes, "apply_rule", after_ir_pass(passes.apply_rule))
        patch.setattr(passes, "PASSES", tuple(map(after_ir_pass, passes.PASSES)))
        for name in ("simplify", "repeat_for_samples"):
            patch.setattr(reading, name, after_ir_pass(getattr(reading, name)))
        patch.setattr(opening, "open_norms", after_ir_pass(opening.open_norms))
        patch.setattr(compiling, "transform_kernels", after_ir_pass(compiling.transform_kernels))
        yield
