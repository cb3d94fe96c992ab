"""Bring ONNX nodes into the forms that the IR's rules expect: remove nodes without effect, rewrite later opsets."""

from functools import cache
from itertools import count
from math import prod

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from tailor_ir.dims import FACTORS, FILTERED, from_begin
from tailor_ir.errors import ImportFailed
from tailor_ir.reading import batches
from tailor_ir.reading.file_forms import has_fixed_shape, place_of, redirect
from tailor_ir.reading.folding import cleaned
from tailor_ir.reading.trace import OPSET

# reductions that take their axes as an attribute up to opset 17
REDUCTIONS = {
    "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceSumSquare",
}  # fmt: skip
RECURRENT = {"LSTM", "GRU", "RNN"}
# operators whose first operand has one row per sample
BY_SAMPLE = {"AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "MaxPool"}
# operators that broadcast an operand of one row to all samples
STRETCHING = batches.STRETCHING | {"Concat"}


def resolve_identities(graph: gs.Graph) -> None:
    """Remove copying nodes, except copies that turn an input, a stored tensor or another output into a separate output."""
    for node in [n for n in graph.nodes if n.op in ("Identity", "Dropout")]:
        if gives_output_alone(graph, node):
            node.op, node.attrs = "Identity", {}
            node.inputs, node.outputs = [node.inputs[0]], [node.outputs[0]]
        else:
            bypass(graph, node)


def gives_output_alone(graph: gs.Graph, node: gs.Node) -> bool:
    """Whether a copy gives an output of the network whose source is no node's result, or is itself an output."""
    source, target = node.inputs[0], node.outputs[0]
    is_output = any(tensor is target for tensor in graph.outputs)
    return is_output and (not source.inputs or any(tensor is source for tensor in graph.outputs))


def bypass(graph: gs.Graph, node: gs.Node) -> None:
    """Let readers of a node's result read its first input instead."""
    source, target = node.inputs[0], node.outputs[0]
    if any(tensor is target for tensor in graph.outputs) and isinstance(
        source, gs.Variable
    ):  # outputs need a type and a shape
        source.dtype = target.dtype if source.dtype is None else source.dtype
        source.shape = target.shape if source.shape is None else source.shape
    redirect(graph, target, source)
    node.inputs.clear()  # the node must no longer count as a reader of its first input
    node.outputs.clear()


def separate_outputs(graph: gs.Graph) -> None:
    """Copy outputs that are constants, inputs of the network or repeated outputs, so that each output is a separate value."""
    taken = {id(tensor) for tensor in graph.inputs}
    names = {*graph.tensors(), *(tensor.name for tensor in graph.inputs)}
    for position, output in enumerate(graph.outputs):
        if isinstance(output, gs.Constant) or id(output) in taken:
            name = next(n for n in (f"{output.name}/output{i}" for i in count(position)) if n not in names)
            names.add(name)
            copy = gs.Variable(name, output.dtype, None if output.shape is None else list(output.shape))
            graph.nodes.append(gs.Node("Identity", name, inputs=[output], outputs=[copy]))
            graph.outputs[position] = output = copy
        taken.add(id(output))


def drop_idle(graph: gs.Graph) -> None:
    """Remove nodes without effect: padding by zero, full ranges, reshapes to the same shape, casts to the same type.

    Empty parts of a Concat or Split are removed, too.
    """
    for node in list(graph.nodes):
        if node.op == "Concat":
            node.inputs = [part for part in node.inputs if not _has_no_elements(part)] or node.inputs[:1]
        if node.op == "Split" and len(whole := [part for part in node.outputs if not _has_no_elements(part)]) == 1:
            readers = (reader for part in node.outputs if _has_no_elements(part) for reader in part.outputs)
            node.outputs = whole if all(reader.op == "Concat" for reader in readers) else node.outputs
        if _is_idle(node) and not gives_output_alone(graph, node):
            bypass(graph, node)
    graph.nodes[:] = [node for node in graph.nodes if node.outputs]
    cleaned(graph)


def _has_no_elements(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and 0 in tensor.shape


def share_rows(graph: gs.Graph, samples: int) -> None:
    """Replace constants that repeat one row per traced sample (such as a filled-in mask) by that single row."""
    if samples == 1:
        return
    for node in list(graph.nodes):
        if node.op in BY_SAMPLE:
            _repeat_row(graph, node, samples)
        if (
            node.op not in STRETCHING
            or (node.op == "Concat" and node.attrs["axis"] == 0)
            or not has_fixed_shape(node.outputs[0])
        ):
            continue
        computed = [i for i in node.inputs if not isinstance(i, gs.Constant) and has_fixed_shape(i)]
        rank = len(node.outputs[0].shape)
        if not any(rank and len(i.shape) == rank and i.shape[0] == samples for i in computed):
            continue
        for position, operand in enumerate(node.inputs):
            if len(operand.shape or ()) == rank and _has_equal_rows(operand, samples):
                node.inputs[position] = gs.Constant(f"{operand.name}/row", operand.values[:1])
    cleaned(graph)


def _has_equal_rows(operand: gs.Tensor, samples: int) -> bool:
    if not isinstance(operand, gs.Constant) or not operand.shape or operand.shape[0] != samples:
        return False
    return bool((operand.values == operand.values[:1]).all())


def _repeat_row(graph: gs.Graph, node: gs.Node, samples: int) -> None:
    """Replace the first operand by one row that an Expand repeats for the samples."""
    operand = node.inputs[0]
    if not _has_equal_rows(operand, samples):
        return
    row = gs.Constant(f"{operand.name}/row", operand.values[:1])
    target = gs.Constant(f"{operand.name}/shape", np.asarray(operand.shape, np.int64))
    repeated = gs.Variable(f"{operand.name}/{node.name}", operand.dtype, operand.shape)
    graph.nodes.append(gs.Node("Expand", repeated.name, inputs=[row, target], outputs=[repeated]))
    node.inputs[0] = repeated


def _is_idle(node: gs.Node) -> bool:
    if not node.inputs or not node.outputs:
        return False
    x, y = node.inputs[0], node.outputs[0]
    if not has_fixed_shape(x) or not has_fixed_shape(y) or list(x.shape) != list(y.shape):
        return False
    match node.op:
        case "Cast":
            return x.dtype is not None and x.dtype == y.dtype
        case "Expand" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten":
            return True
        case "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin":  # others compute even over no axes
            axes = node.inputs[1] if len(node.inputs) > 1 else gs.Variable.empty()
            none = axes.is_empty() or (isinstance(axes, gs.Constant) and not axes.values.size)
            return none and bool(node.attrs.get("noop_with_empty_axes", 0))
        case "Concat" | "Sum" | "Max" | "Min" | "Mean":
            return len(node.inputs) == 1
        case "Split":
            return len(node.outputs) == 1
        case "Pad":
            return isinstance(node.inputs[1], gs.Constant) and not node.inputs[1].values.any()
        case "Slice":
            steps = node.inputs[4] if len(node.inputs) > 4 else None
            return steps is None or (isinstance(steps, gs.Constant) and bool((steps.values > 0).all()))
        case "Transpose":
            return list(node.attrs.get("perm", ())) == list(range(len(x.shape)))
        case _:
            return False


def normalise(graph: gs.Graph, samples: int) -> None:
    """Rewrite forms of later opsets, and equivalent forms, in terms of opset 17 and the IR's own operators.

    samples: traced batch size; 1 if it cannot be distinguished from axes with one element.
    """
    for node in graph.nodes:
        _write_defaults(node)
        _normalise(node, samples)
        _drop_later_defaults(node, graph.opset)
    graph.cleanup(remove_unused_graph_inputs=False)
    _refuse_lost(graph)


def _refuse_lost(graph: gs.Graph) -> None:
    """ImportFailed: an output that normal forms lack is read, such as statistics of a norm or the mask of a dropout."""
    given = {tensor.name for tensor in graph.inputs}
    readers = [(tensor, f"operator '{node.op}' at '{node.name}'") for node in graph.nodes for tensor in node.inputs]
    for tensor, reader in [*readers, *((tensor, "network") for tensor in graph.outputs)]:
        if isinstance(tensor, gs.Variable) and not (tensor.is_empty() or tensor.inputs or tensor.name in given):
            raise ImportFailed(
                f"{reader}: reads '{tensor.name}', a further output of a norm or dropout in training form; allowed: its first "
                "output; export the network in eval mode"
            )


def _write_defaults(node: gs.Node) -> None:
    """Write the default order of a Transpose explicitly, and count listed positions of a Gather from the beginning."""
    if node.op == "Transpose" and "perm" not in node.attrs and node.inputs[0].shape is not None:
        node.attrs["perm"] = list(range(len(node.inputs[0].shape)))[::-1]
    if node.op == "Gather" and isinstance(node.inputs[1], gs.Constant) and has_fixed_shape(node.inputs[0]):
        given, size = node.inputs[1].values, node.inputs[0].shape[node.attrs.get("axis", 0)]
        if given.ndim and (given < 0).any():
            positions = from_begin(given, size)
            node.inputs[1] = gs.Constant(f"{node.outputs[0].name}/positions", positions)


def _normalise(node: gs.Node, samples: int) -> None:
    if node.op == "Tile" and samples > 1 and _repeats_samples(node, samples):
        node.op = "Expand"
        node.inputs[1] = gs.Constant(f"{node.outputs[0].name}/shape", np.asarray(node.outputs[0].shape, np.int64))
    if node.op in REDUCTIONS and len(node.inputs) > 1:
        axes = node.inputs.pop()
        if not axes.is_empty():
            node.attrs["axes"] = [int(a) for a in axes.values]
    node.attrs.pop("noop_with_empty_axes", None)
    node.attrs.pop("num_outputs", None)
    if node.op == "GridSample":  # translate the mode names of opset 20
        mode = str(node.attrs.get("mode", "bilinear"))
        node.attrs["mode"] = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    if node.op == "Pad" and len(node.inputs) > 3:
        _write_all_pads(node)
    if node.op == "Gelu" and node.attrs.get("approximate") == "none":
        del node.attrs["approximate"]
    if node.op == "AveragePool":
        _refuse_dilations(node)
    if node.op == "BatchNormalization" and node.attrs.pop("training_mode", 0):
        node.op = "BatchStandardization"
        node.inputs = list(node.inputs[:3])
        node.outputs = list(node.outputs[:1])
        node.attrs = {"epsilon": node.attrs.get("epsilon", 1e-5)}
    if node.op == "GroupNormalization":
        _normalise_group_norm(node)
    if node.op == "RMSNormalization" and len(node.inputs[1].shape) == 1:
        node.op = "RmsNorm"
        node.attrs = {"axis": -1, "epsilon": node.attrs.get("epsilon", 1e-5)}
    if node.op == "Resize":
        _write_all_sizes(node)
        _normalise_resize(node)
    if node.op == "DFT":
        node.inputs = list(node.inputs[:1])  # the length is known from the result's shape
        node.attrs.setdefault("axis", 1)
    if node.op == "Swish" and node.attrs.pop("alpha", 1.0) == 1.0:
        node.op = "Silu"
    if node.op == "Squeeze" and len(node.inputs) == 1 and "axes" not in node.attrs and has_fixed_shape(node.inputs[0]):
        ones = [axis for axis, size in enumerate(node.inputs[0].shape) if size == 1]
        node.inputs.append(gs.Constant(f"{node.outputs[0].name}/axes", np.asarray(ones, np.int64)))
    if node.op in RECURRENT:
        _drop_default_states(node)
    if node.op == "Gather" and node.attrs.get("axis", 0) == 0 and _is_look_up(*node.inputs):
        node.op = "Embedding"
        node.inputs = [node.inputs[1], node.inputs[0]]
        node.attrs.clear()
    if node.op == "ConvTranspose" and "output_shape" in node.attrs:
        _write_pads_for_shape(node)
    if str(node.attrs.get("auto_pad", "NOTSET")) in ("SAME_UPPER", "SAME_LOWER"):
        _write_pads(node)


def _normalise_group_norm(node: gs.Node) -> None:
    """Repeat scales and shifts of groups (up to opset 20) for the channels of each group."""
    groups, channels = node.attrs["num_groups"], node.inputs[0].shape[1]
    for position in (1, 2):
        given = node.inputs[position]
        if isinstance(given, gs.Constant) and given.values.shape == (groups,) != (channels,):
            name = given.name if len(given.outputs) == 1 else f"{node.outputs[0].name}/{position}"
            node.inputs[position] = gs.Constant(name, given.values.repeat(channels // groups))
    if node.inputs[1].shape[0] == channels:
        node.op = "GroupNorm"
        node.attrs = {"num_groups": groups, "epsilon": node.attrs.get("epsilon", 1e-5)}


def _refuse_dilations(node: gs.Node) -> None:
    dilations = node.attrs.get("dilations", [])
    if set(dilations) - {1}:
        raise ImportFailed(
            f"{place_of(node)}: dilations {dilations}; allowed: 1; write it as a Conv with these dilations, one "
            f"group for each channel, and weights of 1/{prod(node.attrs['kernel_shape'])}"
        )


def _normalise_resize(node: gs.Node) -> None:
    """Refuse sizes whose ratios were rounded; forms that opset 17 lacks become the IR's own operator."""
    policy = node.attrs.pop("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        sizes = zip(node.inputs[0].shape, node.outputs[0].shape, strict=True)
        ratios = sorted({new / old for old, new in sizes if old != new})
        raise ImportFailed(
            f"{place_of(node)}: policy '{policy}' with ratios {', '.join(f'{ratio:.3g}' for ratio in ratios)}; allowed: one "
            "ratio, or sizes alone"
        )
    symmetric = node.attrs.get("coordinate_transformation_mode") == "half_pixel_symmetric"
    if node.attrs.get("antialias", 0) or symmetric:
        node.op = FILTERED
        given = node.inputs[2] if len(node.inputs) > 2 else gs.Variable.empty()
        factors = given.values.tolist() if isinstance(given, gs.Constant) else []
        node.attrs[FACTORS] = [float(factor) for factor in factors]
        node.inputs = [node.inputs[0]]
    else:
        node.attrs.pop("antialias", None)


def _repeats_samples(node: gs.Node, samples: int) -> bool:
    """Whether a Tile repeats one row to the whole batch."""
    x, repeats = node.inputs
    if not isinstance(repeats, gs.Constant) or not has_fixed_shape(x):
        return False
    repeated = [(int(n), size) for n, size in zip(repeats.values, x.shape, strict=True) if n != 1]
    return repeated == [(samples, 1)]


def _is_look_up(table: gs.Tensor, positions: gs.Tensor) -> bool:
    """Whether rows of a weight are read at positions that are computed or given as an input of the network."""
    return isinstance(table, gs.Constant) and not isinstance(positions, gs.Constant) and len(table.shape) == 2


def drop_default_states(graph: gs.Graph) -> None:
    """Remove zero states and full lengths of recurrent layers: they are the defaults for every batch size."""
    for node in graph.nodes:
        if node.op in RECURRENT:
            _drop_default_states(node)


def _drop_default_states(node: gs.Node) -> None:
    steps = node.inputs[0].shape[0] if node.inputs[0].shape is not None else None
    for position, default in ((4, steps), (5, 0), (6, 0)):
        given = node.inputs[position] if len(node.inputs) > position else gs.Variable.empty()
        if isinstance(given, gs.Constant) and (given.values == default).all():
            node.inputs[position] = gs.Variable.empty()


def _write_all_pads(node: gs.Node) -> None:
    """Extend padding that names its axes (from opset 18 on) to all axes; computed padding is unchanged."""
    pads, axes = node.inputs[1], node.inputs[3]
    if axes.is_empty():
        node.inputs = list(node.inputs[:3])
    elif isinstance(pads, gs.Constant) and isinstance(axes, gs.Constant):
        rank, named = len(node.inputs[0].shape), axes.values.reshape(-1).tolist()
        all_pads = np.zeros((2, rank), np.int64)
        all_pads[:, [axis % rank for axis in named]] = pads.values.reshape(2, len(named))
        written = gs.Constant(f"{node.outputs[0].name}/pads", all_pads.reshape(-1))
        node.inputs = [node.inputs[0], written, *node.inputs[2:3]]


def _write_all_sizes(node: gs.Node) -> None:
    """Extend factors or sizes that name their axes (from opset 18 on) to all axes; drop the policy if ratios are equal."""
    before, after = list(node.inputs[0].shape), list(node.outputs[0].shape)
    if "axes" in node.attrs:
        axes = [axis % len(before) for axis in node.attrs.pop("axes")]
        for position, others in ((2, [1.0] * len(before)), (3, before)):
            given = node.inputs[position] if len(node.inputs) > position else gs.Variable.empty()
            if isinstance(given, gs.Constant) and given.values.size:
                values = np.asarray(others, given.values.dtype)
                values[axes] = given.values
                node.inputs[position] = gs.Constant(f"{node.outputs[0].name}/sizes{position}", values)
    if node.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        ratios = {new / old for old, new in zip(before, after, strict=True) if new != old}
        if len(ratios) <= 1:  # equal ratios: no size was rounded
            del node.attrs["keep_aspect_ratio_policy"]
            sizes = gs.Constant(f"{node.outputs[0].name}/sizes", np.asarray(after, np.int64))
            node.inputs = [node.inputs[0], gs.Variable.empty(), gs.Variable.empty(), sizes]


def _drop_later_defaults(node: gs.Node, opset: int) -> None:
    """Remove attributes that a later opset added to the operator, if they have their default value."""
    for name in _later_attributes(node.op, opset) & node.attrs.keys():
        stated = onnx.defs.get_schema(node.op, opset).attributes[name].default_value
        default = helper.get_attribute_value(stated) if stated.type else None
        default = default.decode() if isinstance(default, bytes) else default
        if node.attrs[name] == default or (name == "dilations" and set(node.attrs[name]) == {1}) or name == "saturate":
            del node.attrs[name]


@cache
def _later_attributes(op: str, opset: int) -> frozenset[str]:
    """Attributes that an operator has in an opset but not in the IR's opset."""
    try:
        here, later = (onnx.defs.get_schema(op, version).attributes for version in (OPSET, opset))
    except onnx.defs.SchemaError:  # an operator of the IR, or one that exists only in later opsets
        return frozenset()
    return frozenset(later.keys() - here.keys())


def _write_pads(node: gs.Node) -> None:
    """Write `auto_pad` SAME, which keeps ceil(size / stride) positions, as numbers for the traced resolution."""
    upper = node.attrs.pop("auto_pad") == "SAME_UPPER"
    spatial = node.inputs[0].shape[2:]
    kernel = node.attrs.get("kernel_shape", None if len(node.inputs) < 2 else node.inputs[1].shape[2:])
    strides = node.attrs.get("strides", [1] * len(spatial))
    dilations = node.attrs.get("dilations", [1] * len(spatial))
    pairs = []
    for size, k, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        if node.op == "ConvTranspose":
            total = max((k - 1) * dilation + 1 - stride, 0)
        else:
            total = max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        pairs.append((total // 2, total - total // 2) if upper else (total - total // 2, total // 2))
    node.attrs["pads"] = [begin for begin, _ in pairs] + [end for _, end in pairs]


def _write_pads_for_shape(node: gs.Node) -> None:
    """Write the padding with which a transposed convolution gives its `output_shape`. Source: ONNX, ConvTranspose-11."""
    wanted = node.attrs.pop("output_shape")[-len(node.inputs[0].shape[2:]) :]
    upper = str(node.attrs.pop("auto_pad", "NOTSET")) == "SAME_UPPER"
    spatial, kernel = node.inputs[0].shape[2:], node.inputs[1].shape[2:]
    strides, dilations = (node.attrs.get(name, [1] * len(spatial)) for name in ("strides", "dilations"))
    extra = list(node.attrs.get("output_padding", [0] * len(spatial)))
    pairs = []
    sizes = zip(spatial, kernel, strides, dilations, wanted, strict=True)
    for axis, (size, k, stride, dilation, target) in enumerate(sizes):
        total = stride * (size - 1) + extra[axis] + dilation * (k - 1) + 1 - target
        if total < 0:
            extra[axis], total = extra[axis] - total, 0
        smaller = total // 2
        pairs.append((smaller, total - smaller) if upper else (total - smaller, smaller))
    node.attrs["pads"] = [begin for begin, _ in pairs] + [end for _, end in pairs]
    node.attrs["output_padding"] = extra
