"""Copying a part that two networks share, such as the backbone under heads for two tasks, from one SuperNet to another.

Both SuperNets use the same names for the part's nodes, tensors and alternatives, since names follow from module paths. Source:
AdaptiveNet (MobiCom 2023) §6 joins an elastic backbone with a head.
"""

from collections.abc import Iterable, Mapping

import torch

from tailor_ir.errors import JoinError
from tailor_ir.graph import Alternative, Graph, Node
from tailor_ir.subnets.elastic import Elastic


def take_part(target: Elastic, source: Elastic, part: str) -> tuple[str, ...]:
    """Copy the tensors of a part from one SuperNet to another, with BatchNorm statistics and alternatives; return their names.

    part: the path of a module, such as "backbone". JoinError if the two do not have the same part; nothing is copied then.
    """
    names = common_tensors(target.structure.graph, source.structure.graph, part)
    with torch.no_grad():
        for name in names:
            target.tensor(name).copy_(source.tensor(name))
    return names


def common_tensors(first: Graph, second: Graph, part: str) -> tuple[str, ...]:
    """Names of the tensors of a part that two networks share, in the order of the first one.

    These are all tensors of the module, and all own tensors of alternatives to its blocks. JoinError if one of the networks has
    no such module, or if a tensor, an alternative or an operator is missing in one of them or differs.
    """
    graphs = (first, second)
    own = [{name: graph.shapes[name] for name in _tensors(graph) if name.startswith(f"{part}.")} for graph in graphs]
    if not all(own):
        raise JoinError(
            f"part '{part}': no tensor of the network lies there; allowed: a module that both networks have"
        )
    for name in _in_both(part, "tensor", *own):
        if own[0][name] != own[1][name]:
            shapes = " and ".join(str(each[name]) for each in own)
            raise JoinError(
                f"part '{part}': tensor '{name}' has shapes {shapes}; allowed: the same part in both networks"
            )
    computed = first.original().producers().keys() & second.original().producers().keys()
    alternatives = [tuple(each for each in graph.alternatives if each.value in computed) for graph in graphs]
    _in_both(
        part, "alternative", *({f"{each.choice} to {each.value}": each for each in found} for found in alternatives)
    )
    nodes = [_leading_to(graph, own[0], found) for graph, found in zip(graphs, alternatives, strict=True)]
    for name in _in_both(part, "operator", *nodes):
        if nodes[0][name] != nodes[1][name]:
            raise JoinError(f"part '{part}': operator '{name}' computes something else in one of the networks")
    read = {name for node in nodes[0].values() for name in node.inputs}
    moved = {*first.parameters, *first.statistics, *(first.initializers - first.original().initializers)}
    return tuple(name for name in _tensors(first) if name in read & moved)


def _tensors(graph: Graph) -> tuple[str, ...]:
    return (*graph.parameters, *graph.statistics, *graph.constants)


def _in_both(part: str, what: str, first: Mapping[str, object], second: Mapping[str, object]) -> Iterable[str]:
    """The names, which must be in both networks. JoinError for a name that only one of them has."""
    for name in (*first, *second):
        if name not in first or name not in second:
            raise JoinError(
                f"part '{part}': {what} '{name}' is in one of the networks alone; allowed: the same part in both, with the "
                "same alternatives"
            )
    return first


def _leading_to(graph: Graph, tensors: Iterable[str], alternatives: Iterable[Alternative]) -> dict[str, Node]:
    """By name, the nodes that read the tensors, that compute alternatives or their values, and all nodes before these."""
    producers, wanted = graph.producers(), set(tensors)
    waiting = [node for node in graph.original() if not wanted.isdisjoint(node.inputs)]
    waiting += [producers[name] for each in alternatives for name in (each.value, each.producer)]
    found: dict[str, Node] = {}
    while waiting:
        node = waiting.pop()
        if node.name not in found:
            found[node.name] = node
            waiting += [producers[name] for name in node.inputs if name in producers]
    return found
