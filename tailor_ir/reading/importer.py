"""From an ONNX model to the IR: constants folded, shapes known, weights kept apart. BatchNorm is never folded."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import onnx
import onnx.version_converter
import onnx_graphsurgeon as gs
import torch
from onnx_graphsurgeon.logger import G_LOGGER
from onnx_graphsurgeon.util.exception import OnnxGraphSurgeonException

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Attribute, Graph, Node, Tensors
from tailor_ir.reading.batches import OTHER_BATCH, follow_fixed_batch, follow_samples, may_hold_samples
from tailor_ir.reading.folding import fold, lay_aside, restore
from tailor_ir.reading.normal_forms import drop_default_states, drop_idle, normalise, resolve_identities, share_rows
from tailor_ir.reading.places import unknown_operator
from tailor_ir.reading.slices import reorder_blocks, split_slices
from tailor_ir.reading.trace import OPSET, TRACE_BATCH
from tailor_ir.reading.written_out.file_forms import inline_defined, write_out

BATCH_NORM_STATISTICS = (3, 4)  # input positions of the running mean and variance
SETTINGS = {"Resize": (1, 2), "Upsample": (1,)}  # input positions of floats that are no weights
CONTROL_FLOW = {"If", "Loop", "Scan"}
PASSES: tuple[Callable[[gs.Graph], None], ...] = (
    write_out,
    resolve_identities,
    drop_idle,
    reorder_blocks,
    split_slices,
    share_rows,
)
"""Rewrites of a folded graph, in order."""
DATA_DEPENDENT = {"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"}  # shapes follow from values


@contextmanager
def _quiet_surgeon() -> Iterator[None]:
    """While inside, onnx-graphsurgeon prints nothing, and what it refuses is one line."""
    with G_LOGGER.suppress(G_LOGGER.CRITICAL + 1):
        try:
            yield
        except OnnxGraphSurgeonException as error:
            raise ImportFailed(f"network: not readable ONNX ({str(error).splitlines()[0]}); export it again") from error


@_quiet_surgeon()
def import_onnx(
    model: onnx.ModelProto,
    state: Mapping[str, torch.Tensor] | None = None,
    example_shapes: Mapping[str, Sequence[int]] | None = None,
    known: Collection[str] = (),
    again: Callable[[int], onnx.ModelProto] | None = None,
) -> tuple[Graph, Tensors]:
    """The IR graph and its tensors.

    `state` holds the network's own values where the model's are not to be trusted; `example_shapes`, by input name,
    fills in input dimensions that the model leaves open. `known`: operators that may be in the graph; () allows all. `again`
    traces the network once more, for another batch (without it, a file with an open batch tells what follows the batch, and one
    with a fixed batch does not).
    """
    surgeon, weights, values = _folded(model, state, example_shapes or {}, TRACE_BATCH)
    if may_hold_samples(surgeon):
        if again is not None or _leaves_batch_open(model):
            traced = model if again is None else again(OTHER_BATCH)
            follow_samples(surgeon, _folded(traced, state, example_shapes or {}, OTHER_BATCH)[0])
        else:
            follow_fixed_batch(surgeon)
    for rewrite in PASSES:
        rewrite(surgeon)
    restore(surgeon, values)
    normalise(surgeon)
    return _to_graph(surgeon, weights, state, known)


def _leaves_batch_open(model: onnx.ModelProto) -> bool:
    stored = {tensor.name for tensor in model.graph.initializer}
    shapes = [one.type.tensor_type.shape.dim for one in model.graph.input if one.name not in stored]
    return bool(shapes) and not any(shape and shape[0].dim_value > 0 for shape in shapes)


def _folded(
    model: onnx.ModelProto, state: Mapping[str, torch.Tensor] | None, shapes: Mapping[str, Sequence[int]], samples: int
) -> tuple[gs.Graph, frozenset[str], dict[str, np.ndarray]]:
    """The graph without its weights, constants folded; names of the weights; their values. samples: where the batch is open."""
    _refuse_unsupported(model)
    model = inline_defined(_at_least(model, OPSET))
    weights = _weight_names(model, state)
    surgeon = gs.import_onnx(model)
    _fix_input_shapes(surgeon, shapes, samples)
    resolve_identities(surgeon)
    surgeon.cleanup(remove_unused_graph_inputs=False).toposort()
    if state is None:
        weights |= _unshare_vectors(surgeon, weights)
    values = lay_aside(surgeon, weights)
    surgeon = fold(surgeon)
    drop_default_states(surgeon)
    _refuse_control_flow(surgeon)
    return surgeon, weights, values


def _refuse_unsupported(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        where = f"operator '{node.op_type}' at '{node.name or node.output[0]}'"
        if "Quantize" in node.op_type or node.op_type.startswith("QLinear"):
            raise ImportFailed(
                f"{where}: the network is quantised; allowed: fp32; give the network before quantisation"
            )
        if node.domain not in ("", "ai.onnx"):
            raise ImportFailed(
                f"{where}: not supported (domain '{node.domain}'); write it in standard ONNX operators, or report it"
            )


def _refuse_control_flow(graph: gs.Graph) -> None:
    """Branches that shapes decide are gone by now."""
    for node in graph.nodes:
        if node.op in CONTROL_FLOW:
            where = f"operator '{node.op}' at '{node.name or node.outputs[0].name}'"
            raise ImportFailed(f"{where}: control flow; allowed: feed-forward networks; trace it with fixed branches")


def _at_least(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model in the opset that the rules are written for; newer ones differ only where `normalise` rewrites."""
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), opset)
    if version >= opset:
        return model
    try:
        return onnx.version_converter.convert_version(model, opset)
    except Exception as error:  # C++ exceptions come as several Python types
        reason = str(error).splitlines()[0]
        raise ImportFailed(
            f"network: opset {version} cannot be raised to {opset} ({reason}); export it with opset {opset} or later"
        ) from error


def _fix_input_shapes(graph: gs.Graph, example_shapes: Mapping[str, Sequence[int]], samples: int) -> None:
    """An open batch becomes the other inputs', or else `samples`; other open dimensions follow the examples."""
    closed = [tensor.shape[0] for tensor in graph.inputs if tensor.shape and _is_size(tensor.shape[0])]
    changed = False
    for tensor in graph.inputs:
        shape = list(tensor.shape or ())
        example = example_shapes.get(tensor.name, ())
        for position, size in enumerate(shape):
            if _is_size(size):
                continue
            if position == 0:
                shape[0] = closed[0] if closed else samples
            elif len(example) == len(shape):
                shape[position] = example[position]
            else:
                raise ImportFailed(
                    f"network: input '{tensor.name}' leaves its shape open ({tensor.shape}); "
                    "give an example input of full resolution, or export it with a fixed shape"
                )
        if shape != list(tensor.shape or ()):
            tensor.shape, changed = shape, True
    _refuse_other_batches(graph)
    for output in (output for node in graph.nodes for output in node.outputs if changed):
        output.shape = None  # inferred for an open input


def _is_size(size: object) -> bool:
    return isinstance(size, int) and size > 0


def _refuse_other_batches(graph: gs.Graph) -> None:
    shapes = {tensor.name: tuple(tensor.shape or ()) for tensor in graph.inputs}
    first = {shape[:1] for shape in shapes.values()}
    if not shapes or (len(shapes) > 1 and (len(first) > 1 or () in first)):
        told = ", ".join(f"'{name}' {shape}" for name, shape in shapes.items()) or "none"
        raise ImportFailed(f"network: inputs {told}; allowed: inputs whose first axis is the same batch; export it so")


def _unshare_vectors(graph: gs.Graph, weights: frozenset[str]) -> frozenset[str]:
    """Give each reader of a bias or scale its own copy; names of the copies.

    Exporters merge vectors of equal value (all the zero biases of one length), which ties layers that are not tied.
    """
    copies: set[str] = set()
    for tensor in list(graph.tensors().values()):
        if tensor.name not in weights or not isinstance(tensor, gs.Constant) or len(tensor.shape) != 1:
            continue
        for number, node in enumerate(list(tensor.outputs)[1:], start=1):
            copy = gs.Constant(f"{tensor.name}/{number}", np.array(tensor.values))
            copies.add(copy.name)
            node.inputs = [copy if operand is tensor else operand for operand in node.inputs]
    return frozenset(copies)


def _weight_names(model: onnx.ModelProto, state: Mapping[str, torch.Tensor] | None) -> frozenset[str]:
    """Initializers with learned values; all other constants may be folded."""
    settings = {
        node.input[position]
        for node in model.graph.node
        for position in SETTINGS.get(node.op_type, ())
        if position < len(node.input)
    }
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
    return frozenset(
        tensor.name
        for tensor in model.graph.initializer
        if (tensor.name in state if state is not None else tensor.data_type in floats and np.prod(tensor.dims) > 1)
        and tensor.name not in settings
    )


def _attribute(value: object) -> Attribute:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(_attribute(v) for v in value)  # type: ignore[return-value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, gs.Tensor | onnx.TensorProto):
        raise TypeError("tensor attribute")
    assert isinstance(value, int | float | str), value
    return value


def _to_graph(
    surgeon: gs.Graph, weights: frozenset[str], state: Mapping[str, torch.Tensor] | None, known: Collection[str]
) -> tuple[Graph, Tensors]:
    shapes: dict[str, tuple[int, ...]] = {}
    tensors: Tensors = {}
    nodes: list[Node] = []
    used: set[str] = set()
    for index, node in enumerate(surgeon.nodes):
        name = node.name or f"{node.op}_{index}"
        name = name if name not in used else f"{name}_{index}"
        used.add(name)
        if known and node.op not in known and node.op not in DATA_DEPENDENT:
            raise unknown_operator(node.op, name, known)
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
    for given in surgeon.inputs:
        if given.name not in shapes:
            raise ImportFailed(f"network: no operator reads its input '{given.name}'; export it without this input")
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
        ),
        tensors,
    )


def _type_of(given: gs.Variable) -> str:
    if isinstance(given.dtype, int):  # ONNX's number of a type that NumPy lacks
        raise ImportFailed(f"network: input '{given.name}' of element type {given.dtype}; allowed: those of NumPy")
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
