"""Templates of operators: their structure without sizes, and clusters of nodes that run as one operator.

A structure is described once, and filled in for every row of sizes.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np
import onnx_graphsurgeon as gs
import torch

from tailor_ir.axes import Axis, BatchAxis
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.operators.features import FLOAT, ConstantValue, FeatureStep, OperatorFeature, Shape
from tailor_ir.ops import OPERATORS, NodeShapes
from tailor_ir.ops.elementwise import ACTIVATIONS
from tailor_ir.spaces.space import Structure
from tailor_ir.subnets.standard_operators import set_element_types

Cluster = tuple[Node, ...]

ANCHORS = frozenset(("Conv", "Linear"))  # BatchNorm and an activation after these run inside them
LAYOUT = frozenset(("Flatten", "Reshape", "Transpose", "Split", "Squeeze", "Unsqueeze", "Softmax", "MatMul"))
ELEMENTWISE = frozenset(("Add", "Mul", "Div", "Sub", "Where"))


class _Sets:
    """Disjoint sets of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.parent = {name: name for name in names}

    def copy(self) -> "_Sets":
        """The same sets, which may be joined apart from these."""
        copied = _Sets(())
        copied.parent = dict(self.parent)
        return copied

    def __getitem__(self, name: str) -> str:
        while self.parent[name] != name:
            name = self.parent[name]
        return name

    def join(self, a: str, b: str) -> None:
        self.parent[self[a]] = self[b]


class _Clusters:
    """Joins the nodes of one network."""

    def __init__(self, graph: Graph, tensors: Tensors, unit_of: Mapping[str, Hashable]) -> None:
        self.graph, self.tensors, self.unit_of = graph, tensors, unit_of
        self.data = graph.data_values()
        self.nodes = [node for node in graph.nodes if any(output in self.data for output in node.outputs)]
        self.consumers, self.producers = graph.consumers(), graph.producers()
        self.sets = _Sets(node.name for node in self.nodes)

    def find(self) -> tuple[Cluster, ...]:
        self._join_epilogues()
        self._join_attention()
        members: dict[str, list[Node]] = {}
        for node in self.nodes:
            members.setdefault(self.sets[node.name], []).append(node)
        return tuple(tuple(cluster) for cluster in members.values())

    def _same_unit(self, a: Node, b: Node) -> bool:
        return self.unit_of[a.name] == self.unit_of[b.name]

    def _join_epilogues(self) -> None:
        anchored = {node.name for node in self.nodes if node.op in ANCHORS and node.inputs[1] not in self.data}
        for node in self.nodes:
            before = self.producers.get(node.inputs[0])
            fusible = node.op == "BatchNormalization" or node.op in ACTIVATIONS
            if before is None or not fusible or before.name not in anchored or not self._same_unit(before, node):
                continue
            if node.op == "BatchNormalization" and not self.graph.norms_results(before, node):
                continue
            if len(self.consumers[node.inputs[0]]) == 1 and node.inputs[0] not in self.graph.outputs:
                self.sets.join(node.name, before.name)
                if node.op == "BatchNormalization":
                    anchored.add(node.name)

    def _join_attention(self) -> None:
        """Join everything without weights around the matrix products of an attention into one operator."""
        inner = {n.name: n for n in self.nodes if n.op in LAYOUT or self._scales(n)}
        inner |= {n.name: n for n in self.nodes if self._biases(n, inner)}
        joined = _Sets(inner)
        for node in inner.values():
            for user in self._users(node):
                if user.name in inner and self._same_unit(user, node):
                    joined.join(user.name, node.name)
        products: dict[str, int] = {}
        for node in inner.values():
            if node.op == "MatMul" and all(name in self.data for name in node.inputs):
                products[joined[node.name]] = products.get(joined[node.name], 0) + 1
        groups: dict[str, list[str]] = {}
        for name in inner:
            if products.get(joined[name], 0) > 1:
                groups.setdefault(joined[name], []).append(name)
        if groups and not self._join_if_ordered(groups.values()):
            for names in groups.values():
                self._join_if_ordered([names])

    def _join_if_ordered(self, groups: Iterable[Sequence[str]]) -> bool:
        """Join the nodes of each group, unless another operator would then have to run both before and after theirs."""
        sets = self.sets.copy()
        for names in groups:
            for name in names:
                sets.join(name, names[0])
        before: dict[str, set[str]] = {}
        for node in self.nodes:
            own = sets[node.name]
            others = {sets[self.producers[v].name] for v in node.inputs if v in self.data and v in self.producers}
            before.setdefault(own, set()).update(others - {own})
        try:
            TopologicalSorter(before).prepare()
        except CycleError:
            return False
        self.sets = sets
        return True

    def _users(self, node: Node) -> Sequence[Node]:
        return [user for output in node.outputs for user in self.consumers.get(output, ())]

    def _scales(self, node: Node) -> bool:
        """Whether a node multiplies by one constant number."""
        return node.op in ("Mul", "Div") and any(
            name in self.tensors and self.tensors[name].numel() == 1 for name in node.inputs
        )

    def _biases(self, node: Node, inner: Mapping[str, Node]) -> bool:
        """Whether a node adds (or multiplies by, or masks with) weights between two nodes of an attention."""
        computed = [name for name in node.inputs if name in self.data]
        before = self.producers.get(computed[0]) if computed else None
        users = self._users(node)
        return (
            node.op in ELEMENTWISE
            and len(computed) == 1
            and before is not None
            and (before.op in ("MatMul", "Reshape") or self._scales(before))
            and bool(users)
            and all(user.op in ("Softmax", "Reshape") and user.name in inner for user in users)
        )


def find_clusters(graph: Graph, tensors: Tensors, unit_of: Mapping[str, Hashable]) -> tuple[Cluster, ...]:
    """The nodes that depend on the network's input, grouped into operators; in order of each group's first node.

    tensors: the constants. unit_of: `Structure.unit_of`; nodes of different units are never in one operator, since a SubNet may
    have only one of them.
    """
    return _Clusters(graph, tensors, unit_of).find()


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
