"""Constants that hold one row per traced sample, such as the initial zero state of a recurrent cell."""

from dataclasses import replace

import torch

from tailor_ir.errors import MixedSamples
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.structure.propagation import propagate


def repeat_for_samples(graph: Graph, tensors: Tensors) -> tuple[Graph, Tensors]:
    """Replace stored tensors that follow the number of samples by one row, which is repeated to the batch size.

    Their axes show which tensors follow it. MixedSamples: the rows of a tensor differ.
    """
    samples = graph.samples
    stored = (*graph.parameters, *graph.constants)
    if samples == 1 or not any(samples in graph.shapes[name] for name in stored if tensors[name].is_floating_point()):
        return _made_late(graph), tensors
    axes = propagate(graph, tensors).axes
    found = {
        name: next(dim for dim, axis in enumerate(axes[name]) if axis.batched)
        for name in stored
        if any(axis.batched for axis in axes[name])
    }
    if not found:
        return _made_late(graph), tensors
    shapes, tensors, nodes = dict(graph.shapes), dict(tensors), []
    for name, dim in found.items():
        row, target = f"{name}/row", f"{name}/shape"
        tensors[row] = _row(graph, name, tensors.pop(name), dim, samples)
        tensors[target] = torch.tensor(shapes[name])
        shapes |= {row: tuple(tensors[row].shape), target: (len(shapes[name]),)}
        nodes.append(Node(name=f"{name}/repeat", op="Expand", inputs=(row, target), outputs=(name,)))
    kept = tuple(name for name in graph.constants if name not in found)
    added = tuple(name for node in nodes for name in node.inputs)
    repeated = replace(graph, nodes=(*nodes, *graph.nodes), shapes=shapes, constants=(*kept, *added))
    return _made_late(repeated), tensors


def _made_late(graph: Graph) -> Graph:
    """Move values that are repeated from constants alone directly before their readers, so that they belong together."""
    data = graph.data_values()
    plain = set(graph.constants)
    early: dict[str, Node] = {}
    for node in graph.nodes:
        if plain.issuperset(name for name in node.inputs if name):
            plain.update(node.outputs)
            if node.outputs[0] in data:
                early.update(dict.fromkeys(node.outputs, node))
    ordered: dict[str, Node] = {}

    def add(node: Node) -> None:
        for name in node.inputs:
            if name in early and early[name].name not in ordered:
                add(early[name])
        ordered[node.name] = node

    for node in graph.nodes:
        if node.outputs[0] not in early:
            add(node)
    for node in early.values():  # early values without readers are outputs
        if node.name not in ordered:
            add(node)
    return replace(graph, nodes=tuple(ordered.values()))


def _row(graph: Graph, name: str, tensor: torch.Tensor, dim: int, samples: int) -> torch.Tensor:
    row = tensor.narrow(dim, 0, 1).clone()
    if tensor.shape[dim] != samples or name in graph.parameters or not torch.equal(tensor, row.expand_as(tensor)):
        user = graph.consumers()[name][0]
        raise MixedSamples(
            f"operator '{user.op}' at '{user.name}': '{name}' has other values for each sample of a batch of {samples}; "
            "allowed: networks that treat all samples alike, in batches of any size"
        )
    return row
