"""All facts about a network except its weights: graph, axes, regions, space, presence of each node."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tailor_ir.axes import Sizes
from tailor_ir.graph import Graph, Node
from tailor_ir.spaces.presence import Presence, Roster
from tailor_ir.spaces.space import Space
from tailor_ir.structure.propagation import AxisMap
from tailor_ir.structure.regions import Regions


@dataclass(frozen=True, slots=True)
class Subnet:
    """One config applied to the graph: the nodes that are present, reading the chosen producers, and all sizes."""

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    sizes: Sizes


@dataclass(frozen=True, kw_only=True, eq=False)
class Structure:
    """A network with all its SubNets, without weights. presence: node name -> the SubNets that have the node."""

    graph: Graph
    axis_map: AxisMap
    regions: Regions
    space: Space
    presence: Mapping[str, Presence]

    @cached_property
    def _roster(self) -> Roster:
        return Roster([self.presence[node.name] for node in self.graph.nodes])

    def nodes(self, codes: np.ndarray) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        """The nodes of one SubNet, reading the chosen producers, and the names of its outputs."""
        source = self.space.sources.under(codes)
        outputs = tuple(source.get(name, name) for name in self.graph.outputs)
        nodes = []
        extended = self.space.extended(codes[None])[0]
        for node, there in zip(self.graph.nodes, self._roster.at(extended), strict=True):
            if there:
                if not source.keys().isdisjoint(node.inputs):
                    node = replace(node, inputs=tuple(source.get(name, name) for name in node.inputs))
                nodes.append(node)
        return tuple(nodes), outputs

    def unit_of(self) -> dict[str, Hashable]:
        """Node name -> its unit. Nodes of one unit are in one block, and present in the same SubNets."""
        block_of = {node.name: at for at, block in enumerate(self.regions.blocks) for node in block.nodes}
        return {name: (block_of.get(name), where) for name, where in self.presence.items()}

    def subnet(self, codes: np.ndarray, batch: int = 1) -> Subnet:
        """The SubNet of one row of choice indices (V,)."""
        return Subnet(*self.nodes(codes), self.space.sizes(codes, batch))
