"""Values that no input of the model reaches are stored in the place of computing them."""

from collections.abc import Mapping

import numpy as np
from onnx import helper, numpy_helper

from tailor_ir.conversion.draft import OnnxDraft, all_known
from tailor_ir.conversion.nodes import OnnxNode
from tailor_ir.conversion.rules.duplicates import is_random
from tailor_ir.conversion.running import run

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
