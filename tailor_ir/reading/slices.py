"""Merge slices that together cover an axis. Exporters write such slices to reorder gates of recurrent layers."""

from collections.abc import Sequence
from math import gcd

import numpy as np
import onnx_graphsurgeon as gs

from tailor_ir.reading.folding import cleaned, has_fixed_shape, is_laid_aside

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
        if not is_laid_aside(source, graph):
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

    Slices that are only joined again in another order stay: they are a roll, handled by `tailor_ir/rewriting/rolls.py`.
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
            for reader in list(other.outputs):
                reader.inputs = [first if operand is other else operand for operand in reader.inputs]
            graph.outputs = [first if output is other else output for output in graph.outputs]
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
