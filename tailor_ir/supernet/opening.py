"""BatchNorms that were folded into convolutions are put back, by statistics of given samples."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from tailor_ir.errors import InputError
from tailor_ir.graph import GivenInputs, Graph, Node, Tensors
from tailor_ir.rewriting.opened_norms import ChannelMoments, FoldedNorms, find_folded, open_norms
from tailor_ir.spaces.space import Structure
from tailor_ir.subnets.elastic import Branches, Elastic
from tailor_ir.supernet.reading import ReadNetwork

FEWEST = 2
"""Samples without which channels of one position have no variance."""


def with_opened_norms(
    network: ReadNetwork, batches: Sequence[GivenInputs], read: Callable[[Graph, Tensors], Structure]
) -> ReadNetwork:
    """The network with BatchNorms where they were folded, and a remark on them; without batches the network itself.

    batches: as `SuperNet.recalibrate` takes them, at the largest resolution. read: finds the structure of a graph.
    InputError: other sizes than the network's, or too few samples.
    """
    folded = find_folded(network.graph) if batches else FoldedNorms(nodes=(), certain=False)
    if not folded.nodes:
        return network
    _check(network.graph, batches)
    moments = _measured(Elastic(read(network.graph, network.tensors), network.tensors), folded, batches)
    graph, tensors = open_norms(network.graph, network.tensors, folded, lambda node: moments[node.outputs[0]])
    return replace(network, graph=graph, tensors=tensors, folded=(folded.remark,))


def _check(graph: Graph, batches: Sequence[GivenInputs]) -> None:
    samples = 0
    for given in batches:
        named = graph.named_inputs(given)
        for name, value in named.items():
            axis = graph.batch_axis(name)
            wanted, found = (
                [size for at, size in enumerate(shape) if at != axis] for shape in (graph.shapes[name], value.shape)
            )
            if wanted != found:
                raise InputError(
                    f"calibration: input '{name}' has sizes {found}; allowed: {wanted}, the network's own at full "
                    "resolution"
                )
        samples += named[graph.batched_input].shape[graph.batch_axis(graph.batched_input)]
    if samples < FEWEST:
        raise InputError(
            f"calibration: {samples} sample; allowed: {FEWEST} or more, from which a variance can be taken"
        )


def _measured(elastic: Elastic, folded: FoldedNorms, batches: Sequence[GivenInputs]) -> dict[str, ChannelMoments]:
    """The moments of the results of convolutions with a folded BatchNorm, by the value's name."""
    nodes: Sequence[Node] = elastic.structure.graph.nodes
    moments = {node.outputs[0]: ChannelMoments() for node in nodes if node.name in folded.nodes}

    def see(name: str, value: torch.Tensor) -> None:
        if name in moments:
            moments[name].add(value)

    branches = Branches(elastic)
    for given in batches:
        branches.watch(given, see)
    return moments
