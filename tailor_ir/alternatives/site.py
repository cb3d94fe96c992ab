"""A site: one block, or several consecutive ones, with all information that an alternative to them needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch

from tailor_ir.axes import Axis, Channels, groups_of, surviving
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.ops.macs import MACS
from tailor_ir.structure.propagation import AxisMap
from tailor_ir.structure.regions import Block, BlockGroups, groups_inside

Kept = Mapping[int, np.ndarray]
"""Channel group -> the original channels that a copy keeps, in its order."""
COUNTED = ("Conv", "ConvTranspose", "Linear", "MatMul")


@dataclass(frozen=True)
class GivenNetwork:
    """The original network: its graph, tensors and axes. carriers: as of `Regions`."""

    graph: Graph
    tensors: Tensors
    axis_map: AxisMap
    carriers: Mapping[int, frozenset[str]]

    def axes(self, name: str) -> tuple[Axis, ...]:
        """The axes of a value or tensor."""
        return self.axis_map.axes[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value or tensor in the largest SubNet."""
        return self.graph.shapes[name]

    def cut(self, name: str, kept: Kept) -> torch.Tensor:
        """A tensor with the kept channels of some groups alone, in their new order."""
        tensor = self.tensors[name]
        for dim, axis in enumerate(self.axes(name)):
            if axis.groups & kept.keys():
                tensor = tensor.index_select(dim, torch.from_numpy(surviving(axis, kept)))
        return tensor

    @cached_property
    def producers(self) -> dict[str, Node]:
        """Value name -> the node that computes it."""
        return self.graph.producers()

    @cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """Value name -> the nodes that read it, in order."""
        return self.graph.consumers()

    @cached_property
    def data(self) -> frozenset[str]:
        """Values that depend on the network's input."""
        return self.graph.data_values()


@dataclass(frozen=True)
class Site:
    """Consecutive blocks: each one's entry is the exit of the block before, and nothing else reads it."""

    network: GivenNetwork
    blocks: tuple[Block, ...]

    @property
    def entry(self) -> str:
        """The value that the first block reads."""
        return self.blocks[0].entry

    @property
    def exit(self) -> str:
        """The value that the last block gives."""
        return self.blocks[-1].exit

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of all blocks, in order, including those that compute on weights alone."""
        return self.with_weights_of([node for block in self.blocks for node in block.nodes])

    def nodes_of(self, block: Block) -> tuple[Node, ...]:
        """The nodes of one block, in order, including those that compute on weights alone."""
        return self.with_weights_of(block.nodes)

    def with_weights_of(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Nodes together with the nodes before them that depend on weights alone, in the graph's order."""
        producers, data = self.network.producers, self.network.data
        found = {node.name for node in nodes}
        waiting = list(nodes)
        while waiting:
            for name in waiting.pop().inputs:
                before = producers.get(name)
                if before is not None and name not in data and before.name not in found:
                    found.add(before.name)
                    waiting.append(before)
        return tuple(node for node in self.network.graph.nodes if node.name in found)

    @cached_property
    def boundary(self) -> frozenset[int]:
        """The channel groups that the blocks share with their surroundings."""
        network = self.network
        return groups_of((*network.axes(self.entry), *network.axes(self.exit)))

    @cached_property
    def groups(self) -> BlockGroups:
        """The groups inside the last block that have choices."""
        return groups_inside(self.blocks[-1], self.network.axis_map, self.network.carriers)

    def is_inside(self, axis: Axis) -> bool:
        """Whether no other part of the network uses the axis, so that an alternative may choose it freely."""
        return not axis.groups or not axis.groups & self.boundary

    def own_group(self, axis: Axis) -> int | None:
        """The channel group of an axis, if nothing outside the blocks uses it."""
        return axis.group if isinstance(axis, Channels) and self.is_inside(axis) else None


def changes_axes(network: GivenNetwork, block: Block) -> bool:
    """Whether a block's result has another shape or other channels than its input."""
    return network.axes(block.entry) != network.axes(block.exit)


def parameters_of(network: GivenNetwork, nodes: Sequence[Node]) -> int:
    """Number of trainable parameters that nodes read."""
    trained = set(network.graph.parameters)
    names = {name for node in nodes for name in node.inputs if name in trained}
    return sum(prod(network.shape(name)) for name in names)


def macs_of(nodes: Sequence[Node], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Multiply-accumulates of the layers with weights and of matrix products among nodes."""
    return sum(MACS[node.op](node, shapes) for node in nodes if node.op in COUNTED)
