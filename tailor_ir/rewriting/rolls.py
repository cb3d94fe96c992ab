"""Cyclic shifts, which exporters write as two slices concatenated in swapped order."""

from tailor_ir.graph import Graph, Node, Tensors


def fuse_roll(graph: Graph, tensors: Tensors) -> Graph:
    """Replace Concat(x[s:], x[:s]) along one axis by `Roll(x; axis, shift=s)`."""
    producers, consumers = graph.producers(), graph.consumers()
    rolls: dict[str, Node] = {}
    removed: set[str] = set()
    for node in graph.nodes:
        pieces = [producers.get(name) for name in node.inputs] if node.op == "Concat" and len(node.inputs) == 2 else []
        if not pieces or any(piece is None or piece.op != "Slice" for piece in pieces):
            continue
        tail, head = pieces
        assert tail is not None
        assert head is not None
        rank = len(graph.shapes[node.outputs[0]])
        axis = node.int("axis", 0) % rank
        ranges = [_range(piece, axis, graph, tensors) for piece in (tail, head)]
        size = graph.shapes[node.outputs[0]][axis]
        if tail.inputs[0] != head.inputs[0] or None in ranges or graph.shapes[tail.inputs[0]][axis] != size:
            continue
        (start, stop), (first, last) = ranges  # type: ignore[misc]
        if first == 0 and stop == size and start == last:
            rolls[node.name] = Node(
                name=node.name,
                op="Roll",
                inputs=(tail.inputs[0],),
                outputs=node.outputs,
                attributes=(("axis", axis), ("shift", start)),
            )
            single = (p for p in (tail, head) if len(consumers[p.outputs[0]]) == 1)
            removed.update(p.name for p in single if p.outputs[0] not in graph.outputs)
    if not rolls:
        return graph
    return graph.with_nodes(tuple(rolls.get(node.name, node) for node in graph.nodes if node.name not in removed))


def _range(node: Node, axis: int, graph: Graph, tensors: Tensors) -> tuple[int, int] | None:
    """(start, stop) of a slice along `axis` alone with step 1; None for other slices."""
    given = [tensors.get(name) for name in node.inputs[1:]]
    if len(given) < 3 or any(value is None or value.numel() != 1 for value in given):
        return None
    starts, stops, axes, *steps = (int(value) for value in given if value is not None)
    shape = graph.shapes[node.inputs[0]]
    if axes % len(shape) != axis or (steps and steps[0] != 1):
        return None
    start, stop, _ = slice(starts, stops).indices(shape[axis])
    return start, stop
