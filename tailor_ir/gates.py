"""Weights of recurrent layers, whose gates exporters put into another order by slicing them out and joining them again."""

from math import gcd

import numpy as np
import onnx_graphsurgeon as gs

from tailor_ir.folding import has_fixed_shape

MOST_BLOCKS = 8


def reorder_blocks(graph: gs.Graph, weights: frozenset[str]) -> None:
    """Slices of a weight's first axis that are joined in another order become equal blocks in another order.

    Blocks are an axis of their own then, so that what is inside each can be cut alike.
    """
    for node in [n for n in graph.nodes if n.op == "Concat" and n.attrs["axis"] == 0]:
        pieces = [_piece(operand) for operand in node.inputs]
        sources = {piece[0].name for piece in pieces if piece is not None}
        if None in pieces or len(sources) != 1 or not sources <= weights or not has_fixed_shape(node.outputs[0]):
            continue
        source = pieces[0][0]  # type: ignore[index]
        ranges = [piece[1:] for piece in pieces if piece is not None]
        size = source.shape[0]
        length = gcd(size, *(bound for piece in ranges for bound in piece))
        order = [start // length + i for start, stop in ranges for i in range((stop - start) // length)]
        if sorted(order) == list(range(size // length)) and 1 < len(order) <= MOST_BLOCKS:
            _write(graph, node, source, order)
    graph.cleanup(remove_unused_graph_inputs=False).toposort()


def _piece(tensor: gs.Tensor) -> tuple[gs.Tensor, int, int] | None:
    """A slice of another tensor's first axis: the tensor, begin and end."""
    node = tensor.inputs[0] if len(tensor.inputs) == 1 else None
    if node is None or node.op != "Slice" or not all(isinstance(i, gs.Constant) for i in node.inputs[1:]):
        return None
    source = node.inputs[0]
    starts, stops, *others = (i.values.tolist() for i in node.inputs[1:])
    if len(starts) != 1 or others not in ([], [[0]], [[0], [1]]) or not has_fixed_shape(source):
        return None
    start, stop, _ = slice(starts[0], stops[0]).indices(source.shape[0])
    return source, start, stop


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
