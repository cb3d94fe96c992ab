"""The operators of SubNets, read off the axes: which nodes run as one, and which variables each of them depends on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from tailor_ir.axes import Sizes, groups_of, spatial_in
from tailor_ir.elastic import Elastic
from tailor_ir.features import ConstantValue, FeatureStep, OperatorFeature
from tailor_ir.graph import Node
from tailor_ir.ops import OPERATORS
from tailor_ir.ops.elementwise import ACTIVATIONS
from tailor_ir.space import Config, Expansion

ANCHORS = ("Conv", "Linear")  # BatchNorm and an activation after these run inside them
LAYOUT = frozenset(("Reshape", "Transpose", "Split", "Squeeze", "Unsqueeze", "Softmax", "MatMul"))
SMALL_CONSTANT = 64  # elements; larger constants are operands with random values when measured


@dataclass(frozen=True, slots=True)
class OperatorTerm:
    """One operator of the largest network over all configs.

    `variables`: columns of choice-index rows that it depends on. `features`: choice indices of those -> the operator,
    None where the SubNet has skipped its block. The operators of a SubNet are the terms' features under its choices.
    """

    variables: tuple[int, ...]
    features: dict[tuple[int, ...], OperatorFeature | None]


class OperatorTable:
    """Reads operators off the axes of one SuperNet."""

    def __init__(self, elastic: Elastic) -> None:
        self.graph, self.axis_map, self.space = elastic.graph, elastic.axis_map, elastic.space
        self.tensors = {name: elastic.tensor(name) for name in elastic.graph.constants}
        self.block_of = {
            node.name: position for position, block in enumerate(elastic.regions.blocks) for node in block.nodes
        }
        self.clusters = self._cluster()
        self._known: dict[tuple[int, tuple[int, ...]], OperatorFeature] = {}
        self._width_of = {w.group: w for w in self.space.widths if w.variable is not None}
        self._expansion_of: dict[int, tuple[Expansion, int]] = {
            g: (e, i) for e in self.space.expansions for i, g in enumerate(e.groups)
        }

    # -- which nodes run as one --------------------------------------------------------------------------------------

    def _cluster(self) -> list[tuple[Node, ...]]:
        data = self.graph.data_values()
        nodes = [node for node in self.graph.nodes if any(o in data for o in node.outputs)]
        consumers = self.graph.consumers()
        leader = {node.name: node.name for node in nodes}

        def find(name: str) -> str:
            while leader[name] != name:
                name = leader[name]
            return name

        def fits(a: Node, b: Node) -> bool:
            return self.block_of.get(a.name) == self.block_of.get(b.name)

        producers = self.graph.producers()
        anchored: set[str] = {node.name for node in nodes if node.op in ANCHORS}
        for node in nodes:
            before = producers.get(node.inputs[0])
            if before is None or before.name not in leader or not fits(before, node):
                continue
            alone = len(consumers.get(node.inputs[0], [])) == 1 and node.inputs[0] not in self.graph.outputs
            fusible = node.op == "BatchNormalization" or node.op in ACTIVATIONS
            if alone and fusible and before.name in anchored:
                leader[find(node.name)] = find(before.name)
                if node.op == "BatchNormalization":
                    anchored.add(node.name)
        self._join_attention(nodes, find, leader)
        members: dict[str, list[Node]] = {}
        for node in nodes:
            members.setdefault(find(node.name), []).append(node)
        return [tuple(cluster) for cluster in members.values()]

    def _join_attention(self, nodes: list[Node], find: "object", leader: dict[str, str]) -> None:
        """Everything without weights around the matrix products of an attention is one operator."""
        assert callable(find)
        data = self.graph.data_values()
        inner = {n.name: n for n in nodes if n.op in LAYOUT or self._scales(n)}
        parent = {name: name for name in inner}

        def root(name: str) -> str:
            while parent[name] != name:
                name = parent[name]
            return name

        consumers = self.graph.consumers()
        for node in inner.values():
            for output in node.outputs:
                for user in consumers.get(output, []):
                    if user.name in inner and self.block_of.get(user.name) == self.block_of.get(node.name):
                        parent[root(user.name)] = root(node.name)
        products: dict[str, int] = {}
        for node in inner.values():
            if node.op == "MatMul" and all(name in data for name in node.inputs):
                products[root(node.name)] = products.get(root(node.name), 0) + 1
        for node in inner.values():
            if products.get(root(node.name), 0) > 1:
                leader[find(node.name)] = find(root(node.name))

    def _scales(self, node: Node) -> bool:
        constant = [name for name in node.inputs if name in self.tensors and self.tensors[name].numel() == 1]
        return node.op in ("Mul", "Div") and bool(constant)

    # -- what a cluster is under a config ----------------------------------------------------------------------------

    def feature(self, index: int, sizes: Sizes) -> OperatorFeature:
        """The operator that a cluster is under given sizes."""
        cluster = self.clusters[index]
        key = (index, self._measure(cluster, sizes))
        if key not in self._known:
            self._known[key] = _Describer(self, cluster, sizes).describe()
        return self._known[key]

    def _measure(self, cluster: tuple[Node, ...], sizes: Sizes) -> tuple[int, ...]:
        names = [name for node in cluster for name in (*node.inputs, *node.outputs) if name]
        return tuple(sizes(axis) for name in names for axis in self.axis_map.axes[name])

    def terms(self) -> Iterator[OperatorTerm]:
        """One term for each operator of the largest network."""
        for index, cluster in enumerate(self.clusters):
            variables = self._variables(cluster)
            counts = [range(len(self.space.variables[v].choices)) for v in variables]
            features: dict[tuple[int, ...], OperatorFeature | None] = {}
            codes = self.space.cardinalities - 1
            for choice in product(*counts):
                codes[list(variables)] = choice
                features[choice] = self._at(index, cluster, codes)
            yield OperatorTerm(variables, features)

    def _at(self, index: int, cluster: tuple[Node, ...], codes: np.ndarray) -> OperatorFeature | None:
        if self.block_of.get(cluster[0].name) in self.space.skipped_blocks(codes):
            return None
        return self.feature(index, self._sizes(cluster, codes))

    def _axes_of(self, cluster: tuple[Node, ...]) -> list[object]:
        return [
            axis
            for node in cluster
            for name in (*node.inputs, *node.outputs)
            if name
            for axis in self.axis_map.axes[name]
        ]

    def _sizes(self, cluster: tuple[Node, ...], codes: np.ndarray) -> Sizes:
        groups: dict[int, int] = {}
        for group in groups_of(self._axes_of(cluster)):  # type: ignore[arg-type]
            if group in self._width_of:
                width = self._width_of[group]
                assert width.variable is not None
                groups[group] = width.sizes[int(codes[width.variable])]
            elif group in self._expansion_of:
                e, position = self._expansion_of[group]
                at = int(codes[e.reference.variable]) if e.reference.variable is not None else 0
                groups[group] = e.sizes[position][at][int(codes[e.variable])]
        return Sizes(groups=groups, spatial=self.space.spatial(codes), batch=1)

    def _variables(self, cluster: tuple[Node, ...]) -> tuple[int, ...]:
        axes = self._axes_of(cluster)
        found: set[int] = set()
        if self.space.resolution is not None and spatial_in(axes):  # type: ignore[arg-type]
            found.add(self.space.resolution)
        for group in groups_of(axes):  # type: ignore[arg-type]
            if group in self._width_of:
                found.add(self._width_of[group].variable)  # type: ignore[arg-type]
            elif group in self._expansion_of:
                e = self._expansion_of[group][0]
                found.add(e.variable)
                if e.reference.variable is not None:
                    found.add(e.reference.variable)
        position = self.block_of.get(cluster[0].name)
        found.update(d.variable for d in self.space.depths if position in d.blocks)
        return tuple(sorted(found))

    def operators(self, codes: np.ndarray) -> tuple[OperatorFeature, ...]:
        """The operators of one SubNet, in order."""
        found = (self._at(i, cluster, codes) for i, cluster in enumerate(self.clusters))
        return tuple(feature for feature in found if feature is not None)

    def unique(self) -> Mapping[OperatorFeature, Config]:
        """Every operator that some SubNet has, each with a config that has it."""
        witnesses: dict[OperatorFeature, Config] = {}
        for term in self.terms():
            for choice, feature in term.features.items():
                if feature is not None and feature not in witnesses:
                    codes = self.space.cardinalities - 1
                    codes[list(term.variables)] = choice
                    witnesses[feature] = self.space.decode(codes)
        return witnesses


class _Describer:
    """Turns one cluster under given sizes into a feature with local names."""

    def __init__(self, table: OperatorTable, cluster: tuple[Node, ...], sizes: Sizes) -> None:
        self.table, self.cluster, self.sizes = table, cluster, sizes
        self.local: dict[str, str] = {"": ""}
        self.inputs: list[tuple[int, ...]] = []
        self.parameters: list[tuple[int, ...]] = []
        self.constants: list[ConstantValue] = []
        self.steps: list[FeatureStep] = []
        self.step_shapes: list[tuple[int, ...]] = []
        self.results = 0

    def shape(self, name: str) -> tuple[int, ...]:
        return self.sizes.shape(self.table.axis_map.axes[name])

    def describe(self) -> OperatorFeature:
        nodes = list(self.cluster)
        inside = {output for node in nodes for output in node.outputs}
        for node in nodes:
            if node.op == "BatchNormalization" and self.steps and self.steps[-1].op in ANCHORS:
                self._fold(node)
            else:
                self._step(node)
        consumers = self.table.graph.consumers()
        read = {n for n in inside if any(u not in nodes for u in consumers.get(n, [])) or n in self.table.graph.outputs}
        last = [n for n in inside if n in read]
        ordered = [n for node in nodes for n in node.outputs if n in last]
        return OperatorFeature(
            steps=tuple(self.steps),
            input_shapes=tuple(self.inputs),
            parameter_shapes=tuple(self.parameters),
            constants=tuple(self.constants),
            output_shapes=tuple(self.shape(n) for n in ordered),
            outputs=tuple(self.local[n] for n in ordered),
            step_shapes=tuple(self.step_shapes),
        )

    def _fold(self, norm: Node) -> None:
        previous = self.steps[-1]
        self.local[norm.outputs[0]] = previous.outputs[0]
        if len(previous.inputs) < 3:
            self.parameters.append(self.shape(norm.inputs[1]))
            inputs = (*previous.inputs, f"p{len(self.parameters) - 1}")
            self.steps[-1] = FeatureStep(
                op=previous.op, inputs=inputs, outputs=previous.outputs, attributes=previous.attributes
            )

    def _step(self, node: Node) -> None:
        shapes = self.table.axis_map.node_shapes(node, self.sizes)
        record = OPERATORS[node.op]
        replaced = record.constants(node, shapes, self.table.tensors) if record.constants is not None else {}
        count = max([len(node.inputs), *(position + 1 for position in replaced)])
        inputs = tuple(
            self._constant(replaced[i])
            if i in replaced
            else self._operand(node.inputs[i] if i < len(node.inputs) else "")
            for i in range(count)
        )
        outputs = []
        for name in node.outputs:
            self.local[name] = f"t{self.results}"
            self.results += 1
            outputs.append(self.local[name])
        attributes = tuple(sorted(record.attributes_of(node, shapes).items()))
        self.steps.append(FeatureStep(op=node.op, inputs=inputs, outputs=tuple(outputs), attributes=attributes))
        self.step_shapes.append(shapes.outputs[0])

    def _constant(self, value: np.ndarray) -> str:
        flat = tuple(value.reshape(-1).tolist())
        self.constants.append(ConstantValue(str(value.dtype), tuple(value.shape), flat))
        return f"c{len(self.constants) - 1}"

    def _operand(self, name: str) -> str:
        if name in self.local:
            return self.local[name]
        tensor = self.table.tensors.get(name)
        if tensor is not None and tensor.numel() <= SMALL_CONSTANT:
            self.local[name] = self._constant(tensor.numpy())
        elif name in self.table.graph.initializers or name not in self.table.graph.data_values():
            self.parameters.append(self.shape(name))
            self.local[name] = f"p{len(self.parameters) - 1}"
        else:
            self.inputs.append(self.shape(name))
            self.local[name] = f"in{len(self.inputs) - 1}"
        return self.local[name]
