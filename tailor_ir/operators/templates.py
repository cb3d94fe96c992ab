"""The structure of an operator without its sizes: described once, filled in for every row of sizes."""

from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs
import torch

from tailor_ir.axes import Axis, BatchAxis
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.operators.clusters import ANCHORS, Cluster
from tailor_ir.operators.features import FLOAT, ConstantValue, FeatureStep, OperatorFeature, Shape
from tailor_ir.ops import OPERATORS, NodeShapes
from tailor_ir.spaces.structure import Structure
from tailor_ir.subnets.standard_operators import set_element_types

SMALL_CONSTANT = 64  # elements; larger constants are operands with random values when measured

SizeRow = tuple[int, ...]


class TemplateInputs:
    """The parts of a network from which templates are made."""

    def __init__(self, structure: Structure, tensors: Tensors) -> None:
        graph = structure.graph
        self.graph, self.axis_map, self.tensors = graph, structure.axis_map, tensors
        self.read_elsewhere = {
            *graph.outputs,
            *(name for each in structure.space.selections for name in each.producers),
        }
        self.data = graph.data_values()
        self.consumers = graph.consumers()
        self.types = element_types(graph, tensors)
        self.steps: dict[FeatureStep, FeatureStep] = {}

    def fixed_constant(self, name: str) -> bool:
        """Whether an operand is a small constant that no config cuts, so that its values are part of the operator."""
        tensor = self.tensors.get(name)
        return (
            tensor is not None
            and tensor.numel() <= SMALL_CONSTANT
            and not any(axis.leaves for axis in self.axis_map.axes[name])
        )


def element_types(graph: Graph, tensors: Tensors) -> dict[str, str]:
    """Value name -> its element type, for values that are not float32."""
    values = {"": gs.Variable.empty()}
    values.update((name, gs.Variable(name, np.dtype(graph.input_type(name)))) for name in graph.inputs)
    for name in (*graph.parameters, *graph.statistics, *graph.constants):
        kind = np.dtype(FLOAT) if name not in tensors else torch.empty(0, dtype=tensors[name].dtype).numpy().dtype
        values[name] = gs.Variable(name, kind)
    for node in graph.nodes:
        values.update((name, gs.Variable(name)) for name in node.outputs if name)
        outputs = [values[name] for name in node.outputs if name]
        set_element_types(node.op, [values[name] for name in node.inputs], outputs, dict(node.attributes))
    kinds = {name: np.dtype(value.dtype).name for name, value in values.items() if name}
    return {name: kind for name, kind in kinds.items() if kind != FLOAT}


class Template:
    """One cluster of nodes without its sizes.

    `axes` are the distinct axes of its operands and results; a *row* has the size of each. `operands`: the values that it reads
    from other clusters and the network's input; `results`: the values that others read from it. `names`: of its nodes and their
    results. `key` is equal for clusters that are the same operator whenever their rows are equal.
    """

    def __init__(self, context: TemplateInputs, cluster: Cluster) -> None:
        self.context, self.cluster = context, cluster
        names = dict.fromkeys(n for node in cluster for n in (*node.inputs, *node.outputs) if n)
        axes = dict.fromkeys(axis for name in names for axis in context.axis_map.axes[name])
        self.axes: tuple[Axis, ...] = tuple(axes)
        column = {axis: i for i, axis in enumerate(self.axes)}
        self.columns = {name: tuple(column[axis] for axis in context.axis_map.axes[name]) for name in names}
        self.columns[""] = ()
        self.full = tuple(axis.size for axis in self.axes)
        self.batched = tuple(any(isinstance(leaf, BatchAxis) for leaf in axis.leaves) for axis in self.axes)
        inside = {output for node in cluster for output in node.outputs if output}
        own = {node.name for node in cluster}
        self.results = tuple(
            name
            for name in names
            if name in inside
            and (name in context.read_elsewhere or any(u.name not in own for u in context.consumers.get(name, ())))
        )
        read = dict.fromkeys(n for node in cluster for n in node.inputs if n in context.data and n not in inside)
        self.operands = tuple(read)
        self.names = frozenset((*own, *inside))
        self.key = self._key(names)
        self._known: dict[SizeRow, OperatorFeature] = {}

    def _key(self, names: Mapping[str, None]) -> tuple[object, ...]:
        number = {name: i for i, name in enumerate(names)}
        context = self.context
        roles = []
        for name in names:
            constant = context.tensors[name].numpy().tobytes() if context.fixed_constant(name) else None
            roles.append((self.columns[name], constant, name in context.data, context.types.get(name)))
        nodes = tuple(
            (n.op, n.attributes, *(tuple(number.get(name, -1) for name in side) for side in (n.inputs, n.outputs)))
            for n in self.cluster
        )
        return nodes, tuple(roles), self.full, self.batched, tuple(number[name] for name in self.results)

    def feature(self, row: SizeRow) -> OperatorFeature:
        """The operator of the cluster under a row of sizes."""
        feature = self._known.get(row)
        if feature is None:
            feature = self._known[row] = _FeatureBuilder(self, row).describe()
        return feature

    def shape(self, name: str, row: SizeRow) -> Shape:
        return tuple([row[i] for i in self.columns[name]])

    def node_shapes(self, node: Node, row: SizeRow) -> NodeShapes:
        """Shapes of a node's operands and results."""
        return NodeShapes(
            full_inputs=tuple(self.shape(name, self.full) for name in node.inputs),
            inputs=tuple(self.shape(name, row) for name in node.inputs),
            outputs=tuple(self.shape(name, row) for name in node.outputs),
            open_outputs=tuple(
                tuple(-1 if self.batched[i] else row[i] for i in self.columns[name]) for name in node.outputs
            ),
        )


class _FeatureBuilder:
    """Turns a template and a row of sizes into a feature with local names."""

    def __init__(self, template: Template, row: SizeRow) -> None:
        self.template, self.context, self.row = template, template.context, row
        self.local: dict[str, str] = {"": ""}
        self.inputs: list[Shape] = []
        self.parameters: list[Shape] = []
        self.constants: list[ConstantValue] = []
        self.steps: list[FeatureStep] = []
        self.step_shapes: list[Shape] = []
        self.types: list[tuple[str, str]] = []

    def describe(self) -> OperatorFeature:
        for node in self.template.cluster:
            if node.op == "BatchNormalization" and self.steps and self.steps[-1].op in ANCHORS:
                self._fold(node)
            else:
                self._step(node)
        results = self.template.results
        steps = self.context.steps
        return OperatorFeature(
            steps=tuple(steps.setdefault(step, step) for step in self.steps),
            input_shapes=tuple(self.inputs),
            parameter_shapes=tuple(self.parameters),
            constants=tuple(self.constants),
            output_shapes=tuple(self._shape(name) for name in results),
            outputs=tuple(self.local[name] for name in results),
            step_shapes=tuple(self.step_shapes),
            element_types=tuple(sorted(self.types)),
        )

    def _shape(self, name: str) -> Shape:
        return self.template.shape(name, self.row)

    def _fold(self, norm: Node) -> None:
        previous = self.steps[-1]
        self.local[norm.outputs[0]] = previous.outputs[0]
        if len(previous.inputs) < 3:
            self.parameters.append(self._shape(norm.inputs[1]))
            inputs = (*previous.inputs, f"p{len(self.parameters) - 1}")
            self.steps[-1] = FeatureStep(
                op=previous.op, inputs=inputs, outputs=previous.outputs, attributes=previous.attributes
            )

    def _step(self, node: Node) -> None:
        record = OPERATORS[node.op]
        attributes, replaced = node.attributes, {}
        if record.attributes is not None or record.constants is not None:
            shapes = self.template.node_shapes(node, self.row)
            attributes = tuple(sorted(record.attributes_of(node, shapes).items()))
            replaced = record.constants(node, shapes, self.context.tensors) if record.constants is not None else {}
        count = max(len(node.inputs), *(position + 1 for position in replaced)) if replaced else len(node.inputs)
        inputs = tuple(
            [
                self._constant(replaced[i])
                if i in replaced
                else self._operand(node.inputs[i] if i < len(node.inputs) else "")
                for i in range(count)
            ]
        )
        for name in node.outputs:
            if name:
                self.local[name] = f"t{len(self.step_shapes)}"
                self.step_shapes.append(self._shape(name))
        outputs = tuple([self.local[name] for name in node.outputs])
        self.steps.append(FeatureStep(op=node.op, inputs=inputs, outputs=outputs, attributes=attributes))

    def _constant(self, value: np.ndarray) -> str:
        flat = tuple(value.reshape(-1).tolist())
        self.constants.append(ConstantValue(value.dtype.name, tuple(value.shape), flat))
        return f"c{len(self.constants) - 1}"

    def _operand(self, name: str) -> str:
        if name in self.local:
            return self.local[name]
        context = self.context
        if context.fixed_constant(name):
            local = self._constant(context.tensors[name].numpy())
        elif name not in context.data:
            self.parameters.append(self._shape(name))
            local = f"p{len(self.parameters) - 1}"
        else:
            self.inputs.append(self._shape(name))
            local = f"in{len(self.inputs) - 1}"
        if local[0] != "c" and name in context.types:
            self.types.append((local, context.types[name]))
        self.local[name] = local
        return local
