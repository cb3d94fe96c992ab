"""Joins many operators' ONNX models as unconnected parts of one graph, and splits the converted NCNN model into these parts.

ncnn has no batch axis. pnnx infers the batch axis from operators such as convolutions, and removes it. A single Softmax or
Reshape does not reveal the batch axis, so pnnx would keep it, and the operator would differ from the one in a network.
Therefore every input first passes a BatchNorm, which marks the batch axis and is removed after the conversion.

An NCNN model is a text of layers, and the weights of these layers in order (`tasks.evaluation.ncnn.files`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import compose, helper, numpy_helper

from profiling_agents.messages import MIB
from tasks.evaluation.ncnn.files import Layer, NcnnFiles, weights_of

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
        inputs.append(_numbers(len(graph.input), len(part.graph.input)))
        outputs.append(_numbers(len(graph.output), len(part.graph.output)))
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
    members: Sequence[tuple[Layer, bytes]],
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    marked: frozenset[str],
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


def _numbers(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))
