"""Networks that keep their own states over samples that follow one another, as on a device, in training and in scores.

Legend: B batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tailor_ir.graph import Graph
from tasks.data import Dataset
from tasks.data.batches import answers, tensors
from tasks.data.settings import GivenNetwork


def kept_states(graph: Graph, network: GivenNetwork | None) -> dict[str, str]:
    """The states {INPUT: OUTPUT} of a network that are inputs and outputs of a graph, by their names in the given file."""
    names = [name for name, _ in graph.given_values]
    inputs, outputs = names[: len(graph.inputs)], names[len(graph.inputs) :]
    states = {} if network is None else network.states
    return {name: output for name, output in states.items() if name in inputs and output in outputs}


class Unrolled(nn.Module):
    """A network over runs of `length` samples that follow one another: in each run it keeps its own states.

    ties: positions of the inputs that are states, and of the outputs that are their next values. A batch has whole runs, but
    for the last one. The state before the first sample of a run is that of the batch.
    """

    def __init__(self, network: Callable[..., Any], ties: dict[int, int], length: int) -> None:
        super().__init__()
        self.network, self.ties, self.length = network, ties, length

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs for all samples (B, …), in their order."""
        found: list[tuple[torch.Tensor, ...]] = []
        for step in range(min(self.length, len(inputs[0]))):
            own = [one[step :: self.length] for one in inputs]
            if found:
                for place, output in self.ties.items():
                    own[place] = found[-1][output][: len(own[place])].to(own[place].dtype)
            found.append(tensors(answers(self.network, tuple(own))))
        rows = torch.arange(len(inputs[0]), device=inputs[0].device)
        order = torch.cat([rows[step :: self.length] for step in range(len(found))]).argsort()
        return tuple([torch.cat(each)[order] for each in zip(*found, strict=True)])


def unrolled(graph: Graph, dataset: Dataset, network: Callable[..., Any], length: int) -> Callable[..., Any]:
    """A network of this graph that keeps its own states over runs of `length` samples; itself if there are none."""
    states = kept_states(graph, dataset.settings.network)
    if not states or length == 1:
        return network
    names = [name for name, _ in graph.given_values]
    first_output = len(graph.inputs)
    ties = {names.index(name): names.index(output, first_output) - first_output for name, output in states.items()}
    return Unrolled(network, ties, length)
