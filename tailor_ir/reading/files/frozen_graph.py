"""Convert a folded ONNX graph to the IR's graph: frozen nodes and shapes, with the tensors beside it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import torch

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Attribute, Graph, Node, Tensors
from tailor_ir.reading.files.layouts import InputLayout
from tailor_ir.reading.places import unknown_operator

BATCH_NORM_STATISTICS = (3, 4)  # input positions of the running mean and variance
DATA_DEPENDENT = {"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"}  # shapes depend on values


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEnds:
    """Facts about a graph besides its nodes. known: operators that it may contain; () allows all."""

    layout: InputLayout
    known: Collection[str] = ()


def _attribute(value: object) -> Attribute:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(_attribute(v) for v in value)  # type: ignore[return-value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, gs.Tensor | onnx.TensorProto):
        raise TypeError("tensor attribute")
    if not isinstance(value, int | float | str):
        raise TypeError(f"attribute of {type(value).__name__}")
    return value


def to_graph(
    surgeon: gs.Graph, weights: frozenset[str], state: Mapping[str, torch.Tensor] | None, ends: GraphEnds
) -> tuple[Graph, Tensors]:
    shapes: dict[str, tuple[int, ...]] = {}
    tensors: Tensors = {}
    nodes: list[Node] = []
    used: set[str] = set()
    for index, node in enumerate(surgeon.nodes):
        name = node.name or f"{node.op}_{index}"
        name = name if name not in used else next(n for n in map(f"{name}_{{}}".format, count(index)) if n not in used)
        used.add(name)
        if ends.known and node.op not in ends.known and node.op not in DATA_DEPENDENT:
            raise unknown_operator(node.op, name, ends.known)
        for tensor in (*node.inputs, *node.outputs):
            _note_tensor(tensor, name, node.op, shapes, tensors, state)
        try:
            attributes = tuple(sorted((k, _attribute(v)) for k, v in node.attrs.items()))
        except TypeError:
            raise ImportFailed(f"operator '{node.op}' at '{name}': not supported; allowed: plain attributes") from None
        nodes.append(
            Node(
                name=name,
                op=node.op,
                inputs=tuple("" if i.is_empty() else i.name for i in node.inputs),
                outputs=tuple(o.name for o in node.outputs),
                attributes=attributes,
            )
        )
    refuse_unread_inputs(surgeon, shapes.keys())
    statistics = _statistics(nodes, tensors)
    trainable = tuple(n for n in tensors if n in weights and n not in statistics and tensors[n].is_floating_point())
    return (
        Graph(
            nodes=tuple(nodes),
            inputs=tuple(i.name for i in surgeon.inputs),
            outputs=tuple(o.name for o in surgeon.outputs),
            shapes=shapes,
            parameters=trainable,
            statistics=statistics,
            constants=tuple(n for n in tensors if n not in statistics and n not in set(trainable)),
            input_types=tuple(map(_type_of, surgeon.inputs)),
            batch_axes=tuple(axes)
            if any(axes := [ends.layout.batch_axes.get(i.name, 0) for i in surgeon.inputs])
            else (),
        ),
        tensors,
    )


def refuse_unread_inputs(surgeon: gs.Graph, read: Collection[str]) -> None:
    """ImportFailed: no node reads one of the inputs."""
    for given in surgeon.inputs:
        if given.name not in read:
            raise ImportFailed(f"network: no operator reads its input '{given.name}'; export it without this input")


def _type_of(given: gs.Variable) -> str:
    if given.dtype is None or isinstance(given.dtype, int) or np.dtype(given.dtype).kind not in "biuf":
        raise ImportFailed(f"network: input '{given.name}' of element type {given.dtype}; allowed: tensors of numbers")
    return np.dtype(given.dtype).name


def _note_tensor(
    tensor: gs.Tensor,
    node_name: str,
    op: str,
    shapes: dict[str, tuple[int, ...]],
    tensors: Tensors,
    state: Mapping[str, torch.Tensor] | None,
) -> None:
    if tensor.is_empty() or tensor.name in shapes:
        return
    if isinstance(tensor, gs.Constant):
        value = torch.from_numpy(np.array(tensor.values))
        if state is not None and tensor.name in state:
            value = state[tensor.name].detach().clone().reshape(value.shape)
        tensors[tensor.name] = value
        shapes[tensor.name] = tuple(value.shape)
        return
    if tensor.shape is None or not all(isinstance(d, int) for d in tensor.shape):
        if op in DATA_DEPENDENT:
            raise ImportFailed(
                f"operator '{op}' at '{node_name}': how much it gives depends on the values that it reads; allowed: "
                "results whose shapes follow from the input's; leave it out (it can run on the network's outputs), or use a "
                "mask of fixed shape"
            )
        raise ImportFailed(
            f"operator '{op}' at '{node_name}': the shape of '{tensor.name}' is not fixed (got {tensor.shape}); "
            "allowed: networks whose shapes follow from the input's; export with a fixed input shape"
        )
    shapes[tensor.name] = tuple(tensor.shape)


def _statistics(nodes: list[Node], tensors: Tensors) -> tuple[str, ...]:
    found = {n.inputs[i]: n for n in nodes if n.op == "BatchNormalization" for i in BATCH_NORM_STATISTICS}
    for name, node in found.items():
        if name not in tensors:
            raise ImportFailed(
                f"operator '{node.op}' at '{node.name}': its statistics '{name}' are computed; allowed: stored ones; fold "
                "what computes them before exporting"
            )
    return tuple(found)
