"""Activations that are written as several nodes, as the one operator that ONNX has for them in the file's opset."""

import numpy as np

from tailor_ir.conversion.draft import OnnxDraft
from tailor_ir.conversion.nodes import OnnxNode
from tailor_ir.conversion.rules.reshapes import reduced_axes

HARD_SWISH, LAYER_NORM, MISH, GELU, SWISH = 14, 17, 18, 20, 24
"""The opsets from which on ONNX has these operators."""
SQRT_2 = 2**0.5
TANH_SCALE, TANH_CUBE = (2 / 3.141592653589793) ** 0.5, 0.044715
NEAR = 1e-6  # relative: constants are stored in fp32


def _is(draft: OnnxDraft, name: str, value: float) -> bool:
    """Whether it is a constant with this one number."""
    found = draft.scalar(name)
    return found is not None and abs(found - value) <= NEAR * abs(value)


def _other(node: OnnxNode, name: str) -> str:
    """The operand of a node of two operands that is not this one; '' for a square."""
    return next((each for each in node.inputs if each != name), "")


def _times(draft: OnnxDraft, node: OnnxNode | None, value: float) -> str:
    """What is multiplied by a number (or divided by its inverse); '' for everything else."""
    if node is None or len(node.inputs) != 2 or node.op not in ("Mul", "Div"):
        return ""
    if node.op == "Div":
        return node.inputs[0] if _is(draft, node.inputs[1], 1 / value) else ""
    for name in node.inputs:
        if _is(draft, name, value):
            return _other(node, name)
    return ""


def _plus(draft: OnnxDraft, node: OnnxNode | None, value: float) -> str:
    """What a number is added to; '' for everything else."""
    if node is None or node.op != "Add":
        return ""
    return next((_other(node, name) for name in node.inputs if _is(draft, name, value)), "")


def _inner(draft: OnnxDraft, name: str, *ops: str) -> OnnxNode | None:
    """The producer of a value that nobody else reads."""
    return draft.producer(name, *ops) if draft.read_once(name) else None


def _become(draft: OnnxDraft, node: OnnxNode, op: str, source: str, **attributes: float | str) -> bool:
    node.become(op, attributes)
    draft.read(node, source)
    return True


def hard_sigmoid(draft: OnnxDraft, node: OnnxNode) -> bool:
    """clip(x + 3, 0, 6) / 6. `node`: the division."""
    clip = next((found for name in node.inputs if (found := _inner(draft, name, "Clip"))), None)
    if clip is None or _times(draft, node, 1 / 6) != clip.outputs[0] or not _clips(draft, clip, 0.0, 6.0):
        return False
    source = _plus(draft, _inner(draft, clip.inputs[0], "Add"), 3.0)
    return bool(source) and _become(draft, node, "HardSigmoid", source, alpha=1 / 6, beta=0.5)


def _clips(draft: OnnxDraft, clip: OnnxNode, low: float, high: float) -> bool:
    if draft.opset < 11:
        return clip.number("min", -1e30) == low and clip.number("max", 1e30) == high
    return draft.scalar(clip.input(1)) == low and draft.scalar(clip.input(2)) == high


def product(draft: OnnxDraft, node: OnnxNode) -> bool:
    """x · f(x) as HardSwish, Mish or Swish; x · Φ(x) as Gelu."""
    if len(node.inputs) != 2:
        return False
    return _gated(draft, node) or _hard_swish(draft, node) or _gelu(draft, node)


def _gated(draft: OnnxDraft, node: OnnxNode) -> bool:
    for name in node.inputs:
        source, gate = _other(node, name), _inner(draft, name, "HardSigmoid", "Tanh", "Sigmoid")
        if gate is None or not source:
            continue
        if gate.op == "HardSigmoid" and gate.inputs[0] == source and draft.opset >= HARD_SWISH:
            exact = abs(gate.number("alpha", 0.2) * 6 - 1) < NEAR and gate.number("beta", 0.5) == 0.5
            return exact and _become(draft, node, "HardSwish", source)
        if gate.op == "Sigmoid" and gate.inputs[0] == source and draft.opset >= SWISH:
            return _become(draft, node, "Swish", source)
        soft = _inner(draft, gate.inputs[0], "Softplus") if gate.op == "Tanh" else None
        if soft is not None and soft.inputs[0] == source and draft.opset >= MISH:
            return _become(draft, node, "Mish", source)
    return False


def _hard_swish(draft: OnnxDraft, node: OnnxNode) -> bool:
    """x · clip(x + 3, 0, 6) with a division by 6 behind it: the division becomes the operator."""
    if draft.opset < HARD_SWISH or (divided := draft.only_reader(node.outputs[0], "Div", "Mul")) is None:
        return False
    for name in node.inputs:
        source, clip = _other(node, name), _inner(draft, name, "Clip")
        if clip is None or not source or not _clips(draft, clip, 0.0, 6.0):
            continue
        added = _inner(draft, clip.inputs[0], "Add")
        if _plus(draft, added, 3.0) == source and _times(draft, divided, 1 / 6) == node.outputs[0]:
            return _become(draft, divided, "HardSwish", source)
    return False


def _gelu(draft: OnnxDraft, node: OnnxNode) -> bool:
    found = gelu_operand(draft, node) if draft.opset >= GELU else None
    if found is None:
        return False
    source, approximation = found
    return _become(draft, node, "Gelu", source, **({"approximate": approximation} if approximation != "none" else {}))


def gelu_operand(draft: OnnxDraft, node: OnnxNode) -> tuple[str, str] | None:
    """x, and the kind of approximation, of ½ · x · (1 + erf(x / √2)) or its approximation by tanh; `node`: the last product.

    The factors may be in any order. Runtimes know these nodes as one operator, also where the file's opset has none.
    """
    factors = _factors(draft, node) if node.op == "Mul" else []
    numbers = [name for name in factors if draft.scalar(name) is not None]
    others = [name for name in factors if name not in numbers]
    if len(numbers) != 1 or len(others) != 2 or not _is(draft, numbers[0], 0.5):
        return None
    for source, gate in (others, others[::-1]):
        inner = _plus(draft, _inner(draft, gate, "Add"), 1.0)
        function = _inner(draft, inner, "Erf", "Tanh") if inner else None
        if function is None:
            continue
        argument = _inner(draft, function.inputs[0], "Mul", "Div")
        if function.op == "Erf" and _times(draft, argument, 1 / SQRT_2) == source:
            return source, "none"
        if function.op == "Tanh" and _is_tanh_argument(draft, argument, source):
            return source, "tanh"
    return None


def _factors(draft: OnnxDraft, node: OnnxNode) -> list[str]:
    """The factors of a product of products that nobody else reads."""
    factors = []
    for name in node.inputs:
        inner = _inner(draft, name, "Mul")
        factors += list(inner.inputs) if inner else [name]
    return factors


def _is_tanh_argument(draft: OnnxDraft, node: OnnxNode | None, source: str) -> bool:
    """√(2/π) · (x + 0.044715 · x³)."""
    total = _inner(draft, _times(draft, node, TANH_SCALE), "Add") if node else None
    if total is None or source not in total.inputs:
        return False
    cube = _inner(draft, _times(draft, _inner(draft, _other(total, source), "Mul"), TANH_CUBE), "Pow")
    return cube is not None and cube.inputs[0] == source and _is(draft, cube.inputs[1], 3.0)


def relu_clip(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A Clip behind a Relu is one Clip from 0 on. `node`: the Clip."""
    relu = draft.producer(node.inputs[0], "Relu")
    low = draft.scalar(node.input(1)) if node.input(1) else None
    if relu is None or draft.opset < 11 or low is None or not low >= 0:
        return False
    draft.read(node, relu.inputs[0], *node.inputs[1:])
    return True


def layer_norm(draft: OnnxDraft, node: OnnxNode) -> bool:
    """(x - mean) / √(mean of squares + ε) of the last axis. `node`: the division."""
    if draft.opset < LAYER_NORM or node.op != "Div":
        return False
    centred, root = draft.producer(node.inputs[0], "Sub"), _inner(draft, node.inputs[1], "Sqrt")
    total = _inner(draft, root.inputs[0], "Add") if root else None
    if centred is None or total is None:
        return False
    epsilon = next((found for name in total.inputs if (found := draft.scalar(name)) is not None), None)
    squares = next((each for name in total.inputs if (each := _inner(draft, name, "ReduceMean"))), None)
    mean = draft.producer(centred.inputs[1], "ReduceMean")
    power = _inner(draft, squares.inputs[0], "Pow", "Mul") if squares else None
    if epsilon is None or squares is None or mean is None or power is None or mean.inputs[0] != centred.inputs[0]:
        return False
    square = {*power.inputs} == {centred.outputs[0]} if power.op == "Mul" else _is(draft, power.inputs[1], 2.0)
    shape = draft.shape(centred.inputs[0])
    if not square or power.inputs[0] != centred.outputs[0] or shape is None or not isinstance(shape[-1], int):
        return False
    if any(not _over_last_axis(draft, each, len(shape)) for each in (mean, squares)):
        return False
    return _write_layer_norm(draft, node, centred.inputs[0], shape[-1], epsilon)


def _over_last_axis(draft: OnnxDraft, node: OnnxNode, rank: int) -> bool:
    axes = reduced_axes(draft, node)
    return axes == (rank - 1,) and bool(node.integer("keepdims", 1))


def _write_layer_norm(draft: OnnxDraft, node: OnnxNode, source: str, size: int, epsilon: float) -> bool:
    kind = {1: np.float32, 11: np.float64}.get(draft.element_type(source) or 0)
    if kind is None:
        return False
    scale = draft.constant(np.ones(size, kind), f"{node.outputs[0]}/scale")
    node.become("LayerNormalization", {"axis": -1, "epsilon": epsilon})
    draft.read(node, source, scale)
    return True
