"""Conversion from ONNX to NCNN by pnnx's binary, also of many operators at once, and ONNX models rewritten for ncnn.

Each call is a killable child process in a private temporary folder. One call takes about 0.25 s, nearly all of it
start-up. `convert_operators` therefore joins many operators to one graph of unconnected parts and splits the converted
model into these parts: 1 ms per operator. An NCNN model is a text of layers, and the weights of these layers in order
(`tasks.evaluation.ncnn.files`).

ncnn has no batch axis. pnnx infers the batch axis from operators such as convolutions, and removes it. A single Softmax
or Reshape does not reveal the batch axis, so pnnx would keep it, and the operator would differ from the operator in a
network. Therefore every input first passes a BatchNorm, which marks the batch axis and is removed after the conversion.

Average pooling with `ceil_mode` is rewritten such that ncnn and ONNX compute the same: ncnn divides by the whole
kernel, but ONNX by the part of the kernel over the map. Kernels are no larger than their padded maps: SubNets are
written in this way (`tailor_ir/ops/pooling.py`).
"""

import importlib.util
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType

import ncnn
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import compose, helper, numpy_helper

import tailor_ir
from profiling_agents.backends.base import ModelError
from profiling_agents.backends.onnx_files import read_onnx
from profiling_agents.backends.sanitized_names import SanitizedNames
from profiling_agents.messages import MIB
from tasks.evaluation.conversion import DEFAULT_LIMITS, ConversionError, ConversionLimits, last_line, run_limited
from tasks.evaluation.ncnn.files import Layer, NcnnFiles, masks_for, weights_of, with_masks

MAX_MODELS = 200
MAX_BYTES = 64 * MIB


class SplitError(Exception):
    """The models cannot be joined, or the converted model cannot be split."""


@dataclass(frozen=True, slots=True)
class JoinedModel:
    """The joined model. inputs, outputs: for each part, the numbers of its inputs and outputs. marked: inputs with a mark."""

    model: bytes
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    marked: frozenset[str]


def groups(models: Sequence[bytes]) -> Iterator[list[int]]:
    """Indices of the models of each joined model: at most MAX_MODELS models and MAX_BYTES bytes."""
    part: list[int] = []
    size = 0
    for index, model in enumerate(models):
        if part and (len(part) >= MAX_MODELS or size + len(model) > MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(index)
        size += len(model)
    if part:
        yield part


def join(models: Sequence[bytes]) -> JoinedModel:
    """One model with all models side by side. SplitError when their operator sets differ."""
    joined = onnx.ModelProto()
    inputs: list[tuple[int, ...]] = []
    outputs: list[tuple[int, ...]] = []
    marked: set[str] = set()
    for index, content in enumerate(models):
        part = compose.add_prefix(onnx.load_from_string(content), f"m{index}_", inplace=True)
        if index == 0:
            joined.ir_version = part.ir_version
            joined.opset_import.extend(part.opset_import)
            joined.graph.name = "joined"
        elif list(part.opset_import) != list(joined.opset_import):
            raise SplitError("operator sets differ")
        graph = joined.graph
        for numbers, old, new in ((inputs, graph.input, part.graph.input), (outputs, graph.output, part.graph.output)):
            numbers.append(tuple(range(len(old), len(old) + len(new))))
        marked.update(f"in{inputs[-1][own]}" for own in _mark_batch_axis(part.graph))
        for name in ("node", "input", "output", "initializer"):
            getattr(graph, name).extend(getattr(part.graph, name))
    return JoinedModel(joined.SerializeToString(), tuple(inputs), tuple(outputs), frozenset(marked))


def split(converted: NcnnFiles, joined: JoinedModel) -> list[NcnnFiles | None]:
    """The NCNN models of the parts in order, each with blobs in0…, out0…; None for a part that is incomplete.

    SplitError when the weights cannot be divided among the layers.
    """
    layers = list(converted.layers())
    try:
        weights = weights_of(layers, converted.bin)
    except ValueError as error:
        raise SplitError(str(error)) from error
    root = _components(layers)
    members: dict[str, list[tuple[Layer, bytes]]] = {}
    for layer, content in zip(layers, weights, strict=True):
        members.setdefault(root[layer.outputs[0]], []).append((layer, content))
    return [
        _part(members.get(root.get(f"in{inputs[0]}", ""), []), inputs, outputs, joined.marked)
        for inputs, outputs in zip(joined.inputs, joined.outputs, strict=True)
    ]


def _part(
    members: Sequence[tuple[Layer, bytes]], inputs: tuple[int, ...], outputs: tuple[int, ...], marked: frozenset[str]
) -> NcnnFiles | None:
    names = {f"in{number}": f"in{own}" for own, number in enumerate(inputs)}
    names |= {f"out{number}": f"out{own}" for own, number in enumerate(outputs)}
    outer = {blob for layer, _ in members for blob in layer.outputs if blob.startswith(("in", "out"))}
    marks = [layer for layer, _ in members if layer.kind == "BatchNorm" and layer.inputs[0] in marked]
    if outer != set(names) or len(marks) != len(marked.intersection(names)):
        return None
    kept: list[tuple[Layer, bytes]] = []
    for layer, content in members:
        if layer not in marks:
            kept.append((layer, content))
        elif layer.outputs[0] in names:  # ncnn needs no layer at all for this operator
            kept.append((Layer("Noop", layer.name, layer.inputs, layer.outputs, ()), b""))
        else:
            names[layer.outputs[0]] = names[layer.inputs[0]]
    layers = [layer.renamed(names) for layer, _ in kept]
    return NcnnFiles.of(layers, b"".join(content for _, content in kept))


def _mark_batch_axis(graph: onnx.GraphProto) -> Iterator[int]:
    """Insert a BatchNorm behind each input whose first axis is a batch of 1; yields the numbers of these inputs."""
    normalised = {node.input[0] for node in graph.node if node.op_type == "BatchNormalization"}  # would fuse
    for number, value in enumerate(graph.input):
        shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        if len(shape) < 2 or shape[0] != 1 or value.name in normalised:
            continue
        mark = f"{value.name}_mark"
        for node in graph.node:
            node.input[:] = [mark if name == value.name else name for name in node.input]
        names = [f"{mark}_{index}" for index in range(4)]
        numbers = np.linspace(0.5, 1.5, shape[1], dtype=np.float32)  # ones could be optimised away
        graph.initializer.extend(numpy_helper.from_array(numbers, name) for name in names)
        graph.node.insert(0, helper.make_node("BatchNormalization", [value.name, *names], [mark]))
        yield number


def _components(layers: Sequence[Layer]) -> dict[str, str]:
    """For every blob, the representative of all blobs that are connected with it (union-find)."""
    parent: dict[str, str] = {}

    def find(blob: str) -> str:
        parent.setdefault(blob, blob)
        while parent[blob] != blob:
            parent[blob] = parent[parent[blob]]
            blob = parent[blob]
        return blob

    for layer in layers:
        first, *others = (*layer.outputs, *layer.inputs)
        for blob in others:
            parent[find(blob)] = find(first)
    return {blob: find(blob) for layer in layers for blob in layer.outputs}


def fit_pools(model: onnx.ModelProto) -> onnx.ModelProto:
    """Set `count_include_pad` to 0 in average pools with `ceil_mode` but without padding; changes and returns the model."""
    for node in model.graph.node:
        if node.op_type != "AveragePool":
            continue
        found = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if found.get("ceil_mode") and found.get("count_include_pad") and not any(found.get("pads", ())):
            kept = [attribute for attribute in node.attribute if attribute.name != "count_include_pad"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("count_include_pad", 0)])
    return model


Outcome = NcnnFiles | ConversionError


def convert(
    model: bytes,
    limits: ConversionLimits = DEFAULT_LIMITS,
    *,
    fp16: bool = False,
    trimmed: bool = True,
    implementations: Mapping[str, str] = MappingProxyType({}),
) -> NcnnFiles:
    """NCNN files (weights in fp32, or fp16) of an ONNX model with static input shapes and folded BatchNorm.

    Blobs are named in0, in1, … and out0, … in the order of the ONNX inputs and outputs. implementations: implementations of
    convolutions, by the value that the ONNX node writes (`tasks.evaluation.ncnn.files`). trimmed: remove kernel positions
    that only read padding, since ncnn would read their weights, too: eight of nine in vain for a 3×3 convolution on a
    single position. ConversionError: pnnx crashed, exceeded a limit, wrote nothing, or left a layer that ncnn lacks.
    """
    model = _trimmed(model) if trimmed else model
    files = _checked(_converted(model, limits, fp16=fp16))
    if not implementations:
        return files
    plain = files if not fp16 else _converted(model, limits)  # the same layers, with weights that can be compared
    return with_masks(files, masks_for(model, plain, implementations))


def convert_operators(models: Sequence[bytes], limits: ConversionLimits = DEFAULT_LIMITS) -> list[Outcome]:
    """NCNN files of many single-operator models, as the operators run inside a network (no batch axis).

    Each model has its own result or error.
    """
    models = [_trimmed(content) for content in models]
    results: dict[int, Outcome] = {}
    for index, content in enumerate(models):
        if (constant := _constant(content)) is not None:
            results[index] = constant
    others = [index for index in range(len(models)) if index not in results]
    pending = [[others[own] for own in part] for part in groups([models[index] for index in others])]
    while pending:
        part = pending.pop()
        outcomes = _convert_part([models[index] for index in part], limits)
        for index, outcome in zip(part, outcomes, strict=True):
            if outcome is not None:
                results[index] = outcome
        if unknown := [index for index in part if index not in results]:
            half = (len(unknown) + 1) // 2
            pending += [rest for rest in (unknown[:half], unknown[half:]) if rest]
    return [results[index] for index in range(len(models))]


def _constant(content: bytes) -> NcnnFiles | None:
    """The files of an operator without inputs: a constant in memory. None for all other operators."""
    graph = onnx.load_from_string(content).graph
    if graph.input or len(graph.output) != 1:
        return None
    shape = [dimension.dim_value for dimension in graph.output[0].type.tensor_type.shape.dim][1:]
    width, *rest = reversed(shape)
    keys = ("0", "1", "2") if len(shape) < 4 else ("0", "1", "11", "2")
    parameters = tuple(f"{key}={size}" for key, size in zip(keys, (width, *rest), strict=False))
    layer = Layer("MemoryData", "constant", (), ("out0",), parameters)
    return NcnnFiles.of([layer], bytes(4 * prod(shape)))


def _convert_part(models: Sequence[bytes], limits: ConversionLimits) -> Sequence[Outcome | None]:
    """The results of one call of pnnx; None for models to be converted again in a smaller group."""
    failure = ConversionError("pnnx dropped an input or an output")
    parts: Sequence[NcnnFiles | None] = [None] * len(models)
    try:
        joined = join(models)
        parts = split(_converted(joined.model, limits), joined)
    except ConversionError as error:
        failure = error
    except SplitError as error:
        failure = ConversionError(f"pnnx's files cannot be read: {error}")
    if len(models) == 1 and parts[0] is None:
        return [failure]
    return [None if part is None else _outcome(part) for part in parts]


def _outcome(converted: NcnnFiles) -> Outcome:
    try:
        return _checked(converted)
    except ConversionError as error:
        return error


def _checked(converted: NcnnFiles) -> NcnnFiles:
    """The files, checked: ConversionError if pnnx passed through a layer that ncnn does not have: 'aten::erf', 'Det', …"""
    for layer in converted.layers():
        if ncnn.layer_to_index(layer.kind) < 0:
            raise ConversionError(f"ncnn has no layer for '{layer.kind}'")
    return converted


def _converted(model: bytes, limits: ConversionLimits, *, fp16: bool = False) -> NcnnFiles:
    with tempfile.TemporaryDirectory(prefix="autotailor-pnnx-") as name:  # mode 0700
        folder = Path(name)
        (folder / "model.onnx").write_bytes(_prepared(model))
        environment = {"PATH": os.defpath, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        log = run_limited([_binary(), "model.onnx", f"fp16={fp16:d}"], folder, limits, environment, name="pnnx")
        files = folder / "model.ncnn.param", folder / "model.ncnn.bin"
        if not all(file.is_file() for file in files) or files[0].stat().st_size == 0:
            raise ConversionError(f"pnnx wrote no NCNN model ({last_line(log)})")
        return NcnnFiles(param=files[0].read_bytes(), bin=files[1].read_bytes())


def _trimmed(content: bytes) -> bytes:
    """The model without the positions of kernels that no input reaches."""
    try:
        model = onnx.load_from_string(content)
    except DecodeError:
        return content  # `_prepared` raises the error
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    if not any(any(one.ints) for node in convolutions for one in node.attribute if one.name == "pads"):
        return content
    found = tailor_ir.trim_kernels(model)
    return content if found is model else found.SerializeToString()


def _prepared(model: bytes) -> bytes:
    """The model with neutral names, since pnnx writes names into its text files, and in forms that ncnn has.

    The order and number of inputs and outputs stay.
    """
    try:
        return fit_pools(read_onnx(model, SanitizedNames())).SerializeToString()
    except ModelError as error:
        raise ConversionError(f"pnnx gets no model: {' '.join(str(error).split())}") from error


def _binary() -> str:
    """pnnx's executable inside its Python package (importing the package would import torch)."""
    found = importlib.util.find_spec("pnnx")
    if found is None or not found.submodule_search_locations:
        raise ConversionError("the package 'pnnx' is not installed")
    return str(Path(found.submodule_search_locations[0]) / "pnnx")
