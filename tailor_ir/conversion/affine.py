"""Scales and shifts of single channels, such as BatchNorms and sums with constants, go into the convolutions beside them.

onnxslim folds BatchNorms and some sums and products; onnxruntime runs files faster that have none of them left.

Legend: M results, C operands of a convolution, G groups.
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

SUMS, PRODUCTS = ("Add", "Sub"), ("Mul", "Div")
AFFINE = (*SUMS, *PRODUCTS, "BatchNormalization")
STANDARD_DOMAINS = (None, "", "ai.onnx")
FLOATS = (np.float32, np.float64)
SMALL = 1024
"""Elements of a weight of which a second, scaled copy may be stored for one of its readers."""


def _array(tensor: gs.Tensor) -> np.ndarray | None:
    """The value of a stored tensor of floats, None for other values."""
    return tensor.values if isinstance(tensor, gs.Constant) and tensor.dtype in FLOATS else None


def _operand(node: gs.Node) -> tuple[gs.Variable, np.ndarray | None] | None:
    """The computed operand of a node that may scale or shift channels, and its constant (None for a BatchNorm)."""
    if node.domain not in STANDARD_DOMAINS or node.op not in AFFINE or len(node.inputs) < 2:
        return None
    if node.op == "BatchNormalization":
        plain = not node.attrs.get("training_mode", 0) and node.attrs.get("spatial", 1)
        plain = plain and all(not output.outputs for output in node.outputs[1:])
        return (node.inputs[0], None) if plain and isinstance(node.inputs[0], gs.Variable) else None
    for value, constant in (node.inputs, node.inputs[::-1]):
        array = _array(constant)
        if isinstance(value, gs.Variable) and array is not None:
            return None if node.op == "Div" and node.inputs[0] is constant else (value, array)
    return None


@dataclass(frozen=True, slots=True)
class _Map:
    """`scale` × value + `shift`, both float64 with one number for each channel."""

    scale: np.ndarray
    shift: np.ndarray


def _channel_map(node: gs.Node, constant: np.ndarray | None, axis: int, channels: int, rank: int) -> _Map | None:
    """The scale and shift of a node on the channels along this axis of its operand; None: the node does more than this."""
    if constant is None:
        arrays = [_array(tensor) for tensor in node.inputs[1:5]]
        if axis != 1 or any(array is None or array.size != channels for array in arrays):
            return None
        scale, bias, mean, variance = (np.asarray(array, np.float64) for array in arrays)
        factor = scale / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
        return _Map(factor, bias - mean * factor)
    shape = (1,) * (rank - constant.ndim) + constant.shape
    others = (*shape[:axis], *shape[axis + 1 :])
    if len(shape) != rank or any(size != 1 for size in others) or shape[axis] not in (1, channels):
        return None
    row = np.broadcast_to(constant.reshape(-1), channels).astype(np.float64)
    if node.op in SUMS:
        negative = node.op == "Sub" and isinstance(node.inputs[0], gs.Constant)
        return _Map(np.full(channels, -1.0 if negative else 1.0), -row if node.op == "Sub" and not negative else row)
    if node.op == "Div" and not row.all():
        return None
    return _Map(1 / row if node.op == "Div" else row, np.zeros(channels))


@dataclass(frozen=True, slots=True)
class _Conv:
    """A convolution with stored weights [M, C/G, …] and a stored bias [M], zeros without one."""

    node: gs.Node
    weight: np.ndarray
    bias: np.ndarray

    @property
    def groups(self) -> int:
        return int(self.node.attrs.get("group", 1))

    def store(self, weight: np.ndarray, bias: np.ndarray) -> None:
        """Give it other weights; a bias of zeros where it had none is left out."""
        name, kind = self.node.outputs[0].name, self.weight.dtype
        inputs = [self.node.inputs[0], gs.Constant(f"{name}/weight", weight.reshape(self.weight.shape).astype(kind))]
        if len(self.node.inputs) > 2 or bias.any():
            inputs.append(gs.Constant(f"{name}/bias", bias.astype(kind)))
        self.node.inputs = inputs


def _conv(node: gs.Node | None) -> _Conv | None:
    """A convolution with weights that it shares with none, or None."""
    if node is None or node.op != "Conv" or node.domain not in STANDARD_DOMAINS:
        return None
    weight = _array(node.inputs[1])
    if weight is None or (weight.size > SMALL and len(node.inputs[1].outputs) > 1):
        return None
    given = node.inputs[2] if len(node.inputs) > 2 else None
    bias = np.zeros(weight.shape[0]) if given is None else _array(given)
    return None if bias is None else _Conv(node, weight, bias.astype(np.float64))


def _producer(graph: gs.Graph, tensor: gs.Tensor) -> gs.Node | None:
    """The node of a value that one other node alone needs, else None."""
    alone = tensor.inputs and len(tensor.outputs) == 1 and not any(tensor is output for output in graph.outputs)
    return tensor.inputs[0] if alone else None


def _half_of_gelu(graph: gs.Graph, node: gs.Node) -> bool:
    """Whether a product is the last one of ½ · x · (1 + erf(…)) or of its approximation by tanh.

    Runtimes run these nodes as one operator, and slower once one of them is missing.
    """
    found = _operand(node)
    inner = _producer(graph, found[0]) if node.op == "Mul" and found else None
    gates = [_producer(graph, tensor) for tensor in inner.inputs] if inner is not None and inner.op == "Mul" else []
    return any(
        function.op in ("Erf", "Tanh")
        for gate in gates
        if gate is not None and gate.op == "Add"
        for tensor in gate.inputs
        for function in tensor.inputs
    )


def fold_after(graph: gs.Graph) -> int:
    """Put nodes into the weights of the convolution before them, also through transposes; how many."""
    return sum([_fold_after(graph, node) for node in graph.nodes if node.op in AFFINE])


def _fold_after(graph: gs.Graph, node: gs.Node) -> bool:
    found = _operand(node)
    if found is None:
        return False
    operand, constant = found
    producer, axes = _producer(graph, operand), []
    last = producer
    while producer is not None and producer.op == "Transpose" and "perm" in producer.attrs:
        axes.append(producer.attrs["perm"])
        producer = _producer(graph, producer.inputs[0])
    conv = _conv(producer)
    if last is None or conv is None:
        return False
    axis = 1
    for perm in reversed(axes):
        axis = list(perm).index(axis)
    weight = conv.weight.astype(np.float64)
    after = _channel_map(node, constant, axis, len(weight), weight.ndim)
    if after is None:
        return False
    conv.store(weight * after.scale.reshape(-1, *(1,) * (weight.ndim - 1)), conv.bias * after.scale + after.shift)
    result = node.outputs[0]
    node.outputs, node.inputs = [], []
    last.outputs = [result]
    return True


def fold_before(graph: gs.Graph, *, halves: bool) -> int:
    """Put nodes into the weights of all convolutions that read them; how many. halves: the last products of Gelus, too."""
    nodes = [node for node in graph.nodes if node.op in AFFINE and (halves or not _half_of_gelu(graph, node))]
    return sum([_fold_before(graph, node) for node in nodes])


def _fold_before(graph: gs.Graph, node: gs.Node) -> bool:
    found, result = _operand(node), node.outputs[0]
    if found is None or not result.outputs or any(result is output for output in graph.outputs):
        return False
    operand, constant = found
    folds = []
    for reader in result.outputs:
        conv = _conv(reader) if reader.inputs[0] is result and reader.inputs.count(result) == 1 else None
        if conv is None:
            return False
        before = _channel_map(node, constant, 1, conv.weight.shape[1] * conv.groups, conv.weight.ndim)
        pads = any(reader.attrs.get("pads", ())) or reader.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        if before is None or (before.shift.any() and pads):  # zeros around the operand are not shifted
            return False
        folds.append((conv, before))
    for conv, before in folds:
        parts = conv.weight.astype(np.float64).reshape(conv.groups, -1, *conv.weight.shape[1:])
        by_channel = (conv.groups, 1, -1, *(1,) * (conv.weight.ndim - 2))
        moved = (parts * before.shift.reshape(by_channel)).sum(tuple(range(2, parts.ndim))).reshape(-1)
        conv.store(parts * before.scale.reshape(by_channel), conv.bias + moved)
        conv.node.inputs[0] = operand
    node.outputs, node.inputs = [], []
    return True


def merge_pairs(graph: gs.Graph) -> int:
    """Two sums, or two products, with constants in a row become one; how many pairs."""
    return sum([_merge(graph, node) for node in graph.nodes if node.op in (*SUMS, *PRODUCTS)])


def _merge(graph: gs.Graph, node: gs.Node) -> bool:
    found = _operand(node)
    first = _producer(graph, found[0]) if found else None
    inner = _operand(first) if first is not None else None
    kinds = SUMS if node.op in SUMS else PRODUCTS
    if found is None or first is None or inner is None or first.op not in kinds or _half_of_gelu(graph, first):
        return False
    if any(each.op == "Sub" and isinstance(each.inputs[0], gs.Constant) for each in (first, node)):
        return False
    one, other = inner[1], found[1]
    if one is None or other is None or one.dtype != other.dtype:
        return False
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        numbers = [
            -array if each.op == "Sub" else 1 / array if each.op == "Div" else array
            for each, array in ((first, one.astype(np.float64)), (node, other.astype(np.float64)))
        ]
        merged = np.asarray(sum(numbers) if kinds is SUMS else numbers[0] * numbers[1], one.dtype)
    if merged.size > max(one.size, other.size) or not np.isfinite(merged).all():
        return False
    node.op, source = kinds[0], inner[0]
    node.inputs = [source, gs.Constant(f"{node.outputs[0].name}/constant", merged)]
    first.outputs, first.inputs = [], []
    return True
