"""From nodes to torch modules under one config: what runs, on which operands, and what is left out."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tailor_ir.axes import Sizes
from tailor_ir.convert import convert_static
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.ops import OPERATORS, Lowered, NodeShapes
from tailor_ir.propagate import AxisMap
from tailor_ir.regions import Regions
from tailor_ir.space import Space
from tailor_ir.weights import Cut, make_resampler


@dataclass(frozen=True, slots=True)
class Subnet:
    """One config applied to the graph: the nodes that remain (skipped blocks' values renamed), and all sizes."""

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    sizes: Sizes


def apply_config(graph: Graph, regions: Regions, space: Space, codes: np.ndarray, batch: int = 1) -> Subnet:
    """The SubNet of one row of choice indices."""
    sizes = Sizes(groups=space.group_sizes(codes), spatial=space.spatial(codes), batch=batch)
    skipped = space.skipped_blocks(codes)
    if not skipped:
        return Subnet(graph.nodes, graph.outputs, sizes)
    left_out: set[str] = set()
    alias: dict[str, str] = {}
    for position in sorted(skipped):
        block = regions.blocks[position]
        left_out.update(node.name for node in block.nodes)
        alias[block.exit] = alias.get(block.entry, block.entry)
    nodes = tuple(_renamed(node, alias) for node in graph.nodes if node.name not in left_out)
    return Subnet(nodes, tuple(alias.get(name, name) for name in graph.outputs), sizes)


def _renamed(node: Node, alias: Mapping[str, str]) -> Node:
    if not any(name in alias for name in node.inputs):
        return node
    return Node(
        name=node.name,
        op=node.op,
        inputs=tuple(alias.get(name, name) for name in node.inputs),
        outputs=node.outputs,
        attributes=node.attributes,
    )


class Resampled(nn.Module):
    """A look-up of weights by position whose result follows the resolution."""

    def __init__(self, module: nn.Module, resample: Cut) -> None:
        super().__init__()
        self.module, self.resample = module, resample

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        return self.resample(self.module(*operands))


class Lowering:
    """Lowers nodes to modules; those that no config changes are converted once."""

    def __init__(self, graph: Graph, tensors: Tensors, axis_map: AxisMap) -> None:
        self.graph = graph
        self.axis_map = axis_map
        self.constants = {name: tensors[name] for name in graph.constants}
        self.data = graph.data_values()
        self._static: dict[str, Lowered] = {}

    def shapes(self, node: Node, sizes: Sizes) -> NodeShapes:
        """Shapes of a node's operands and results."""
        return self.axis_map.node_shapes(node, sizes)

    def lower(self, node: Node, sizes: Sizes) -> Lowered:
        """The module of a node and the names of its operands, in order."""
        record = OPERATORS[node.op]
        if record.lower is None:
            return self._converted(node)
        operands = tuple(name for name in node.inputs[: record.operands] if name)
        if record.needs_batch:
            operands += self.graph.inputs
        module = record.lower(node, self.shapes(node, sizes), self.constants)
        if node.op == "Gather" and node.outputs[0] not in self.data:
            resample = make_resampler(self.axis_map.axes[node.outputs[0]], sizes)
            module = module if resample is None else Resampled(module, resample)
        return Lowered(module, operands)

    def _converted(self, node: Node) -> Lowered:
        if node.name not in self._static:
            self._static[node.name] = convert_static(node, self.graph, self.constants)
        lowered = self._static[node.name]
        operands = OPERATORS[node.op].operands
        names = node.inputs if operands is None else node.inputs[:operands]
        return Lowered(lowered.module, tuple(name for name in names if name))
