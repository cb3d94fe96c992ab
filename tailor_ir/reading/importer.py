"""From an ONNX model to the IR: constants folded, shapes known, weights kept apart. BatchNorm is never folded."""

from collections.abc import Callable, Collection, Mapping
from itertools import count

import numpy as np
import onnx
import onnx.version_converter
import onnx_graphsurgeon as gs
import torch

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Attribute, Graph, Node, Tensors
from tailor_ir.reading.files.layouts import InputLayout, layouts_of, pin_squeezes
from tailor_ir.reading.files.preparing import mend_raised
from tailor_ir.reading.files.quantised import drop_quantisation
from tailor_ir.reading.files.weights import weights_in_constants
from tailor_ir.reading.folding import constants_to_tensors, fold, lay_aside, restore
from tailor_ir.reading.normal_forms import drop_idle, normalise, resolve_identities, separate_outputs, share_rows
from tailor_ir.reading.slices import reorder_blocks, split_slices
from tailor_ir.reading.trace import OPSET

BATCH_NORM_STATISTICS = (3, 4)  # input positions of the running mean and variance
SETTINGS = {  # input positions of floats that are no weights
    "DequantizeLinear": (1,),
    "QuantizeLinear": (1,),
    "Resize": (1, 2),
    "Upsample": (1,),
}
QUANTISED = {"ConvInteger", "DynamicQuantizeLinear", "MatMulInteger"}  # and QLinear…
CONTROL_FLOW = {"If", "Loop", "Scan"}
PASSES: tuple[Callable[[gs.Graph], None], ...] = (
    resolve_identities,
    drop_idle,
    reorder_blocks,
    split_slices,
    share_rows,
)
"""Rewrites of a folded graph, in order."""
DATA_DEPENDENT = {"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"}  # shapes follow from values


def import_onnx(
    model: onnx.ModelProto,
    state: Mapping[str, torch.Tensor] | None = None,
    layout: InputLayout | None = None,
) -> tuple[Graph, Tensors]:
    """The IR graph and its tensors.

    `state` holds the network's own values where the model's are not to be trusted. `layout`: sizes and batch axes of the
    inputs; None: the likeliest. Weights that a file stores as constants are trained like others.
    """
    _refuse_unsupported(model)
    layout = layout or next(layouts_of(model, {}))
    model = pin_squeezes(_at_least(model, OPSET), layout)
    weights = _weight_names(model, state)
    surgeon = _imported(model)
    _fix_inputs(surgeon, layout)
    drop_quantisation(surgeon)
    resolve_identities(surgeon)
    separate_outputs(surgeon)
    surgeon.cleanup(remove_unused_graph_inputs=False).toposort()
    if state is None:
        constants_to_tensors(surgeon)
        weights |= weights_in_constants(surgeon)
        weights |= _unshare_vectors(surgeon, weights)
    values = lay_aside(surgeon, weights)
    surgeon = fold(surgeon)
    if state is None and (computed := weights_in_constants(surgeon)):
        weights |= computed | _unshare_vectors(surgeon, computed)
        values |= lay_aside(surgeon, weights)
    _refuse_control_flow(surgeon)
    for rewrite in PASSES:
        rewrite(surgeon)
    restore(surgeon, values)
    normalise(surgeon)
    if not surgeon.nodes:
        _refuse_unread_inputs(surgeon, frozenset())
    separate_outputs(surgeon)
    return _to_graph(surgeon, weights, state, layout)


def _imported(model: onnx.ModelProto) -> gs.Graph:
    try:
        return gs.import_onnx(model)
    except Exception as error:  # graphsurgeon raises several types
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ImportFailed(f"network: its graph cannot be read ({reason}); export it again") from error


def _refuse_unsupported(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        where = f"operator '{node.op_type}' at '{node.name or node.output[0]}'"
        if node.op_type in QUANTISED or node.op_type.startswith("QLinear"):
            raise ImportFailed(
                f"{where}: the network is quantised; allowed: fp32, and QuantizeLinear beside DequantizeLinear; give the "
                "network before quantisation"
            )
        if node.domain not in ("", "ai.onnx"):
            raise ImportFailed(f"{where}: not supported (domain '{node.domain}'); allowed: standard ONNX operators")


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
        return mend_raised(onnx.version_converter.convert_version(model, opset), version)
    except Exception as error:  # C++ exceptions come as several Python types
        reason = str(error).splitlines()[0]
        raise ImportFailed(
            f"network: opset {version} cannot be raised to {opset} ({reason}); export it with opset {opset} or later"
        ) from error


def _fix_inputs(graph: gs.Graph, layout: InputLayout) -> None:
    """Sizes of all inputs as the layout has them; inputs that it makes constant are no inputs any more."""
    changed = False
    for tensor in list(graph.inputs):
        if tensor.name in layout.constants:
            tensor.to_constant(layout.constants[tensor.name])
            changed = True
        elif tuple(tensor.shape or ()) != (shape := layout.shapes[tensor.name]):
            tensor.shape, changed = list(shape), True
    graph.inputs = [tensor for tensor in graph.inputs if tensor.name not in layout.constants]
    for output in (output for node in graph.nodes for output in node.outputs if changed):
        output.shape = None  # inferred for an open input


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
    return frozenset(
        tensor.name
        for tensor in model.graph.initializer
        if (
            tensor.name in state
            if state is not None
            else tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) > 1
        )
        and tensor.name not in settings
    )


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


def _to_graph(
    surgeon: gs.Graph, weights: frozenset[str], state: Mapping[str, torch.Tensor] | None, layout: InputLayout
) -> tuple[Graph, Tensors]:
    shapes: dict[str, tuple[int, ...]] = {}
    tensors: Tensors = {}
    nodes: list[Node] = []
    used: set[str] = set()
    for index, node in enumerate(surgeon.nodes):
        name = node.name or f"{node.op}_{index}"
        name = name if name not in used else next(n for n in map(f"{name}_{{}}".format, count(index)) if n not in used)
        used.add(name)
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
    _refuse_unread_inputs(surgeon, shapes.keys())
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
            batch_axes=tuple(axes) if any(axes := [layout.batch_axes.get(i.name, 0) for i in surgeon.inputs]) else (),
        ),
        tensors,
    )


def _refuse_unread_inputs(surgeon: gs.Graph, read: Collection[str]) -> None:
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
