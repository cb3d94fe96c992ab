"""Stand-alone networks: a torch.fx module of ordinary layers that own a copy of one SubNet's weights."""

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import fx, nn

from tailor_ir.elastic import Elastic, Statistics
from tailor_ir.graph import Node
from tailor_ir.lowering import Lowering, Subnet, apply_config
from tailor_ir.ops import OPERATORS
from tailor_ir.weights import make_cut


def subnet_tensor(elastic: Elastic, name: str, subnet: Subnet, statistics: Statistics | None) -> torch.Tensor:
    """A copy of a stored tensor as the SubNet has it."""
    if statistics is not None and name in statistics:
        return statistics[name].detach().clone()
    tensor = elastic.tensor(name).detach()
    cut = make_cut(elastic.axis_map.axes[name], subnet.sizes)
    return (tensor if cut is None else cut(tensor)).clone()


class _Builder:
    """Assembles the fx graph node by node."""

    def __init__(self, elastic: Elastic, subnet: Subnet, statistics: Statistics | None) -> None:
        self.elastic, self.subnet, self.statistics = elastic, subnet, statistics
        tensors = elastic.tensors()
        self.lowering = Lowering(elastic.graph, tensors, elastic.axis_map)
        self.root = nn.Module()
        self.graph = fx.Graph()
        self.values: dict[str, fx.Node] = {}
        self.names: set[str] = set()

    def build(self) -> fx.GraphModule:
        network = self.elastic.graph
        self.values[network.inputs[0]] = self.graph.placeholder("input")
        for node in self.subnet.nodes:
            self._add(node)
        self.graph.output(self.values[self.subnet.outputs[0]])
        return fx.GraphModule(self.root, self.graph, "SubNet")

    def _name(self, wanted: str) -> str:
        base = re.sub(r"\W+", "_", wanted).strip("_") or "node"
        base = f"n_{base}" if base[0].isdigit() else base
        name, count = base, 1
        while name in self.names:
            count += 1
            name = f"{base}_{count}"
        self.names.add(name)
        return name

    def _add(self, node: Node) -> None:
        record = OPERATORS[node.op]
        stored = [name for name in node.inputs if name in self.elastic.graph.initializers]
        owns = record.layer is not None and all(name in stored for name in node.inputs[1:] if name)
        if owns and node.inputs[0] not in stored:
            assert record.layer is not None
            shapes = self.lowering.shapes(node, self.subnet.sizes)
            module = record.layer(node, shapes, [self._tensor(name) for name in node.inputs[1:] if name])
            operands: Sequence[str] = node.inputs[:1]
        else:
            lowered = self.lowering.lower(node, self.subnet.sizes)
            module, operands = lowered.module, lowered.inputs
        name = self._name(node.name)
        self.root.add_module(name, module)
        result = self.graph.call_module(name, tuple(self._operand(o) for o in operands))
        if len(node.outputs) == 1:
            self.values[node.outputs[0]] = result
            return
        for index, output in enumerate(node.outputs):
            self.values[output] = self.graph.call_function(_item, (result, index))

    def _tensor(self, name: str) -> torch.Tensor:
        return subnet_tensor(self.elastic, name, self.subnet, self.statistics)

    def _operand(self, name: str) -> fx.Node:
        if name not in self.values:
            attribute = self._name(name)
            if name in self.elastic.graph.parameters:
                self.root.register_parameter(attribute, nn.Parameter(self._tensor(name)))
            else:
                self.root.register_buffer(attribute, self._tensor(name))
            self.values[name] = self.graph.get_attr(attribute)
        return self.values[name]


def _item(values: Sequence[torch.Tensor], index: int) -> torch.Tensor:
    return values[index]


def build(elastic: Elastic, codes: np.ndarray, statistics: Statistics | None) -> nn.Module:
    """The stand-alone network of one SubNet, in eval mode."""
    subnet = apply_config(elastic.graph, elastic.regions, elastic.space, codes)
    return _Builder(elastic, subnet, statistics).build().eval()
