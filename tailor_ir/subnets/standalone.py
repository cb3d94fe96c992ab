"""Stand-alone networks: a torch.fx module of ordinary layers that own a copy of one SubNet's weights."""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from tailor_ir.alignment import InputAlignment
from tailor_ir.graph import OTHER_FLOATS, Node
from tailor_ir.ops import OPERATORS
from tailor_ir.spaces.space import Subnet
from tailor_ir.subnets.batch_norms import Statistics
from tailor_ir.subnets.elastic import Elastic
from tailor_ir.subnets.lowering import Lowering
from tailor_ir.subnets.plans import make_cut

MODULE_ATTRIBUTES = frozenset(dir(fx.GraphModule)) | {"graph", "self", "training"}
"""Names that a layer of a module must not have."""


class Float32(nn.Module):
    """Converts the inputs of a network whose original has another floating-point type."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32)


class SubnetTensors:
    """Copies of a SubNet's weights, and of all values that follow from its weights alone. `statistics`: its own tensors."""

    def __init__(self, elastic: Elastic, subnet: Subnet, statistics: Statistics | None) -> None:
        self.elastic, self.subnet, self.statistics = elastic, subnet, statistics or {}
        self.lowering = Lowering(elastic.structure.graph, elastic.tensors(), elastic.structure.axis_map)
        self.computed = {o: n for n in subnet.nodes for o in n.outputs if o not in self.lowering.data}
        self._known: dict[str, torch.Tensor] = {}

    def has(self, name: str) -> bool:
        """Whether a value does not depend on the network's input."""
        return name in self.computed or name in self.elastic.structure.graph.initializers

    def __call__(self, name: str) -> torch.Tensor:
        """The value (a copy) under the SubNet's config."""
        if name in self.statistics:
            return self.statistics[name].detach().clone()
        if name in self.computed:
            return self._evaluated(name).clone()
        tensor = self.elastic.tensor(name).detach()
        axes = self.elastic.structure.axis_map.axes[name]
        cut = make_cut(axes, self.subnet.sizes, labels=name in self.elastic.labels)
        return (tensor if cut is None else cut(tensor)).clone()

    @torch.no_grad()
    def _evaluated(self, name: str) -> torch.Tensor:
        if name not in self._known:
            node = self.computed[name]
            lowered = self.lowering.lower(node, self.subnet.sizes)
            result = lowered.module(*(self(operand) for operand in lowered.inputs))
            values = (result,) if len(node.outputs) == 1 else result
            self._known.update(zip(node.outputs, values, strict=True))
        return self._known[name]


class _Builder:
    """Assembles the fx graph node by node."""

    def __init__(self, elastic: Elastic, subnet: Subnet, statistics: Statistics | None) -> None:
        self.elastic, self.subnet = elastic, subnet
        self.tensors = SubnetTensors(elastic, subnet, statistics)
        self.lowering = self.tensors.lowering
        self.root = nn.Module()
        self.graph = fx.Graph()
        self.values: dict[str, fx.Node] = {}
        self.names: set[str] = set()
        self.sources: dict[str, str] = {}  # a tensor's name in the module's state -> in the network

    def build(self, inputs: Sequence[str]) -> fx.GraphModule:
        own = self.elastic.structure.graph.inputs
        for value in inputs:
            self.values[value] = self.graph.placeholder("input" if own == (value,) else self._name(value))
            given = dict(zip(own, self.elastic.structure.graph.given_types, strict=False)).get(value)
            if given is not None and f"torch.{given}" in OTHER_FLOATS:
                self.root.add_module(name := self._name(f"{value}_float32"), Float32())
                self.values[value] = self._variable("call_module", name, self.values[value])
            if own == (value,) and (alignment := InputAlignment.of_tensors(self.tensors.statistics)) is not None:
                self.root.add_module(name := self._name("alignment"), alignment)
                self.values[value] = self._variable("call_module", name, self.values[value])
        for node in self.subnet.nodes:
            if not self.tensors.has(node.outputs[0]):
                self._add(node)
        outputs = tuple(self._answer(name) for name in self.subnet.outputs)
        self.graph.output(outputs[0] if len(outputs) == 1 else outputs)
        return fx.GraphModule(self.root, self.graph, "SubNet")

    def _name(self, wanted: str) -> str:
        """An unused name of ASCII letters, digits and "_": torch.fx writes it into source text."""
        base = re.sub(r"[^A-Za-z0-9_]+", "_", wanted).strip("_") or "node"
        if base[0].isdigit() or iskeyword(base) or base in MODULE_ATTRIBUTES:
            base = f"n_{base}"
        name, count = base, 1
        while name in self.names:
            count += 1
            name = f"{base}_{count}"
        self.names.add(name)
        return name

    def _add(self, node: Node) -> None:
        record = OPERATORS[node.op]
        weights = [name for name in node.inputs[1:] if name]
        if record.layer is not None and all(map(self.tensors.has, weights)):
            shapes = self.lowering.shapes(node, self.subnet.sizes)
            module = record.layer(node, shapes, [self.tensors(name) for name in weights])
            operands: Sequence[str] = node.inputs[:1]
        else:
            lowered = self.lowering.lower(node, self.subnet.sizes)
            module, operands, weights = copy.deepcopy(lowered.module), lowered.inputs, []  # equal nodes share one
        name = self._name(node.name)
        # layers keep their tensors in the order of the node's operands; further tensors are not the network's
        self.sources.update(zip((f"{name}.{key}" for key in module.state_dict()), weights, strict=False))
        self.root.add_module(name, module)
        result = self._variable("call_module", name, *(self._operand(o) for o in operands))
        if len(node.outputs) == 1:
            self.values[node.outputs[0]] = result
            return
        for index, output in enumerate(node.outputs):
            self.values[output] = self._variable("call_function", _item, result, index)

    def _operand(self, name: str) -> fx.Node:
        if name not in self.values:
            attribute = self._name(name)
            tensor = self.tensors(name)
            self.sources[attribute] = name
            if tensor.is_floating_point() and name not in self.elastic.structure.graph.constants:
                self.root.register_parameter(attribute, nn.Parameter(tensor))
            else:
                self.root.register_buffer(attribute, tensor)
            self.values[name] = self._variable("get_attr", attribute)
        return self.values[name]

    def _answer(self, name: str) -> fx.Node:
        """An output. A weight is copied: the caller owns the answer, and needs no gradient of it if none is recorded."""
        found = self._operand(name)
        return self._variable("call_function", torch.clone, found) if found.op == "get_attr" else found

    def _variable(self, kind: str, target: str | Callable[..., Any], *operands: fx.Node | int) -> fx.Node:
        """A node of the fx graph; its variable in source text gets a safe name, unlike for example "self"."""
        return self.graph.create_node(kind, target, operands, name=f"value_{len(self.graph.nodes)}")


def _item(values: Sequence[torch.Tensor], index: int) -> torch.Tensor:
    return values[index]


def build(elastic: Elastic, codes: np.ndarray, statistics: Statistics | None) -> nn.Module:
    """The stand-alone network of one SubNet, in eval mode."""
    subnet = elastic.structure.subnet(codes)
    return build_nodes(elastic, subnet, elastic.structure.graph.inputs, statistics)


def build_nodes(elastic: Elastic, subnet: Subnet, inputs: Sequence[str], statistics: Statistics | None) -> nn.Module:
    """The stand-alone network of a SubNet, or of a part of one, called with the values of `inputs`, in eval mode."""
    return _Builder(elastic, subnet, statistics).build(inputs).eval()


def own_tensors(elastic: Elastic, codes: np.ndarray, state: Mapping[str, torch.Tensor]) -> Statistics:
    """Tensors of the module that `build` makes, by their names in the network: those in `state`, and those made from weights.

    The latter keep their values even if `state` changes the weights from which they were computed: in the module they are
    separate tensors.
    """
    subnet = elastic.structure.subnet(codes)
    builder = _Builder(elastic, subnet, None)
    builder.build(elastic.structure.graph.inputs)
    found = {name: builder.tensors(name) for name in builder.sources.values() if name in builder.tensors.computed}
    return found | {builder.sources[key]: tensor for key, tensor in state.items() if key in builder.sources}
