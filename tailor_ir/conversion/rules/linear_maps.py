"""Rules for operators that are linear in stored weights: convolutions, and products of matrices with biases.

Weights scale and shift the results and the operands of such operators. Gemm has room for an addition behind a product
of matrices, and for transposes before it.

Legend: M results, C operands of a convolution, G groups; K operands, N results of a matrix product.
"""

from dataclasses import dataclass

import numpy as np

from tailor_ir.conversion.draft import OnnxDraft
from tailor_ir.conversion.nodes import OnnxNode

LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
NORMS = ("BatchNormalization", "InstanceNormalization", "LayerNormalization")
GEMM_WITHOUT_BIAS = 11
"""The opset from which on a Gemm may have no bias."""
SMALL = 1024
"""Elements of a weight of which a second, scaled copy may be stored for one of its readers."""
FLOATS = (np.float32, np.float64)


@dataclass(frozen=True, slots=True)
class ChannelMap:
    """`scale` × value + `shift`, both float64 with one number for each channel."""

    scale: np.ndarray
    shift: np.ndarray

    def then(self, other: "ChannelMap") -> "ChannelMap":
        """This map and, behind it, the other one."""
        return ChannelMap(self.scale * other.scale, self.shift * other.scale + other.shift)

    @property
    def shifts(self) -> bool:
        """Whether it adds anything."""
        return bool(self.shift.any())


@dataclass(frozen=True, slots=True)
class StoredMap:
    """A node with its stored weights. `axis`: the axis of the channels in its result, from the end if negative."""

    node: OnnxNode
    weight: np.ndarray
    bias: np.ndarray | None
    axis: int
    channels: int


def stored_map(draft: OnnxDraft, node: OnnxNode | None) -> StoredMap | None:
    """A linear operator or norm with stored weights that it shares with none, or None."""
    if node is None or not node.standard or node.op not in (*LINEAR, *NORMS):
        return None
    weight = draft.array(node.input(1))
    if weight is None or weight.dtype.type not in FLOATS:
        return None
    if weight.size > SMALL and len(draft.readers(node.inputs[1])) > 1:
        return None
    axis, channels = _channels(draft, node, weight)
    if not channels:
        return None
    bias = None if node.op == "MatMul" or not node.input(2) else draft.array(node.inputs[2])
    if node.op != "MatMul" and node.input(2):
        bias = None if bias is None else _row(bias, channels)
        if bias is None:
            return None
    return StoredMap(node, weight, bias, axis, channels)


def _row(bias: np.ndarray, channels: int) -> np.ndarray | None:
    """A bias with one number for each channel; None for one that is not the same for all rows."""
    flat = bias.ndim < 2 or bias.shape[:-1] == (1,) * (bias.ndim - 1)
    return (
        np.broadcast_to(bias.reshape(-1), channels).astype(np.float64) if flat and bias.size in (1, channels) else None
    )


def _channels(draft: OnnxDraft, node: OnnxNode, weight: np.ndarray) -> tuple[int, int]:
    """Axis and number of the channels of the result; no channels where they are not along one axis."""
    match node.op:
        case "Conv":
            return 1, weight.shape[0]
        case "ConvTranspose":
            return 1, weight.shape[1] * node.integer("group", 1)
        case "Gemm":
            return -1, weight.shape[0 if node.integer("transB", 0) else 1]
        case "MatMul":
            rank = draft.rank(node.inputs[0])
            return -1, weight.shape[1] if weight.ndim == 2 and rank is not None and rank > 1 else 0
        case "LayerNormalization":
            last = node.integer("axis", -1) in (-1, (draft.rank(node.inputs[0]) or 0) - 1)
            return -1, weight.size if last and weight.ndim == 1 else 0
        case _:
            return 1, weight.size if not node.integer("training_mode", 0) and weight.ndim == 1 else 0


def scale_result(draft: OnnxDraft, stored: StoredMap, after: ChannelMap) -> bool:
    """Put a map of the result into the weights; False where there is no room for the shift."""
    node, weight = stored.node, stored.weight.astype(np.float64)
    if after.shifts and not gives_shift(draft, node):
        return False
    if after.shifts and node.op == "MatMul":
        node.become("Gemm", {})
    match node.op:
        case "Conv":
            scaled = weight * after.scale.reshape(-1, *(1,) * (weight.ndim - 1))
        case "ConvTranspose":
            groups = node.integer("group", 1)
            parts = weight.reshape(groups, -1, *weight.shape[1:])
            scaled = parts * after.scale.reshape(groups, 1, -1, *(1,) * (weight.ndim - 2))
        case "Gemm" if node.integer("transB", 0):
            scaled = weight * after.scale[:, None]
        case _:
            scaled = weight * after.scale
    store_weights(draft, stored, scaled.reshape(weight.shape), _bias(stored) * after.scale + after.shift)
    return True


def scale_operand(draft: OnnxDraft, stored: StoredMap, before: ChannelMap) -> bool:
    """Put a map of the operand into the weights; False where zeros are put around the operand or no bias can be had."""
    node, weight = stored.node, stored.weight.astype(np.float64)
    if node.op not in LINEAR or (before.shifts and not takes_shift(node)):
        return False
    match node.op:
        case "Conv":
            groups = node.integer("group", 1)
            parts = weight.reshape(groups, -1, *weight.shape[1:])
            by_channel = (groups, 1, -1, *(1,) * (weight.ndim - 2))
            axes = tuple(range(2, parts.ndim))
            moved = (parts * before.shift.reshape(by_channel)).sum(axes).reshape(-1)
            scaled = parts * before.scale.reshape(by_channel)
        case "ConvTranspose":
            scaled, moved = weight * before.scale.reshape(-1, *(1,) * (weight.ndim - 1)), np.zeros(stored.channels)
        case _:
            transposed = node.op == "Gemm" and bool(node.integer("transB", 0))
            rows = weight.T if transposed else weight
            scaled, moved = rows * before.scale[:, None], before.shift @ rows * node.number("alpha", 1.0)
            scaled = scaled.T if transposed else scaled
    store_weights(draft, stored, scaled.reshape(weight.shape), _bias(stored) + moved)
    return True


def operand_channels(stored: StoredMap) -> tuple[int, int]:
    """Axis and number of the channels of the operand of a linear operator."""
    node, weight = stored.node, stored.weight
    match node.op:
        case "Conv":
            return 1, weight.shape[1] * node.integer("group", 1)
        case "ConvTranspose":
            return 1, weight.shape[0]
        case "Gemm":
            return -1, 0 if node.integer("transA", 0) else weight.shape[1 if node.integer("transB", 0) else 0]
        case _:
            return -1, weight.shape[0]


def gives_shift(draft: OnnxDraft, node: OnnxNode) -> bool:
    """Whether the operator has a bias, or can have one: the product of two matrices is a Gemm."""
    return node.op != "MatMul" or (draft.rank(node.inputs[0]) == 2 and draft.opset >= GEMM_WITHOUT_BIAS)


def takes_shift(node: OnnxNode) -> bool:
    """Whether every result is made of the same number of shifted operands."""
    if node.op == "Gemm":
        return True
    return (
        node.op == "Conv"
        and node.text("auto_pad", "NOTSET") in ("NOTSET", "VALID")
        and not any(node.integers("pads") or ())
    )


def _bias(stored: StoredMap) -> np.ndarray:
    """The bias in the place in which it is added; zeros without one."""
    if stored.bias is None:
        return np.zeros(stored.channels)
    return stored.bias * stored.node.number("beta", 1.0) if stored.node.op == "Gemm" else stored.bias


def store_weights(draft: OnnxDraft, stored: StoredMap, weight: np.ndarray, bias: np.ndarray) -> None:
    """Give a node other weights; a bias of zeros where it had none is left out."""
    node, kind = stored.node, stored.weight.dtype
    names = [node.inputs[0], draft.constant(weight.astype(kind), node.inputs[1])]
    if node.op != "MatMul" and (stored.bias is not None or bias.any()):
        names.append(draft.constant(bias.astype(kind), node.input(2) or f"{node.inputs[1]}/bias"))
    if node.op == "Gemm":
        node.drop("beta")
    draft.read(node, *names, *node.inputs[3:])


FLOAT_TYPES = (1, 10, 11)  # fp32, fp16, fp64 by ONNX's numbers


def add_bias(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A product of two matrices and the sum behind it are one Gemm. `node`: MatMul, or Gemm without a bias."""
    result = node.outputs[0]
    after = draft.only_reader(result, "Add")
    if after is None or node.input(2) or not _two_matrices(draft, node):
        return False
    names = [name for name in after.inputs if name != result]
    if len(names) != 1 or not _spreads(draft, names[0], result):
        return False
    if not draft.bypass(after, result):
        return False
    if node.op == "MatMul":
        node.become("Gemm", {})
    node.drop("beta")
    draft.read(node, *node.inputs[:2], names[0])
    return True


def _two_matrices(draft: OnnxDraft, node: OnnxNode) -> bool:
    ranks = {draft.rank(name) for name in node.inputs[:2]}
    return ranks == {2} and draft.element_type(node.inputs[0]) in FLOAT_TYPES


def _spreads(draft: OnnxDraft, name: str, result: str) -> bool:
    """Whether a value is spread over a matrix without making it larger."""
    shape, matrix = draft.shape(name), draft.shape(result)
    if shape is None or matrix is None or len(shape) > 2:
        return False
    return all(
        size == 1 or (size is not None and size == given)
        for size, given in zip(shape[::-1], matrix[::-1], strict=False)
    )


def absorb_transposes(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A product of matrices reads its operands transposed; their transposes are not needed any more."""
    if not _two_matrices(draft, node) or draft.opset < GEMM_WITHOUT_BIAS:
        return False
    for position, flag in enumerate(("transA", "transB")):
        name = node.inputs[position]
        transpose = draft.producer(name, "Transpose")
        if transpose is None or not draft.read_once(name) or node.inputs.count(name) > 1:
            continue
        if node.op == "MatMul":
            node.become("Gemm", {})
        node.set({flag: 1 - node.integer(flag, 0)})
        inputs = list(node.inputs)
        inputs[position] = transpose.inputs[0]
        draft.read(node, *inputs)
        return True
    return False
