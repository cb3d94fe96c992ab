"""Constant folding on ONNX graphs: values that depend on shapes and plain constants alone become constants."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tailor_ir.dims import FACTORS, FILTERED, size_by_factor
from tailor_ir.errors import ImportFailed, first_line
from tailor_ir.reading.file_forms import has_fixed_shape, place_of
from tailor_ir.reading.indexing import read_block, write_block

EVALUATED_AT = {
    "DequantizeLinear": 21,
    "QuantizeLinear": 21,
}  # the evaluator lacks their earlier versions, which mean the same
MAX_FOLD_ROUNDS = 40  # nested branches take two rounds each
AT_POSITIONS = {"GatherND": read_block, "ScatterElements": write_block, "ScatterND": write_block}
"""Operators that are rewritten if their positions are constant."""
REWRITTEN = frozenset(("CastLike", "If", "Loop", "Resize", "Scan", *AT_POSITIONS))
"""Operators that become others once their operands are constant."""
SHAPE_KEEPING = frozenset(
    ("GroupNormalization", "RMSNormalization", "Swish")
)  # ONNX functions that shape inference does not expand


def detach_weights(graph: gs.Graph, weights: frozenset[str]) -> dict[str, np.ndarray]:
    """Replace weights by tensors without values, because folding never needs the values. Returns the values by name."""
    values = {}
    within = [tensor for part in graph.subgraphs(recursive=True) for tensor in part.tensors().values()]
    for tensor in (*graph.tensors().values(), *within):
        if tensor.name in weights and isinstance(tensor, gs.Constant):
            values[tensor.name] = tensor.values
            open_tensor = gs.Variable(tensor.name, tensor.dtype, tensor.shape)
            for node in list(tensor.outputs):
                node.inputs = [open_tensor if operand is tensor else operand for operand in node.inputs]
    return values


def is_detached(tensor: gs.Tensor, graph: gs.Graph) -> bool:
    """Whether a tensor is a weight detached: not computed, no constant, and no input of the network."""
    return isinstance(tensor, gs.Variable) and not tensor.inputs and all(tensor is not given for given in graph.inputs)


def restore(graph: gs.Graph, values: Mapping[str, np.ndarray]) -> None:
    for name, tensor in graph.tensors().items():
        if name in values:
            tensor.to_constant(values[name])


def fold(graph: gs.Graph, samples: int) -> gs.Graph:
    """Replace values that depend on shapes and plain constants alone by constants. samples: the traced batch size."""
    for _ in range(MAX_FOLD_ROUNDS):
        constants_to_tensors(graph)
        _list_axes(graph)
        _name_absent_outputs(graph)
        graph = gs.import_onnx(_infer_shapes(graph))
        if _settle_resizes(graph):
            continue
        known, settled = _copy_shapes(graph), REWRITTEN.isdisjoint(node.op for node in graph.nodes)
        if not _fold_once(graph, samples) and not known:
            return graph
        graph.nodes[:] = [node for node in graph.nodes if node.outputs]
        cleaned(graph)
        if settled and all(map(_is_known, (result for node in graph.nodes for result in node.outputs))):
            return graph
    return graph


def _is_known(tensor: gs.Tensor) -> bool:
    return has_fixed_shape(tensor) and tensor.dtype is not None


def cleaned(graph: gs.Graph) -> gs.Graph:
    """The graph without unused nodes, sorted as onnx-graphsurgeon's `toposort` does it."""
    graph.cleanup(remove_unused_graph_inputs=False)
    levels: dict[int, int] = {}  # a node is one level above its highest operand
    for node in graph.nodes:
        producers = [id(producer) for operand in node.inputs for producer in operand.inputs]
        if not levels.keys() >= set(producers) or any(True for _ in node.subgraphs()):
            return graph.toposort()  # the library finds the order of unsorted graphs, in 20 times the time
        levels[id(node)] = 1 + max((levels[producer] for producer in producers), default=-1)
    graph.nodes[:] = sorted(graph.nodes, key=lambda node: levels[id(node)])
    return graph


def constants_to_tensors(graph: gs.Graph) -> None:
    """Replace Constant nodes by stored tensors."""
    for node in [n for n in graph.nodes if n.op == "Constant" and n.outputs]:
        value = next(iter(node.attrs.values()))
        array = np.asarray(value.values if isinstance(value, gs.Constant) else value)
        plain = not isinstance(value, gs.Constant) and array.dtype == np.float64  # a Python number
        _become_constant(node, [array.astype(np.float32) if plain else array])
    graph.nodes[:] = [node for node in graph.nodes if node.outputs]


def _list_axes(graph: gs.Graph) -> None:
    """Write a scalar axis of an Unsqueeze as a list of one axis; onnxruntime accepts both."""
    for node in graph.nodes:
        axes = node.inputs[1] if node.op == "Unsqueeze" and len(node.inputs) > 1 else None
        if isinstance(axes, gs.Constant) and not axes.values.ndim:
            node.inputs[1] = gs.Constant(f"{node.outputs[0].name}/axes", axes.values.reshape(1))


def _name_absent_outputs(graph: gs.Graph) -> None:
    """Name absent outputs that precede others; remove trailing absent outputs."""
    for node in graph.nodes:
        while node.outputs and node.outputs[-1].is_empty():
            node.outputs.pop()
        for position, output in enumerate(node.outputs):
            if output.is_empty():
                node.outputs[position] = gs.Variable(f"{node.outputs[-1].name}/unread{position}")


def _settle_resizes(graph: gs.Graph) -> bool:
    """Rewrite resize factors whose product with a size is too small in float64, which shape inference uses.

    Sizes replace the factors if they imply the same ratios; else the node becomes the IR's filtered resize. Shapes of all
    later values are inferred again.
    """
    renewed: set[int] = set()
    for node in graph.nodes:
        behind = any(id(operand) in renewed for operand in node.inputs)
        if behind or (node.op == "Resize" and _settle_resize(node)):
            renewed |= {id(output) for output in node.outputs}
            for output in node.outputs:
                output.shape = None
    return bool(renewed)


def _settle_resize(node: gs.Node) -> bool:
    x, given = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else gs.Variable.empty()
    if not isinstance(given, gs.Constant) or not given.values.size or not has_fixed_shape(x):
        return False
    factors = np.ones(len(x.shape), np.float32)
    factors[node.attrs.get("axes", slice(None))] = given.values
    sizes = [size_by_factor(size, factor) for size, factor in zip(x.shape, factors, strict=True)]
    if sizes == [int(size * float(factor)) for size, factor in zip(x.shape, factors, strict=True)]:
        return False
    for name in ("axes", "keep_aspect_ratio_policy"):
        node.attrs.pop(name, None)
    if np.allclose(np.divide(sizes, x.shape), factors, rtol=1e-6, atol=0):
        target = gs.Constant(f"{node.outputs[0].name}/sizes", np.asarray(sizes, np.int64))
        node.inputs = [x, gs.Variable.empty(), gs.Variable.empty(), target]
    else:
        node.op, node.inputs = FILTERED, [x]
        node.attrs[FACTORS] = factors.tolist()
    return True


def _infer_shapes(graph: gs.Graph) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(gs.export_onnx(graph), data_prop=True)
    except Exception as error:
        raise ImportFailed(f"network: shapes cannot be inferred ({str(error).splitlines()[0]})") from error


def _copy_shapes(graph: gs.Graph) -> bool:
    """Set result shapes that follow from operands but that shape inference does not know. Returns whether any was set."""
    found = False
    for node in graph.nodes:
        result = node.outputs[0]
        shape = None if has_fixed_shape(result) else _shape_of_result(node)
        if shape is not None:
            result.shape, result.dtype = shape, node.inputs[0].dtype
            found = True
    return found


def _shape_of_result(node: gs.Node) -> list[int] | None:
    """Shape of the result of an operator that shape inference does not know; None for other operators."""
    if node.op in SHAPE_KEEPING and has_fixed_shape(node.inputs[0]):
        return list(node.inputs[0].shape)
    if node.op == "DeformConv" and all(map(has_fixed_shape, node.inputs[:3])):
        x, weight, offset = node.inputs[:3]
        return [x.shape[0], weight.shape[0], *offset.shape[2:]]
    if node.op == FILTERED and has_fixed_shape(node.inputs[0]):
        sizes, factors = node.inputs[0].shape, node.attrs[FACTORS]
        return [size_by_factor(size, factor) for size, factor in zip(sizes, factors, strict=True)]
    if node.op == "MaxUnpool" and len(node.inputs) > 2 and isinstance(node.inputs[2], gs.Constant):
        return [int(size) for size in node.inputs[2].values]
    return None


def _repeats_for_samples(node: gs.Node, samples: int) -> bool:
    """Whether a node repeats constants for each traced sample. It must stay, because SubNets run with other batch sizes."""
    if node.op != "Expand" or samples == 1 or not all(isinstance(i, gs.Constant) for i in node.inputs):
        return False
    source, target = node.inputs[0].values, node.inputs[1].values
    if not np.issubdtype(source.dtype, np.floating) or len(target) < 2:
        return False
    before = source.shape[0] if source.ndim == len(target) else 1
    return before == 1 and int(target[0]) == samples


def _depth_first(graph: gs.Graph) -> list[gs.Node]:
    """Nodes in depth-first order: each follows the nodes that it alone needs, so that large constants are short-lived."""
    ordered: list[gs.Node] = []
    seen: set[int] = set()
    pending = [(node, False) for output in reversed(graph.outputs) for node in output.inputs]
    while pending:
        node, complete = pending.pop()
        if complete:
            ordered.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            pending.append((node, True))
            pending += [(producer, False) for operand in reversed(node.inputs) for producer in operand.inputs]
    return ordered


def _fold_once(graph: gs.Graph, samples: int) -> bool:
    folded = False
    for node in _depth_first(graph):
        if not all(map(_is_known, node.outputs)):
            folded |= _infer_results(node, graph.opset)
        if node.op == "Shape" and has_fixed_shape(node.inputs[0]):
            shape = node.inputs[0].shape[node.attrs.get("start", 0) : node.attrs.get("end", None)]
            _become_constant(node, [np.asarray(shape, np.int64)])
        elif node.op == "If":
            if not isinstance(node.inputs[0], gs.Constant):
                continue
            take_branch(graph, node)
        elif node.op in ("Loop", "Scan") or _repeats_for_samples(node, samples):
            continue
        elif node.op == "CastLike" and node.inputs[1].dtype is not None:
            node.op, node.attrs = "Cast", {"to": helper.np_dtype_to_tensor_dtype(np.dtype(node.inputs[1].dtype))}
            node.inputs = list(node.inputs[:1])
        elif all(i.is_empty() or isinstance(i, gs.Constant) for i in node.inputs):
            _become_constant(node, _evaluate(node, graph.opset))
        elif node.op not in AT_POSITIONS or not AT_POSITIONS[node.op](graph, node):
            continue
        folded = True
    return folded


def _infer_results(node: gs.Node, opset: int) -> bool:
    """Infer shapes and types of a node's results from its operands alone. Returns whether all of them became known."""
    operands = [operand for operand in node.inputs if not operand.is_empty()]
    if not all(map(_is_known, operands)) or any(True for _ in node.subgraphs()):
        return False
    known = {operand.name: operand for operand in operands}
    copies = {
        name: gs.Constant(name, one.values) if isinstance(one, gs.Constant) else gs.Variable(name, one.dtype, one.shape)
        for name, one in known.items()
    }
    inputs = [copies[one.name] if not one.is_empty() else gs.Variable.empty() for one in node.inputs]
    results = [gs.Variable(one.name) for one in node.outputs]
    single = gs.Graph(
        nodes=[gs.Node(op=node.op, name=node.name, attrs=dict(node.attrs), inputs=inputs, outputs=results)],
        inputs=[one for one in copies.values() if isinstance(one, gs.Variable)],
        outputs=results,
        opset=opset,
    )
    try:
        model = onnx.shape_inference.infer_shapes(gs.export_onnx(single, do_type_check=False), data_prop=True)
        found = [gs.import_onnx(model).tensors()[one.name] for one in results]
    except Exception:  # noqa: BLE001 - the inference of the whole graph reports errors
        return False
    for result, one in zip(node.outputs, found, strict=True):
        result.shape, result.dtype = one.shape, one.dtype
    return all(map(_is_known, node.outputs))


def take_branch(graph: gs.Graph, node: gs.Node) -> None:
    """Replace an If by the nodes of the branch that its constant condition selects."""
    branch = node.attrs["then_branch" if node.inputs[0].values.reshape(-1)[0] else "else_branch"]
    where, outer = node.name or node.outputs[0].name, graph.tensors()
    results = [result if result.inputs else outer.get(result.name, result) for result in branch.outputs]
    found = {id(t): t for n in branch.nodes for t in (*n.inputs, *n.outputs) if not t.is_empty()}
    for tensor in found.values():  # both branches may use the same names
        own = bool(tensor.inputs) or isinstance(tensor, gs.Constant)
        if own and outer.get(tensor.name) is not tensor:
            tensor.name = f"{where}/{tensor.name}"
    for inner in branch.nodes:
        inner.name = f"{where}/{inner.name}"
    graph.nodes.extend(branch.nodes)
    for output, result in zip(list(node.outputs), results, strict=True):
        output.inputs = []
        graph.nodes.append(gs.Node("Identity", f"{where}/{output.name}", inputs=[result], outputs=[output]))
    node.inputs.clear()


def _become_constant(node: gs.Node, values: list[np.ndarray]) -> None:
    for output, value in zip(list(node.outputs), values, strict=True):
        output.to_constant(np.ascontiguousarray(value) if value.ndim else value)
    node.outputs.clear()
    operands = list(node.inputs)
    node.inputs.clear()
    for operand in operands:
        if isinstance(operand, gs.Constant) and not operand.outputs:  # frees memory: positions may be very many
            operand.values = np.zeros(0)


def _evaluate(node: gs.Node, opset: int) -> list[np.ndarray]:
    if node.op == "GatherElements":
        data, positions = (given.values for given in node.inputs)
        return [_gathered(data, positions, int(node.attrs.get("axis", 0)))]
    if node.op == "Softsign":  # the evaluator of onnx refuses scalars
        values = node.inputs[0].values
        return [np.asarray(values / (1 + abs(values)), values.dtype)]
    given = {str(place): operand.values for place, operand in enumerate(node.inputs) if not operand.is_empty()}
    attributes = {name: tuple(value) if isinstance(value, list) else value for name, value in node.attrs.items()}
    plain = all(isinstance(value, int | float | str | tuple) for value in attributes.values())
    make = _evaluator if plain else _evaluator.__wrapped__
    names = tuple(str(place) if str(place) in given else "" for place in range(len(node.inputs)))
    try:
        evaluator = make(node.op, tuple(attributes.items()), names, len(node.outputs), EVALUATED_AT.get(node.op, opset))
        with np.errstate(all="ignore"):  # numbers that are masked later may overflow
            found = [np.asarray(value) for value in evaluator.run(None, given)]
    except Exception as error:  # the evaluator raises several types
        raise ImportFailed(
            f"{place_of(node)}: its constant result cannot be computed ({first_line(error)}); store the result"
        ) from error
    # parts of larger arrays are copied, so that the arrays are freed
    return [value.copy() if value.base is not None and value.base.nbytes > value.nbytes else value for value in found]


@lru_cache(maxsize=1024)
def _evaluator(
    op: str, attributes: tuple[tuple[str, Any], ...], inputs: tuple[str, ...], outputs: int, opset: int
) -> ReferenceEvaluator:
    """Runs one operator. inputs: names of the given operands, "" for absent ones."""
    node = gs.Node(
        op=op,
        attrs={name: list(value) if isinstance(value, tuple) else value for name, value in attributes},
        inputs=[gs.Variable(name) if name else gs.Variable.empty() for name in inputs],
        outputs=[gs.Variable(f"result{number}") for number in range(outputs)],
    )
    return ReferenceEvaluator(
        gs.export_onnx(gs.Graph(nodes=[node], outputs=list(node.outputs), opset=opset), do_type_check=False)
    )


def _gathered(data: np.ndarray, index: np.ndarray, axis: int) -> np.ndarray:
    """GatherElements in NumPy, because the evaluator of onnx takes from 32 entries at most."""
    ends = [slice(None if at == axis % data.ndim else size) for at, size in enumerate(index.shape)]
    return np.take_along_axis(data[tuple(ends)], index.astype(np.int64), axis)
