"""Elements taken from a concatenation, such as the last layer's state from the states of all layers."""

from dataclasses import replace

import torch

from tailor_ir.graph import Graph, Node, Tensors


def take_of_parts(graph: Graph, tensors: Tensors) -> Graph:
    """Let a Gather of one element of a Concat read the part with this element, so that other parts are not tied to it."""
    producers, shapes = graph.producers(), dict(graph.shapes)
    constants = list(graph.constants)
    nodes: list[Node] = []
    for node in graph.nodes:
        found = _part(node, producers.get(node.inputs[0]), graph, tensors) if node.op == "Gather" else None
        if found is not None:
            part, position = found
            index = f"{node.name}/position"
            tensors[index] = torch.full_like(tensors[node.inputs[1]], position)
            shapes[index] = tuple(tensors[index].shape)
            constants.append(index)
            node = replace(node, inputs=(part, index))
        nodes.append(node)
    if len(constants) == len(graph.constants):
        return graph
    whole = replace(graph, shapes=shapes, constants=tuple(constants))
    return whole.with_nodes(_needed(tuple(nodes), graph.outputs))


def _part(node: Node, joined: Node | None, graph: Graph, tensors: Tensors) -> tuple[str, int] | None:
    """The part of a concatenation that holds the only element that a node takes, and its position in the part; else None."""
    index = tensors.get(node.inputs[1]) if node.inputs[1] in graph.constants else None
    if joined is None or joined.op != "Concat" or index is None or index.numel() != 1:
        return None
    rank = len(graph.shapes[joined.outputs[0]])
    axis = node.int("axis", 0) % rank
    if joined.int("axis", 0) % rank != axis:
        return None
    position = int(index) % graph.shapes[joined.outputs[0]][axis]
    for part in joined.inputs:
        if position < graph.shapes[part][axis]:
            return part, position
        position -= graph.shapes[part][axis]
    return None


def _needed(nodes: tuple[Node, ...], outputs: tuple[str, ...]) -> tuple[Node, ...]:
    """The nodes that an output needs."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))
