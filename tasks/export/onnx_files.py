"""ONNX models for any batch, made from models for two batches; inputs and outputs as in the given file; and facts inside
exported files, the same in every format.
"""

import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tasks.base.artifacts import json_bytes
from tasks.base.schemas.exports import Card
from tasks.evaluation.conversion import ConversionError

BATCHES = (2, 3)
"""Neither is 1, because 1 broadcasts."""
SIZE = "batch"


def dynamic_batch(models: Sequence[bytes]) -> bytes:
    """One model with a free first axis of its inputs and outputs, from the models for `BATCHES`.

    ConversionError if they differ by more than integers that are linear in the batch (shapes, ends of slices) and constants
    that have an entry for each sample.
    """
    small, large = (onnx.load_from_string(model) for model in models)
    if [_plain(node) for node in small.graph.node] != [_plain(node) for node in large.graph.node]:
        raise ConversionError("its operators depend on the batch")
    graph = small.graph
    others = {tensor.name: numpy_helper.to_array(tensor) for tensor in large.graph.initializer}
    shapes = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    shapes -= {
        name for node in graph.node for place, name in enumerate(node.input) if (node.op_type, place) != ("Reshape", 1)
    }
    kept, nodes = [], []
    for tensor in graph.initializer:
        value, other = numpy_helper.to_array(tensor), others[tensor.name]
        if np.array_equal(value, other):
            kept.append(tensor)
        elif tensor.name in shapes and (free := _with_free_entry(value, other)) is not None:
            kept.append(numpy_helper.from_array(free, tensor.name))
        else:
            made, constants = _follow(tensor.name, value, other)
            nodes += made
            kept += constants
    if nodes:
        shape = helper.make_node("Shape", [graph.input[0].name], [f"{SIZE}/shape"])
        batch = helper.make_node("Slice", [f"{SIZE}/shape", f"{SIZE}/from", f"{SIZE}/to"], [SIZE])
        nodes = [shape, batch, *nodes]
        kept += [
            numpy_helper.from_array(np.array([at], np.int64), f"{SIZE}/{name}")
            for at, name in enumerate(("from", "to"))
        ]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(kept)
    everything = [*nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(everything)
    for one, two in zip((*graph.input, *graph.output), (*large.graph.input, *large.graph.output), strict=True):
        _free(one, two)
    onnx.checker.check_model(small)
    content: bytes = small.SerializeToString()
    return content


def _plain(node: onnx.NodeProto) -> bytes:
    content: bytes = node.SerializeToString(deterministic=True)
    return content


def _free(value: onnx.ValueInfoProto, other: onnx.ValueInfoProto) -> None:
    """Name the dimensions that differ: the batch, or an unknown one."""
    pairs = zip(value.type.tensor_type.shape.dim, other.type.tensor_type.shape.dim, strict=True)
    for place, (one, two) in enumerate(pairs):
        if one.dim_value != two.dim_value:
            one.dim_param = SIZE if (one.dim_value, two.dim_value) == BATCHES else f"{value.name}/{place}"


def _with_free_entry(value: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """The shape of a Reshape with -1 in its only differing entry; None if several differ, or it already has -1."""
    if value.shape != other.shape or (value == -1).any() or (value != other).sum() != 1:
        return None
    return np.where(value == other, value, -1)


def _follow(name: str, value: np.ndarray, other: np.ndarray) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Nodes that compute a constant from the batch, and the constants that they need."""

    def constant(suffix: str, array: np.ndarray) -> onnx.TensorProto:
        return numpy_helper.from_array(array, f"{name}/{suffix}")

    if value.dtype == np.int64 and value.ndim == 1 and value.shape == other.shape:
        slope, rest = np.divmod(other - value, BATCHES[1] - BATCHES[0])
        if not rest.any():
            scaled = helper.make_node("Mul", [SIZE, f"{name}/slope"], [f"{name}/scaled"])
            moved = helper.make_node("Add", [f"{name}/scaled", f"{name}/start"], [name])
            return [scaled, moved], [constant("slope", slope), constant("start", value - BATCHES[0] * slope)]
    if value.shape[:1] + other.shape[:1] == BATCHES and (value == value[:1]).all() and (other == value[:1]).all():
        rest_shape = np.asarray(value.shape[1:], np.int64)
        joined = helper.make_node("Concat", [SIZE, f"{name}/rest"], [f"{name}/shape"], axis=0)
        repeated = helper.make_node("Expand", [f"{name}/one", f"{name}/shape"], [name])
        return [joined, repeated], [constant("rest", rest_shape), constant("one", value[:1])]
    raise ConversionError(f"'{name}' depends on the batch in a way that is not linear")


def as_given(model: bytes, values: Sequence[tuple[str, str]]) -> bytes:
    """The model with the names and element types of inputs and outputs in the given file; types are changed by Casts.

    values: name and type of each input, then of each output (`Graph.given_values`); (): no file was given.
    """
    if not values:
        return model
    loaded = onnx.load_from_string(model)
    graph = loaded.graph
    renamed = {name: f"{name}/own" for name, _ in values}  # an inner value may have the name of an output
    first, last = list[onnx.NodeProto](), list[onnx.NodeProto]()
    for place, (value, (name, wanted)) in enumerate(zip((*graph.input, *graph.output), values, strict=True)):
        own = value.type.tensor_type.elem_type
        given = helper.np_dtype_to_tensor_dtype(np.dtype(wanted)) if wanted else own
        inner = renamed[value.name] = name if own == given else f"{name}/cast"
        if own != given and place < len(graph.input):
            first.append(helper.make_node("Cast", [name], [inner], name=inner, to=own))
        elif own != given:
            last.append(helper.make_node("Cast", [inner], [name], name=inner, to=given))
        value.name, value.type.tensor_type.elem_type = name, given
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(one, one) for one in names]
    nodes = [*first, *graph.node, *last]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(loaded)
    content: bytes = loaded.SerializeToString()
    return content


def in_half(model: bytes) -> bytes:
    """The model with its weights stored in fp16 and computed with in fp32; runtimes cast them once, when they load the file.

    Tensors of one axis, and those with numbers beyond fp16's range, stay as they are.
    """
    loaded = onnx.load_from_string(model)
    casts = list[onnx.NodeProto]()
    for tensor in loaded.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) < 2:
            continue
        name, value = tensor.name, numpy_helper.to_array(tensor)
        if np.abs(value).max(initial=0.0) <= np.finfo(np.float16).max:
            tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float16), f"{name}/half"))
            casts.append(helper.make_node("Cast", [tensor.name], [name], name=tensor.name, to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *loaded.graph.node]
    del loaded.graph.node[:]
    loaded.graph.node.extend(nodes)
    onnx.checker.check_model(loaded)
    content: bytes = loaded.SerializeToString()
    return content


PRODUCER = "autotailor"
ARCHIVE_FILE = "autotailor.json"
"""The extra file of a torch archive."""
MOST_CLASSES_BYTES = 64 * 1024
"""Limit for class names as JSON in an ONNX file; those of ImageNet fit."""


def facts(card: Card) -> dict[str, Any]:
    """The facts by which an application uses a file without its model card. They depend only on the card and our version."""
    source = card.made_from
    return {
        "version": version(PRODUCER),
        "network": source.network["name"],
        "weights": source.network["weights"],
        "licence": source.network["licence"],
        "supernet": source.digests.get("SuperNet"),
        "digest": card.digest,
        "config": card.config,
        "classes": list(card.classes),
        **({"problem": card.problem} if "problem" in card.model_fields_set else {}),
        **({} if card.metric is None else {"metric": card.metric}),
        **({} if card.decoding is None else {"decoding": card.decoding.to_json()}),
        **({"states": card.states} if card.states else {}),
        **({} if card.adapted is None else {"adapted": card.adapted.sha256}),
        **({} if card.adapted is None else {"input_deviations": card.adapted.input_deviations}),
        **card.preparation.model_dump(mode="json", exclude_unset=True),
        "accuracy": card.accuracy,
        "predicted_ms": card.predicted_ms,
        "measured_ms": card.latency.p50_ms,
        "batch": card.batch,
        "device": card.device.model_dump(mode="json"),
        "engine": {} if card.engine is None else card.engine.choices,
    }


def fact_file(card: Card) -> bytes:
    """All facts as JSON: the file beside an ncnn model, the extra file of a torch archive."""
    return json_bytes(facts(card))


def properties(card: Card) -> dict[str, str]:
    """The facts as texts; values other than strings as JSON.

    Class names of more than `MOST_CLASSES_BYTES` are left out, and `classes_left_out` is set. Unknown facts are left out, too.
    """
    known = {name: value for name, value in facts(card).items() if value is not None}
    names = _text(known["classes"])
    if len(names.encode()) > MOST_CLASSES_BYTES:
        del known["classes"]
        known["classes_left_out"] = (
            f"{len(card.classes)} names, more than {MOST_CLASSES_BYTES} bytes: see the model card"
        )
    return {f"{PRODUCER}.{name}": _text(value) for name, value in known.items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)


def tell(model: bytes, card: Card) -> bytes:
    """An ONNX model with the facts as its `metadata_props`. Tensors in other files stay there."""
    loaded = onnx.load_from_string(model)
    loaded.producer_name, loaded.producer_version = PRODUCER, version(PRODUCER)
    onnx.helper.set_model_props(loaded, properties(card))
    content: bytes = loaded.SerializeToString()
    return content
