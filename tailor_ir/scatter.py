"""Writing a block into a tensor, which exporters write as ScatterND with the position of every single element."""

from dataclasses import replace

import torch

from tailor_ir.graph import Graph, Node, Tensors

Ranges = tuple[tuple[int, int], ...]  # begin and end along each axis


def fuse_scatter(graph: Graph, tensors: Tensors) -> Graph:
    """A block at constant positions becomes a concatenation with what is around it; a block of everything, its value."""
    if all(node.op != "ScatterND" for node in graph.nodes):
        return graph
    work = _Work(graph, tensors)
    for node in graph.nodes:
        work.add(node)
    graph = replace(graph, shapes=work.shapes, constants=(*graph.constants, *work.constants))
    return graph.with_nodes(tuple(work.nodes))


class _Work:
    """The nodes of the new graph, and what they need beside the old one's tensors."""

    def __init__(self, graph: Graph, tensors: Tensors) -> None:
        self.graph, self.tensors = graph, tensors
        self.shapes = dict(graph.shapes)
        self.nodes: list[Node] = []
        self.constants: list[str] = []
        self.alias: dict[str, str] = {}

    def add(self, node: Node) -> None:
        node = replace(node, inputs=tuple(self.alias.get(name, name) for name in node.inputs))
        block = _block(node, self.graph, self.tensors) if node.op == "ScatterND" else None
        if block is None:
            self.nodes.append(node)
            return
        full = tuple((0, size) for size in self.graph.shapes[node.inputs[0]])
        if block != full:
            self._surround(node, block, full)
        elif node.outputs[0] in self.graph.outputs:
            self.nodes.append(Node(name=node.name, op="Identity", inputs=node.inputs[2:], outputs=node.outputs))
        else:
            self.alias[node.outputs[0]] = node.inputs[2]

    def _surround(self, node: Node, block: Ranges, full: Ranges) -> None:
        """Grow the written block to the whole tensor, one axis after the other."""
        value, current = node.inputs[2], block
        partial = [axis for axis in range(len(full)) if block[axis] != full[axis]]
        for axis in partial:
            before, after = (0, block[axis][0]), (block[axis][1], full[axis][1])
            pieces = [
                value if around is None else self._slice(node, current, axis, around)
                for around in (before, None, after)
                if around is None or around[0] < around[1]
            ]
            current = _with(current, axis, full[axis])
            last = axis == partial[-1]
            value = node.outputs[0] if last else f"{node.name}/{axis}"
            self.shapes[value] = tuple(stop - start for start, stop in current)
            name = node.name if last else value
            self.nodes.append(
                Node(name=name, op="Concat", inputs=tuple(pieces), outputs=(value,), attributes=(("axis", axis),))
            )

    def _slice(self, node: Node, current: Ranges, axis: int, around: tuple[int, int]) -> str:
        """The part of the old data beside the block along one axis."""
        ranges = _with(current, axis, around)
        name = f"{node.name}/{axis}/{around[0]}"
        cut = [i for i, piece in enumerate(ranges) if piece != (0, self.graph.shapes[node.inputs[0]][i])]
        numbers = {"starts": [ranges[i][0] for i in cut], "stops": [ranges[i][1] for i in cut], "axes": cut}
        operands = [node.inputs[0]]
        for label, values in numbers.items():
            operands.append(f"{name}/{label}")
            self.tensors[operands[-1]] = torch.tensor(values)
            self.shapes[operands[-1]] = (len(values),)
            self.constants.append(operands[-1])
        self.shapes[name] = tuple(stop - start for start, stop in ranges)
        self.nodes.append(Node(name=name, op="Slice", inputs=tuple(operands), outputs=(name,)))
        return name


def _with(ranges: Ranges, axis: int, piece: tuple[int, int]) -> Ranges:
    return (*ranges[:axis], piece, *ranges[axis + 1 :])


def _block(node: Node, graph: Graph, tensors: Tensors) -> Ranges | None:
    """The range along each axis that a ScatterND writes, in order; None when its positions are no such block."""
    data, positions, updates = node.inputs
    index, shape = tensors.get(positions), graph.shapes[data]
    if index is None or node.attribute("reduction", "none") != "none" or index.shape[-1] != len(shape):
        return None
    if tuple(index.shape[:-1]) != graph.shapes[updates] or len(graph.shapes[updates]) != len(shape):
        return None
    ranges = []
    for axis in range(len(shape)):
        along = index[..., axis]
        first = int(along.reshape(-1)[0])
        expected = torch.arange(first, first + along.shape[axis]).reshape(-1, *(1,) * (len(shape) - 1 - axis))
        if not bool((along == expected).all()):
            return None
        ranges.append((first, first + along.shape[axis]))
    return tuple(ranges)
