"""A SuperNet in numbers, for display: the cost of each node in one SubNet, and the nodes and savings of each variable."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tailor_ir import axes as ax
from tailor_ir.graph import Graph, Node
from tailor_ir.operators.features import Shape
from tailor_ir.ops.kernels import KERNEL_TRANSFORM
from tailor_ir.ops.macs import macs_of
from tailor_ir.spaces.selectors import VariableInfo
from tailor_ir.spaces.space import Structure


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Trainable parameters of one node, each counted at its first reader; multiply-accumulates of one sample."""

    parameters: int
    macs: int


@dataclass(frozen=True, slots=True)
class SubnetSummary:
    """One SubNet, batch 1. `nodes`: its nodes; `shapes`: of every value and stored tensor, as if all were present."""

    sizes: ax.Sizes
    shapes: Mapping[str, Shape]
    nodes: Mapping[str, NodeCost]

    @property
    def parameters(self) -> int:
        """Trainable parameters of the SubNet."""
        return sum(cost.parameters for cost in self.nodes.values())

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one sample."""
        return sum(cost.macs for cost in self.nodes.values())


class Describer:
    """Summaries of SubNets of one SuperNet, derived from its axes; nothing is executed."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        self.graph, self.axis_map, self.space = structure.graph, structure.axis_map, structure.space
        self._parameters = _stored_by_subnets(self.graph)
        self._data = self.graph.data_values()
        used = {axis for axes in self.axis_map.axes.values() for axis in axes}
        self.elements = tuple(dict.fromkeys(leaf for axis in used for leaf in elements_of(axis)))

    def summary(self, codes: np.ndarray) -> SubnetSummary:
        """Sizes, shapes and costs under one row of choice indices."""
        subnet = self._structure.subnet(codes)
        shapes = {name: subnet.sizes.shape(axes) for name, axes in self.axis_map.axes.items()}
        shapes[""] = ()
        counted: set[str] = set()
        costs: dict[str, NodeCost] = {}
        for node in subnet.nodes:
            own = [name for name in dict.fromkeys(node.inputs) if name in self._parameters and name not in counted]
            counted.update(own)
            parameters = sum(int(np.prod(shapes[name], dtype=np.int64)) for name in own)
            computed = not self._data.isdisjoint(node.outputs)
            costs[node.name] = NodeCost(parameters, macs_of([node], shapes) if computed else 0)
        return SubnetSummary(subnet.sizes, shapes, costs)

    def variables(self) -> Iterator[VariableInfo]:
        """One record for each variable, in the order of the space."""
        codes = self.space.cardinalities - 1
        largest = self.summary(codes)
        for index, variable in enumerate(self.space.variables):
            changed = codes.copy()
            changed[index] = 0
            smaller = self.summary(changed)
            yield VariableInfo(
                name=variable.name,
                kind=variable.kind,
                scope=variable.scope,
                choices=variable.choices,
                nodes=tuple(n.name for n in self.graph.nodes if self._touched(n, largest, smaller)),
                axes=self._changed_axes(largest, smaller),
                parameters_saved=largest.parameters - smaller.parameters,
                macs_saved=largest.macs - smaller.macs,
            )

    def _touched(self, node: Node, largest: SubnetSummary, smaller: SubnetSummary) -> bool:
        names = (*node.inputs, *node.outputs)
        return node.name not in smaller.nodes or any(largest.shapes[n] != smaller.shapes[n] for n in names)

    def _changed_axes(self, largest: SubnetSummary, smaller: SubnetSummary) -> tuple[str, ...]:
        resized = {e for e in self.elements if largest.sizes(e) != smaller.sizes(e)}
        left_out = self._elements_in(largest) - self._elements_in(smaller)
        return tuple(sorted(map(axis_label, resized | left_out), key=lambda label: (label[0], int(label[1:] or 0))))

    def _elements_in(self, summary: SubnetSummary) -> set[ax.Axis]:
        values = {n for node in self.graph if node.name in summary.nodes for n in (*node.inputs, *node.outputs) if n}
        axes = {axis for name in values for axis in self.axis_map.axes[name]}
        return {element for axis in axes for element in elements_of(axis)}


def _stored_by_subnets(graph: Graph) -> frozenset[str]:
    """Trainable parameters; for transformed kernels the result, since a SubNet keeps only that of kernel and matrices."""
    transforms = [node for node in graph if node.op == KERNEL_TRANSFORM]
    replaced = {name for node in transforms for name in node.inputs}
    return frozenset(graph.parameters) - replaced | {name for node in transforms for name in node.outputs}


def elements_of(axis: ax.Axis) -> Iterator[ax.Axis]:
    """The elementary axes from which `axis` is derived, without constants and the batch."""
    if axis.parts:
        for part in axis.parts:
            yield from elements_of(part)
    elif not isinstance(axis, ax.Fixed | ax.BatchAxis):
        yield axis


def axis_label(axis: ax.Axis) -> str:
    """Short name of an element: C3 for channel group 3, H and W for the input's height and width, T for its length."""
    if isinstance(axis, ax.TokenLength):
        return "T"
    if isinstance(axis, ax.Spatial):
        return ("H", "W")[axis.index]
    return f"{type(axis).__name__[0]}{min(axis.groups)}"


def describe(structure: Structure) -> tuple[VariableInfo, ...]:
    """The nodes and savings of each variable, in the order of the space."""
    return tuple(Describer(structure).variables())
