"""Multiply-accumulates of operators."""

from collections.abc import Callable, Iterable, Mapping
from math import prod

from tailor_ir.graph import Node

ShapesByValue = Mapping[str, tuple[int, ...]]


def _convolution_macs(node: Node, shapes: ShapesByValue) -> int:
    places = node.inputs[0] if node.op == "ConvTranspose" else node.outputs[0]
    return prod(shapes[places]) * prod(shapes[node.inputs[1]][1:])


def _product_macs(node: Node, shapes: ShapesByValue) -> int:
    return prod(shapes[node.outputs[0]]) * shapes[node.inputs[0]][-1]


def _general_product_macs(node: Node, shapes: ShapesByValue) -> int:
    rows, columns = shapes[node.inputs[0]]
    return prod(shapes[node.outputs[0]]) * (rows if dict(node.attributes).get("transA", 0) else columns)


def _einsum_macs(node: Node, shapes: ShapesByValue) -> int:
    """MACs of an einsum: one for each combination of the letters' values; an ellipsis stands for the result's leading axes."""
    equation = str(dict(node.attributes)["equation"]).replace(" ", "")
    sizes: dict[str, int] = {}
    hidden = 1
    for letters, name in zip(equation.partition("->")[0].split(","), node.inputs, strict=True):
        shape = shapes[name]
        before, dots, after = letters.partition("...")
        if dots:
            hidden = max(hidden, prod(shape[len(before) : len(shape) - len(after)]))
        ends = (*zip(before, shape, strict=False), *zip(reversed(after), reversed(shape), strict=False))
        for letter, size in ends:
            sizes[letter] = max(size, sizes.get(letter, 1))
    return hidden * prod(sizes.values())


def _transform_macs(node: Node, shapes: ShapesByValue) -> int:
    before, after = shapes[node.inputs[0]], shapes[node.outputs[0]]
    return prod(after) * before[int(dict(node.attributes)["axis"])] * before[-1]  # type: ignore[arg-type]


def _recurrent_macs(node: Node, shapes: ShapesByValue) -> int:
    steps, samples, _ = shapes[node.inputs[0]]
    return steps * samples * (prod(shapes[node.inputs[1]]) + prod(shapes[node.inputs[2]]))


MACS: dict[str, Callable[[Node, ShapesByValue], int]] = {
    "Conv": _convolution_macs,
    "ConvTranspose": _convolution_macs,
    "DFT": _transform_macs,
    "DeformConv": _convolution_macs,
    "Einsum": _einsum_macs,
    "GRU": _recurrent_macs,
    "Gemm": _general_product_macs,
    "LSTM": _recurrent_macs,
    "Linear": _product_macs,
    "MatMul": _product_macs,
    "RNN": _recurrent_macs,
}


def macs_of(nodes: Iterable[Node], shapes: ShapesByValue) -> int:
    """Multiply-accumulates of convolutions, matrix products and recurrent layers. shapes: of all values of the nodes."""
    return sum(MACS[node.op](node, shapes) for node in nodes if node.op in MACS)
