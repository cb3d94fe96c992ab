"""Rules for constants: values that no input reaches are stored, equal nodes and constants merged, unread removed.

onnxruntime runs models as they are written, or with constants computed first.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from tailor_ir.conversion.draft import OnnxDraft, all_known
from tailor_ir.conversion.nodes import OnnxNode

QUIET = 4  # of onnxruntime's levels: nothing but what ends the process
WRONG_REWRITES = ("Pad_Fusion", "TransposeOptimizer")
"""Optimisers of onnxruntime that change answers: padding with zeros becomes padding of a MaxPool, with minus infinity; a
Transpose moves behind a linear Resize, which onnxruntime then refuses."""
OLD_IR_VERSION = 10
"""onnxruntime takes files of this version of the format; libraries write later ones before it knows them."""


def run(
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str] | None = None,
) -> list[np.ndarray]:
    """The outputs of a model. Raises what onnxruntime raises, which is of many types, where it cannot run the model."""
    return session_of(model).run(outputs, dict(inputs))


def session_of(model: onnx.ModelProto, *, folded: bool = False) -> onnxruntime.InferenceSession:
    """A model ready to run, once or often. Raises as `run`.

    folded: what depends on constants alone is computed first, and nothing is rewritten wrongly. Else BatchNorms in training
    form, which standardise weights, write into stored tensors whenever they run, and so change the next answer.
    """
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_BASIC if folded else levels.ORT_DISABLE_ALL
    options.log_severity_level = QUIET
    written = model.ir_version
    model.ir_version = min(written, OLD_IR_VERSION)
    content = model.SerializeToString()
    model.ir_version = written
    return onnxruntime.InferenceSession(
        content, options, providers=["CPUExecutionProvider"], disabled_optimizers=WRONG_REWRITES
    )


RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Operators that give another result each time."""


def is_random(node: OnnxNode) -> bool:
    """Whether two runs differ, or may differ."""
    return bool(node.graphs) or not node.standard or node.op in RANDOM or (node.op == "Dropout" and bool(node.input(2)))


def _meaning(node: OnnxNode) -> Hashable:
    stored = (attribute.SerializeToString(deterministic=True) for attribute in node.attributes.values())
    return node.op, node.inputs, len(node.outputs), tuple(sorted(stored))


def merge_equal_nodes(draft: OnnxDraft) -> int:
    """Nodes that compute what an earlier node computes; how many there were."""
    found: dict[Hashable, OnnxNode] = {}
    count = 0
    for node in draft.in_order():
        if is_random(node):
            continue
        first = found.setdefault(_meaning(node), node)
        if first is node or any(name in draft.kept for name in node.outputs):
            continue
        if [bool(name) for name in first.outputs] != [bool(name) for name in node.outputs]:
            continue
        for old, new in zip(node.outputs, first.outputs, strict=True):
            if old:
                draft.redirect(old, new)
        draft.remove(node)
        count += 1
    return count


def merge_equal_constants(draft: OnnxDraft) -> int:
    """Constants of equal type, shape and values; how many there were more than needed."""
    found: dict[Hashable, str] = {}
    count = 0
    for name, tensor in draft.constants.items():
        if name in draft.kept or not draft.readers(name):
            continue
        key = (tensor.data_type, tuple(tensor.dims), draft.digest(name))
        first = found.setdefault(key, name)
        if first != name:
            draft.redirect(name, first)
            count += 1
    return count


def remove_unread(draft: OnnxDraft) -> int:
    """Nodes none of whose results are read, and results that are not; how many nodes."""
    count = 0
    for node in reversed(draft.in_order()):
        read = [name in draft.kept or bool(draft.readers(name)) for name in node.outputs]
        if not any(read):
            draft.remove(node)
            count += 1
    return count


LARGEST_GROWTH_MIB = 64
"""A value that is larger by more than this than what it is computed from is computed when the model runs, as before."""

QUANTIZING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
"""Nodes by which runtimes see that a weight is one of few bits."""

PLAIN = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def store_constants(draft: OnnxDraft) -> int:
    """Tensors of `Constant` nodes become stored constants, which are no nodes; how many."""
    count = 0
    for node in draft.in_order():
        array = _stored_in(node) if node.standard and node.op == "Constant" else None
        if array is not None and draft.make_constant(node.outputs[0], array):
            draft.remove(node)
            count += 1
    return count


def _stored_in(node: OnnxNode) -> np.ndarray | None:
    """The tensor of a `Constant` node; None for strings and sparse tensors, which stay."""
    (name,) = node.attributes
    if name == "value":
        return numpy_helper.to_array(node.attributes[name].t)
    return np.asarray(helper.get_attribute_value(node.attributes[name]), PLAIN[name]) if name in PLAIN else None


def fold_constants(draft: OnnxDraft) -> int:
    """Nodes all of whose operands are constants are run now; how many."""
    count = 0
    for node in draft.in_order():
        if (
            is_random(node)
            or node.op in QUANTIZING
            or any(name and not draft.is_constant(name) for name in node.inputs)
        ):
            continue
        if any(name in draft.kept for name in node.outputs):
            continue
        arrays = _results(draft, node)
        before = sum(draft.bytes_of(name) for name in node.inputs if name)
        if arrays is None or sum(array.nbytes for array in arrays.values()) - before > LARGEST_GROWTH_MIB * 2**20:
            continue
        for name, array in arrays.items():
            draft.make_constant(name, array)
        draft.remove(node)
        count += 1
    return count


def _results(draft: OnnxDraft, node: OnnxNode) -> Mapping[str, np.ndarray] | None:
    """A node's results by name; None for a node that onnxruntime cannot run by itself."""
    names = [name for name in node.outputs if name and draft.readers(name)]
    given = [draft.tensor(name) for name in dict.fromkeys(node.inputs) if name]
    wanted = [helper.make_empty_tensor_value_info(name) for name in names]
    graph = helper.make_graph([node.write()], "constant", [], wanted, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", draft.opset)], ir_version=draft.ir_version)
    if not names:
        return {}
    try:
        found = dict(zip(names, run(model, {}), strict=True))
    except Exception:  # noqa: BLE001 - the runtime raises many types; the node stays, and nothing is lost
        return None
    plain = all(isinstance(each, np.ndarray) and each.dtype.kind != "O" for each in found.values())
    return found if plain else None  # sequences and text stay where they are


def store_shapes(draft: OnnxDraft) -> int:
    """Sizes that are known without running the model are stored; how many values."""
    count = 0
    for node in draft.in_order():
        known = _known_sizes(draft, node) if node.standard else None
        if known is not None and draft.make_constant(node.outputs[0], known):
            draft.remove(node)
            count += 1
    return count


def _known_sizes(draft: OnnxDraft, node: OnnxNode) -> np.ndarray | None:
    """What a node gives that reads sizes alone, None where it is not known yet."""
    if node.op == "Shape" and (shape := draft.shape(node.inputs[0])) is not None:
        part = shape[node.integer("start", 0) : node.integer("end", len(shape))]
        return np.asarray(part, np.int64) if all_known(part) else None
    if node.op == "Size" and (elements := draft.elements(node.inputs[0])) is not None:
        return np.asarray(elements, np.int64)
    if node.op not in ("Gather", "Slice") or (source := draft.producer(node.inputs[0], "Shape")) is None:
        return None
    shape = draft.shape(source.inputs[0])
    if shape is None or source.has("start") or source.has("end"):
        return None
    picked = _picked(draft, node, len(shape))
    if picked is None or not all_known(sizes := tuple(shape[index] for index in picked.flat)):
        return None
    return np.asarray(sizes, np.int64).reshape(picked.shape)


def _picked(draft: OnnxDraft, node: OnnxNode, rank: int) -> np.ndarray | None:
    """Which dimensions a `Gather` or `Slice` of a shape takes."""
    if node.op == "Gather":
        return draft.array(node.inputs[1])
    rows = [draft.integers(name) for name in node.inputs[1:]]
    if len(rows) < 2 or any(row is None or len(row) != 1 for row in rows):
        return None
    start, end, *more = (row[0] for row in rows if row)
    return np.arange(rank)[slice(start, end, more[1] if len(more) > 1 else 1)]
