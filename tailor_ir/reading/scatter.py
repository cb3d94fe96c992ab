"""Writing a block into a tensor, which exporters write as ScatterND with the position of every single element."""

import numpy as np
import onnx_graphsurgeon as gs

Ranges = tuple[tuple[int, int], ...]  # begin and end along each axis


def write_block(graph: gs.Graph, node: gs.Node) -> bool:
    """A block at constant positions becomes a concatenation with what is around it; a block of everything, its value.

    False where the positions are no block, or nothing is known of them.
    """
    data, positions, value = node.inputs
    known = isinstance(positions, gs.Constant) and data.shape is not None and value.shape is not None
    block = _block(positions.values, tuple(data.shape), tuple(value.shape)) if known else None
    if block is None or node.attrs.get("reduction", "none") != "none":
        return False
    result = node.outputs[0]
    node.inputs.clear()
    node.outputs.clear()
    for axis in range(len(data.shape)):  # grow the block to the whole tensor, one axis after the other
        if block[axis] == (0, data.shape[axis]):
            continue
        start, stop = block[axis]
        pieces = [_slice(graph, data, _with(block, axis, (0, start)), f"{node.name}/{axis}/before")] if start else []
        pieces.append(value)
        if stop < data.shape[axis]:
            pieces.append(
                _slice(graph, data, _with(block, axis, (stop, data.shape[axis])), f"{node.name}/{axis}/after")
            )
        block = _with(block, axis, (0, data.shape[axis]))
        value = _add(graph, "Concat", pieces, f"{node.name}/{axis}", block, data.dtype, axis=axis)
    for reader in list(result.outputs):
        reader.inputs = [value if operand is result else operand for operand in reader.inputs]
    graph.outputs = [value if output is result else output for output in graph.outputs]
    return True


def _add(
    graph: gs.Graph, op: str, inputs: list[gs.Tensor], name: str, ranges: Ranges, dtype: object, **attributes: int
) -> gs.Variable:
    output = gs.Variable(name, dtype, [stop - start for start, stop in ranges])
    graph.nodes.append(gs.Node(op, name, attrs=attributes, inputs=inputs, outputs=[output]))
    return output


def _slice(graph: gs.Graph, data: gs.Tensor, ranges: Ranges, name: str) -> gs.Variable:
    """A part of the old data."""
    cut = [axis for axis, piece in enumerate(ranges) if piece != (0, data.shape[axis])]
    numbers = {"starts": [ranges[a][0] for a in cut], "stops": [ranges[a][1] for a in cut], "axes": cut}
    operands = [gs.Constant(f"{name}/{label}", np.asarray(values, np.int64)) for label, values in numbers.items()]
    return _add(graph, "Slice", [data, *operands], name, ranges, data.dtype)


def _with(ranges: Ranges, axis: int, piece: tuple[int, int]) -> Ranges:
    return (*ranges[:axis], piece, *ranges[axis + 1 :])


def _block(index: np.ndarray, shape: tuple[int, ...], written: tuple[int, ...]) -> Ranges | None:
    """The range along each axis that is written, in order; None when the positions are no such block."""
    if index.shape != (*written, len(shape)) or len(written) != len(shape):
        return None
    ranges = []
    for axis, size in enumerate(written):
        first = int(index[(*(0,) * len(shape), axis)])
        expected = np.arange(first, first + size).reshape(-1, *(1,) * (len(shape) - 1 - axis))
        if not (index[..., axis] == expected).all():
            return None
        ranges.append((first, first + size))
    return tuple(ranges)
