"""Import of an ONNX model to the IR: constants folded, shapes known, weights kept apart. BatchNorm is never folded.

The graph has frozen nodes and shapes, with the tensors beside it. Slices that together cover an axis are merged:
exporters write them to reorder gates of recurrent layers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import gcd

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import torch

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Attribute, Graph, Node, Tensors
from tailor_ir.reading.batches import OTHER_BATCH, follow_fixed_batch, follow_samples, may_hold_samples
from tailor_ir.reading.file_forms import has_fixed_shape, inline_defined, place_of, redirect, write_out
from tailor_ir.reading.files import InputLayout, layouts_of, leaves_batch_open, pin_squeezes
from tailor_ir.reading.folding import cleaned, constants_to_tensors, detach_weights, fold, is_detached, restore
from tailor_ir.reading.normal_forms import (
    drop_default_states,
    drop_idle,
    normalise,
    resolve_identities,
    separate_outputs,
    share_rows,
)
from tailor_ir.reading.places import unknown_operator
from tailor_ir.reading.preparing import (
    at_least,
    imported,
    quiet_surgeon,
    refuse_unsupported,
    unshare_vectors,
    weight_names,
    weights_in_constants,
)
from tailor_ir.reading.trace import OPSET

MOST_BLOCKS = 8


def reorder_blocks(graph: gs.Graph) -> None:
    """Rewrite slices of a weight's first axis that are joined in another order as a permutation of equal blocks.

    The blocks become a separate axis, so that all of them can be cut alike.
    """
    for node in [n for n in graph.nodes if n.op == "Concat" and n.attrs["axis"] == 0]:
        pieces = [_piece(operand) for operand in node.inputs]
        sources = {piece[0].name for piece in pieces if piece is not None}
        if None in pieces or len(sources) != 1 or not has_fixed_shape(node.outputs[0]):
            continue
        source = pieces[0][0]  # type: ignore[index]
        if not is_detached(source, graph):
            continue
        ranges = [piece[1:] for piece in pieces if piece is not None]
        size = source.shape[0]
        length = gcd(size, *(bound for piece in ranges for bound in piece))
        order = [start // length + i for start, stop in ranges for i in range((stop - start) // length)]
        if sorted(order) == list(range(size // length)) and 1 < len(order) <= MOST_BLOCKS:
            _write(graph, node, source, order)
    cleaned(graph)


def split_slices(graph: gs.Graph) -> None:
    """Rewrite slices that cover one axis of a value without a gap as one Split, so that all pieces can be cut alike.

    Slices that are only joined again in another order stay: they are a roll, handled by `tailor_ir/rewriting/passes.py`.
    """
    for value in list(graph.tensors().values()):
        found: dict[int, dict[tuple[int, int], list[gs.Node]]] = {}
        for node in value.outputs:
            place = _range(node) if node.op == "Slice" and node.inputs[0] is value else None
            if place is not None:
                axis, *bounds = place
                found.setdefault(axis, {}).setdefault((bounds[0], bounds[1]), []).append(node)
        for axis, pieces in found.items():
            ranges = sorted(pieces)
            bounds = [start for start, _ in ranges] + [value.shape[axis]]
            gapless = len(ranges) > 1 and ranges == list(zip([0, *bounds[1:-1]], bounds[1:], strict=True))
            if gapless and not _is_roll(axis, [node for nodes in pieces.values() for node in nodes]):
                _split(graph, value, axis, [pieces[piece] for piece in ranges])
    cleaned(graph)


def _is_roll(axis: int, pieces: Sequence[gs.Node]) -> bool:
    """Whether one Concat along the same axis is the only reader of all pieces."""
    readers = [reader for piece in pieces for reader in piece.outputs[0].outputs]
    rank = len(pieces[0].outputs[0].shape)
    return bool(readers) and all(
        reader is readers[0] and reader.op == "Concat" and reader.attrs["axis"] % rank == axis for reader in readers
    )


def _range(node: gs.Node) -> tuple[int, int, int] | None:
    """Axis, begin and end of a slice of one axis with step 1; None for other slices."""
    source = node.inputs[0]
    if not has_fixed_shape(source) or not all(isinstance(i, gs.Constant) for i in node.inputs[1:]):
        return None
    starts, stops, *others = (i.values.tolist() for i in node.inputs[1:])
    if len(starts) != 1 or others[1:] not in ([], [[1]]):
        return None
    axis = int(others[0][0]) % len(source.shape) if others else 0
    start, stop, _ = slice(starts[0], stops[0]).indices(source.shape[axis])
    return axis, start, stop


def _split(graph: gs.Graph, value: gs.Tensor, axis: int, pieces: list[list[gs.Node]]) -> None:
    results = []
    for nodes in pieces:
        first, *equal = (node.outputs[0] for node in nodes)
        for other in equal:
            redirect(graph, other, first)
        results.append(first)
        for node in nodes:
            node.inputs.clear()
            node.outputs.clear()
    sizes = np.asarray([result.shape[axis] for result in results], np.int64)
    name = f"{results[0].name}/split"
    graph.nodes.append(gs.Node("Split", name, {"axis": axis}, [value, gs.Constant(f"{name}/sizes", sizes)], results))


def _piece(tensor: gs.Tensor) -> tuple[gs.Tensor, int, int] | None:
    """Source, begin and end of a tensor that is a slice of another tensor's first axis; None for other tensors."""
    node = tensor.inputs[0] if len(tensor.inputs) == 1 else None
    if node is None or node.op != "Slice":
        return None
    place = _range(node)
    return (node.inputs[0], *place[1:]) if place is not None and place[0] == 0 else None


def _write(graph: gs.Graph, node: gs.Node, source: gs.Tensor, order: list[int]) -> None:
    rest = tuple(source.shape[1:])
    apart = (len(order), source.shape[0] // len(order), *rest)
    blocks, sorted_blocks = (gs.Variable(f"{node.name}/{part}", source.dtype, apart) for part in ("blocks", "sorted"))

    def constant(name: str, values: object) -> gs.Constant:
        return gs.Constant(f"{node.name}/{name}", np.asarray(values, np.int64))

    result = node.outputs[0]
    node.inputs.clear()
    node.outputs.clear()
    taken = [sorted_blocks, constant("whole", source.shape)]
    graph.nodes += [
        gs.Node("Reshape", f"{node.name}/split", inputs=[source, constant("apart", apart)], outputs=[blocks]),
        gs.Node("Gather", f"{node.name}/sort", {"axis": 0}, [blocks, constant("order", order)], [sorted_blocks]),
        gs.Node("Reshape", f"{node.name}/join", inputs=taken, outputs=[result]),
    ]


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
    if not has_fixed_shape(tensor):
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
                f"{node.place}: its statistics '{name}' are computed; allowed: stored ones; fold "
                "what computes them before exporting"
            )
    return tuple(found)


CONTROL_FLOW = {"If", "Loop", "Scan"}
PASSES: tuple[Callable[[gs.Graph], None], ...] = (
    write_out,
    resolve_identities,
    drop_idle,
    reorder_blocks,
    split_slices,
)
"""Rewrites of a folded graph, in this order."""


@quiet_surgeon()
def import_onnx(
    model: onnx.ModelProto,
    state: Mapping[str, torch.Tensor] | None = None,
    layout: InputLayout | None = None,
    known: Collection[str] = (),
    again: Callable[[int], onnx.ModelProto] | None = None,
) -> tuple[Graph, Tensors]:
    """The IR graph and its tensors.

    `state`: values of the network; they replace those of the model. `layout`: sizes and batch axes of the inputs; None: the
    likeliest layout. `known`: operators that may be in the graph; () allows all. `again` traces the network once more, for
    another batch size, to find constants that follow the batch; without it, only files with an open batch can be compared.
    Weights that a file stores as constants are trained like others.
    """
    layout = layout or layouts_of(model, {})[0]
    surgeon, weights, values = _folded(model, state, layout)
    if may_hold_samples(surgeon, layout.samples):
        if again is not None or leaves_batch_open(model, layout):
            other = layout.with_samples(OTHER_BATCH)
            traced = model if again is None else again(OTHER_BATCH)
            follow_samples(surgeon, _folded(traced, state, other)[0], layout.samples, other.samples)
        else:
            follow_fixed_batch(surgeon, layout.samples)
    for rewrite in PASSES:
        rewrite(surgeon)
    share_rows(surgeon, layout.samples)
    restore(surgeon, values)
    normalise(surgeon, layout.samples)
    if all(node.op == "Identity" for node in surgeon.nodes):
        refuse_unread_inputs(surgeon, frozenset())
    separate_outputs(surgeon)
    return to_graph(surgeon, weights, state, GraphEnds(layout=layout, known=known))


def _folded(
    model: onnx.ModelProto, state: Mapping[str, torch.Tensor] | None, layout: InputLayout
) -> tuple[gs.Graph, frozenset[str], dict[str, np.ndarray]]:
    """The folded graph without weight values; the names of the weights; their values."""
    refuse_unsupported(model)
    model = inline_defined(pin_squeezes(at_least(model, OPSET), layout))
    weights = weight_names(model, state)
    surgeon = imported(model)
    _fix_inputs(surgeon, layout)
    resolve_identities(surgeon)
    separate_outputs(surgeon)
    cleaned(surgeon)
    if state is None:
        constants_to_tensors(surgeon)
        weights |= weights_in_constants(surgeon)
        weights |= unshare_vectors(surgeon, weights)
    values = detach_weights(surgeon, weights)
    surgeon = fold(surgeon, layout.samples)
    if state is None and (computed := weights_in_constants(surgeon)):
        weights |= computed | unshare_vectors(surgeon, computed)
        values |= detach_weights(surgeon, weights)
    drop_default_states(surgeon)
    _refuse_control_flow(surgeon)
    return surgeon, weights, values


def _refuse_control_flow(graph: gs.Graph) -> None:
    """ImportFailed: the graph has control flow. Folding has already resolved branches that depend on shapes alone."""
    for node in graph.nodes:
        if node.op in CONTROL_FLOW:
            raise ImportFailed(
                f"{place_of(node)}: control flow; allowed: feed-forward networks; trace it with fixed branches"
            )


def _fix_inputs(graph: gs.Graph, layout: InputLayout) -> None:
    """Set the sizes of all inputs to the layout's; inputs that the layout makes constant are removed."""
    changed = False
    for tensor in list(graph.inputs):
        if tensor.name in layout.constants:
            tensor.to_constant(layout.constants[tensor.name])
            changed = True
        elif tuple(tensor.shape or ()) != (shape := layout.shapes[tensor.name]):
            tensor.shape, changed = list(shape), True
    graph.inputs = [tensor for tensor in graph.inputs if tensor.name not in layout.constants]
    for output in (output for node in graph.nodes for output in node.outputs if changed):
        output.shape = None  # was inferred for the old input shapes
