"""Writing ONNX: IR nodes as standard operators of opset 17, and whole SubNets as files."""

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import chain, count
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import torch

from tailor_ir.alignment import InputAlignment
from tailor_ir.graph import Attribute, Node
from tailor_ir.ops import OPERATORS
from tailor_ir.ops.recurrent import FIRST_STATE, STATES
from tailor_ir.reading.trace import OPSET
from tailor_ir.spaces.space import Subnet
from tailor_ir.subnets.batch_norms import Statistics
from tailor_ir.subnets.elastic import Elastic
from tailor_ir.subnets.segments import Part
from tailor_ir.subnets.standalone import SubnetTensors
from tailor_ir.subnets.standard_operators import (
    WRITERS,
    guard_padding,
    guard_resizing,
    set_element_types,
    standard_nodes,
)

Take = Callable[[str, Subnet], tuple[gs.Tensor, list[gs.Node]] | None]
"""A SubNet's part of a weight, with the nodes that cut it out; None: the weight is stored."""

FILL, MOST_NODES = 0.01, 100_000
SMALL = 64  # elements of a weight that is always written with its own numbers
IR_VERSION = 10  # supported by every runtime of recent years


def emit(
    op: str, name: str, inputs: Sequence[gs.Tensor], outputs: Sequence[gs.Tensor], attributes: dict[str, Attribute]
) -> list[gs.Node]:
    """The standard ONNX nodes (opset 17) that compute one operator of the IR; most operators of the IR are one ONNX node.

    inputs, outputs: the operands and results, whose element types are set here. name: of the node, and prefix of the names of
    further nodes.
    """
    set_element_types(op, inputs, outputs, attributes)
    if op in ("AveragePool", "MaxPool"):
        guard_padding(op, inputs, attributes)
    if op in WRITERS:
        return standard_nodes(op, name, inputs, outputs, attributes)
    inputs, guards = guard_resizing(name, inputs, outputs, attributes) if op == "Resize" else (inputs, [])
    attrs = {k: list(v) if isinstance(v, tuple) else v for k, v in attributes.items()}
    return [*guards, gs.Node(op, name, attrs=attrs, inputs=list(inputs), outputs=list(outputs))]


def to_onnx(
    nodes: Sequence[gs.Node], inputs: Sequence[gs.Tensor], outputs: Sequence[gs.Tensor], name: str
) -> onnx.ModelProto:
    """A checked ONNX model of the nodes."""
    _share_constants(nodes)
    _name_apart(nodes, inputs, outputs)
    graph = gs.Graph(nodes=list(nodes), inputs=list(inputs), outputs=list(outputs), name=name, opset=OPSET)
    graph.cleanup().toposort()
    model = gs.export_onnx(graph)
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model)
    return model


def _share_constants(nodes: Sequence[gs.Node]) -> None:
    """Merge constants of equal names and values, such as a weight with several readers; rename others with equal names."""
    found: dict[str, gs.Constant] = {}

    def shared(tensor: gs.Tensor) -> gs.Tensor:
        if not isinstance(tensor, gs.Constant):
            return tensor
        same = found.setdefault(tensor.name, tensor)
        if same is tensor or np.array_equal(same.values, tensor.values):
            return same
        tensor.name = f"{tensor.name}/{len(found)}"
        return found.setdefault(tensor.name, tensor)

    for node in nodes:
        inputs = [shared(tensor) for tensor in node.inputs]
        if any(one is not other for one, other in zip(inputs, node.inputs, strict=True)):
            node.inputs = inputs


def _name_apart(nodes: Sequence[gs.Node], inputs: Sequence[gs.Tensor], outputs: Sequence[gs.Tensor]) -> None:
    """Give each node and each value a unique name: runtimes refuse files with equal names.

    The names of inputs and outputs are kept.
    """
    known: dict[str, gs.Tensor] = {tensor.name: tensor for tensor in (*inputs, *outputs)}
    used: set[str] = set()
    for node in nodes:
        node.name = _free(node.name, used)
        used.add(node.name)
        for tensor in (*node.inputs, *node.outputs):
            if not tensor.is_empty() and known.setdefault(tensor.name, tensor) is not tensor:
                tensor.name = _free(tensor.name, known)
                known[tensor.name] = tensor


def _free(wanted: str, taken: Container[str]) -> str:
    names = chain([wanted], (f"{wanted}/{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


class _OnnxGraph:
    """Collects the ONNX nodes and tensors of one SubNet."""

    def __init__(
        self, elastic: Elastic, subnet: Subnet, statistics: Statistics | None, *, weights: bool, take: Take | None
    ) -> None:
        self.elastic, self.structure, self.subnet = elastic, elastic.structure, subnet
        self.weights, self.take = weights, take
        self.tensors = SubnetTensors(elastic, subnet, statistics)
        self.alignment = InputAlignment.of_tensors(self.tensors.statistics)
        self.values: dict[str, gs.Tensor] = {}
        self.unaligned: dict[str, gs.Tensor] = {}
        self.nodes: list[gs.Node] = []
        self.folded: dict[str, dict[int, gs.Tensor]] = {}

    def tensor(self, name: str) -> np.ndarray:
        return self.tensors(name).cpu().numpy()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.subnet.sizes.shape(self.structure.axis_map.axes[name])

    def stored(self, name: str) -> gs.Tensor:
        """A value that does not depend on the network's input; without weights, large tensors hold a single repeated number."""
        graph, shape = self.structure.graph, self.shape(name)
        take = None if name in self.tensors.statistics else self.take
        if take is not None and (taken := take(name, self.subnet)) is not None:
            self.nodes += taken[1]
            return taken[0]
        if self.weights or prod(shape) <= SMALL or name in graph.constants or name in self.tensors.computed:
            return gs.Constant(name, self.tensor(name))
        return self.filled(name, shape)

    def filled(self, name: str, shape: tuple[int, ...]) -> gs.Tensor:
        """A tensor of one repeated number, created at load time. The number is unique: runtimes merge equal tensors."""
        result = gs.Variable(name, np.float32, shape)
        sizes = gs.Constant(f"{name}/shape", np.asarray(shape, np.int64))
        value = gs.Constant(f"{name}/value", np.asarray([FILL * (1 + len(self.nodes) / MOST_NODES)], np.float32))
        node = gs.Node("ConstantOfShape", f"{name}/fill", attrs={"value": value}, inputs=[sizes], outputs=[result])
        self.nodes.append(node)
        return result

    def value(self, name: str) -> gs.Tensor:
        if not name:
            return gs.Variable.empty()
        if name not in self.values:
            if self.tensors.has(name):
                self.values[name] = self.stored(name)
            else:
                kind = np.dtype(self.structure.graph.input_type(name))
                self.values[name] = gs.Variable(name, kind, self.shape(name))
                if self.alignment is not None and self.structure.graph.inputs == (name,):
                    self._align(name, self.alignment)
        return self.values[name]

    def _align(self, name: str, alignment: InputAlignment) -> None:
        """Let nodes read the aligned version of an input of the network."""
        given = self.unaligned[name] = self.values[name]
        self.values[name] = gs.Variable(f"{name}/aligned", given.dtype, given.shape)
        self.nodes += alignment.nodes(given, self.values[name])

    def input(self, name: str) -> gs.Tensor:
        """A value as the model receives it."""
        value = self.value(name)
        return self.unaligned.get(name, value)

    def add(self, node: Node) -> None:
        shapes = self.structure.axis_map.node_shapes(node, self.subnet.sizes)
        record = OPERATORS[node.op]
        constants = {n: self.elastic.tensor(n) for n in node.inputs if n in self.structure.graph.constants}
        found = dict(record.constants(node, shapes, constants)) if record.constants is not None else {}
        replaced: dict[int, gs.Tensor] = {i: gs.Constant(f"{node.name}/input{i}", value) for i, value in found.items()}
        replaced.update(self.folded.get(node.name, {}))
        count = max([len(node.inputs), *(position + 1 for position in replaced)])
        inputs = [
            replaced[position]
            if position in replaced
            else self.value(node.inputs[position] if position < len(node.inputs) else "")
            for position in range(count)
        ]
        if node.op == "Concat" and node.int("axis", 0) != 0:
            inputs = [self._repeated(node, i, 0, shapes.outputs[0][0]) for i in inputs]
        if node.op in STATES:
            states = range(FIRST_STATE, min(FIRST_STATE + STATES[node.op], len(inputs)))
            for position in (position for position in states if not inputs[position].is_empty()):
                inputs[position] = self._repeated(node, inputs[position], 1, shapes.inputs[0][1])
        outputs = [self.value(name) for name in node.outputs]
        self.nodes += emit(node.op, node.name, inputs, outputs, record.attributes_of(node, shapes))

    def _repeated(self, node: Node, part: gs.Tensor, axis: int, batch: int) -> gs.Tensor:
        """A tensor with one entry for all samples along its batch axis, repeated for each sample."""
        if part.shape[axis] == batch:
            return part
        shape = (*part.shape[:axis], batch, *part.shape[axis + 1 :])
        name = f"{node.name}/{part.name}"
        repeated = gs.Variable(f"{name}/repeated", part.dtype, shape)
        target = gs.Constant(f"{name}/batch", np.asarray(shape, np.int64))
        self.nodes.append(gs.Node("Expand", f"{name}/Expand", inputs=[part, target], outputs=[repeated]))
        return repeated

    def outputs(self, names: Sequence[str]) -> list[gs.Tensor]:
        """The SubNet's outputs, each as a separate value, even if all blocks between two outputs are skipped.

        names: of the copies that this needs.
        """
        found: dict[str, gs.Tensor] = {}
        for wanted, name in zip(names, self.subnet.outputs, strict=True):
            source = self.value(name)
            if name in found or name in self.structure.graph.inputs or isinstance(source, gs.Constant):
                copy = gs.Variable(wanted, source.dtype, source.shape)
                if isinstance(source, gs.Constant):
                    source = gs.Constant(f"{name}/stored", source.values)
                self.nodes.append(gs.Node("Identity", f"{wanted}/output", inputs=[source], outputs=[copy]))
                found[wanted] = copy
            else:
                found[name] = source
        return list(found.values())

    def nodes_left(self) -> list[Node]:
        """The nodes that depend on the network's input; all other nodes are stored as their results."""
        return [node for node in self.subnet.nodes if not self.tensors.has(node.outputs[0])]

    def fold_batch_norm(self) -> list[Node]:
        """Nodes without the BatchNorms that directly follow a convolution or linear map, whose weights take up their scales."""
        nodes = self.nodes_left()
        readers: dict[str, list[Node]] = {}
        for node in nodes:
            for name in node.inputs:
                readers.setdefault(name, []).append(node)
        producers = {output: node for node in nodes for output in node.outputs}
        removed: set[str] = set()
        renamed: dict[str, Node] = {}
        for norm in (n for n in nodes if n.op == "BatchNormalization"):
            before = producers.get(norm.inputs[0])
            if before is None or not self.structure.graph.norms_results(before, norm):
                continue
            if len(readers[norm.inputs[0]]) > 1:
                continue
            if norm.inputs[0] in self.subnet.outputs or not self.tensors.has(before.inputs[1]):
                continue
            self.folded[before.name] = self._folded_weights(before, norm)
            inputs = (*before.inputs[:2], before.inputs[2] if len(before.inputs) > 2 else before.inputs[1])
            renamed[before.name] = Node(
                name=before.name, op=before.op, inputs=inputs, outputs=norm.outputs, attributes=before.attributes
            )
            removed.add(norm.name)
        return [renamed.get(node.name, node) for node in nodes if node.name not in removed]

    def _folded_weights(self, node: Node, norm: Node) -> dict[int, gs.Tensor]:
        names = [f"{node.name}/input{position}" for position in (1, 2)]
        if not self.weights:
            shapes = (self.shape(node.inputs[1]), self.shape(norm.inputs[1]))
            return {1: self.filled(names[0], shapes[0]), 2: self.filled(names[1], shapes[1])}
        scale, bias, mean, variance = (self.tensor(name).astype(np.float64) for name in norm.inputs[1:5])
        factor = scale / np.sqrt(variance + norm.float("epsilon", 1e-5))
        weight = self.tensor(node.inputs[1])
        own = self.tensor(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else 0.0
        scaled = weight * factor.reshape(-1, *(1,) * (weight.ndim - 1))
        shift = bias + (own - mean) * factor
        return {1: gs.Constant(names[0], scaled.astype(np.float32)), 2: gs.Constant(names[1], shift.astype(np.float32))}


def subnet_onnx(
    elastic: Elastic,
    codes: np.ndarray,
    *,
    statistics: Statistics | None,
    fold_batch_norm: bool,
    batch: int,
    weights: bool,
    take: Take | None = None,
) -> onnx.ModelProto:
    """One SubNet as an ONNX model with a fixed batch size.

    Without `weights` the model takes a few kilobytes: the same operators, with one repeated number in large weights, for
    timing.
    """
    exporter = _OnnxGraph(elastic, elastic.structure.subnet(codes, batch), statistics, weights=weights, take=take)
    graph = elastic.structure.graph
    return _model(exporter, graph.inputs, graph.outputs, fold_batch_norm=fold_batch_norm)


def answers_onnx(
    elastic: Elastic, subnet: Subnet, *, statistics: Statistics | None, fold_batch_norm: bool
) -> onnx.ModelProto:
    """A SubNet with the heads of exits as one ONNX model; its outputs are the answers of the exits."""
    exporter = _OnnxGraph(elastic, subnet, statistics, weights=True, take=None)
    return _model(exporter, elastic.structure.graph.inputs, subnet.outputs, fold_batch_norm=fold_batch_norm)


def parts_onnx(
    elastic: Elastic,
    parts: Sequence[Part],
    *,
    statistics: Statistics | None,
    fold_batch_norm: bool,
    weights: bool,
    take: Take | None = None,
) -> Iterator[onnx.ModelProto]:
    """The parts of a SubNet as ONNX models, in order; a value passed from one to another has the same name in both."""
    handed: dict[str, gs.Tensor] = {}
    for part in parts:
        exporter = _OnnxGraph(elastic, part.subnet, statistics, weights=weights, take=take)
        for name in part.inputs:
            if name in handed:
                exporter.value(name).dtype = handed[name].dtype
        yield _model(exporter, part.inputs, part.outputs, fold_batch_norm=fold_batch_norm)
        handed.update((name, exporter.value(name)) for name in part.outputs)


def _model(
    exporter: _OnnxGraph, inputs: Sequence[str], outputs: Sequence[str], *, fold_batch_norm: bool
) -> onnx.ModelProto:
    """The model of all nodes that the exporter has. outputs: their names, as in `_OnnxGraph.outputs`."""
    with torch.no_grad():
        nodes = exporter.fold_batch_norm() if fold_batch_norm else exporter.nodes_left()
        for node in nodes:
            exporter.add(node)
        read, given = [exporter.input(name) for name in inputs], exporter.outputs(outputs)
    return to_onnx(exporter.nodes, read, given, "subnet")


def write_onnx(model: onnx.ModelProto, path: Path) -> None:
    """Write a model atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(model.SerializeToString())
    temporary.replace(path)
