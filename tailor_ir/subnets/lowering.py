"""Lowering of nodes to torch modules under one config: the module that computes a node, and its operands.

Static operators go through onnx2torch: one node at a time, its constants as initializers.
"""

from collections.abc import Collection, Hashable, Sequence
from functools import cached_property
from typing import cast

import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

from tailor_ir.axes import Axis, Sizes
from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.ops import OPERATORS, Lowered, NodeShapes
from tailor_ir.ops.layout import Expand
from tailor_ir.reading.trace import OPSET
from tailor_ir.structure.propagation import AxisMap
from tailor_ir.subnets.plans import Cut, make_resampler


def onnx_node(node: Node) -> onnx.NodeProto:
    """The node as ONNX."""
    proto = helper.make_node(node.op, list(node.inputs), list(node.outputs), name=node.name)
    proto.attribute.extend(helper.make_attribute(k, list(v) if isinstance(v, tuple) else v) for k, v in node.attributes)
    return proto


def convert_static(node: Node, graph: Graph, tensors: Tensors) -> Lowered:
    """The torch module of a node without parameters, and the values with which it is called.

    onnx2torch gets generated names, since the network's names may come from an untrusted file.
    """
    from onnx2torch.node_converters.registry import get_converter  # takes seconds, since it imports torchvision
    from onnx2torch.onnx_graph import OnnxGraph

    own = {name: f"value{i}" for i, name in enumerate(dict.fromkeys((*node.inputs, *node.outputs))) if name}
    proto = onnx_node(node)
    proto.name = "node"
    proto.input[:] = [own.get(name, "") for name in node.inputs]
    proto.output[:] = [own.get(name, "") for name in node.outputs]
    constants = [name for name in node.inputs if name in graph.constants]
    static = helper.make_graph(
        [proto],
        "static",
        [_value(own[name], graph.shapes[name]) for name in node.inputs if name and name not in constants],
        [_value(own[name], graph.shapes[name]) for name in node.outputs],
        [numpy_helper.from_array(tensors[name].numpy(), own[name]) for name in constants],
    )
    single = OnnxGraph(static)
    try:
        converter = get_converter(node.op, OPSET)
        result = converter(next(iter(single.nodes.values())), single)
    except Exception as error:
        raise ImportFailed(f"{node.place}: not supported ({error}); replace it in the network, or report it") from error
    names = {ours: name for name, ours in own.items()}
    return Lowered(result.torch_module, tuple(names.get(value, value) for value in result.onnx_mapping.inputs))


def _value(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


HOME = (torch.device("cpu"), torch.float32)
MODULES_KEPT = 64  # of each node
# modules of these depend on channels and kernels alone, and work at any resolution unless positions enter those
ANY_RESOLUTION = frozenset(("Conv", "ConvTranspose", "GroupNorm", "InstanceNormalization"))


class Resampled(nn.Module):
    """A look-up of weights by position whose result follows the resolution."""

    def __init__(self, module: nn.Module, resample: Cut) -> None:
        super().__init__()
        self.module, self.resample = module, resample

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        return self.resample(self.module(*operands))


class _WatchedShapes:
    """`NodeShapes`, each computed on first access."""

    def __init__(self, node: Node, axis_map: AxisMap, sizes: Sizes) -> None:
        self._axes = (
            [axis_map.axes[name] if name else () for name in node.inputs],
            [axis_map.axes[name] for name in node.outputs],
        )
        self._sizes = sizes

    @cached_property
    def full_inputs(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(axis.size for axis in axes) for axes in self._axes[0])

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self._sizes.shape(axes) for axes in self._axes[0])

    @cached_property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self._sizes.shape(axes) for axes in self._axes[1])

    @cached_property
    def open_outputs(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(-1 if axis.batched else self._sizes(axis) for axis in axes) for axes in self._axes[1])

    @property
    def read(self) -> frozenset[str]:
        """Names of the shapes that were read."""
        return frozenset(vars(self))


class _NodeModules:
    """The modules of one node so far, by the sizes of the axes that its lowering has read.

    `kind`: nodes of the same kind with equal sizes of `axes` have equal modules.
    """

    def __init__(self, node: Node, graph: Graph, axis_map: AxisMap) -> None:
        names = [name for name in (*node.inputs, *node.outputs) if name]
        axes = [axis for name in names for axis in axis_map.axes[name]]
        numbers = [axis_map.axes[node.inputs[0]][1:2], *(axis_map.axes[name] for name in node.inputs[1:] if name)]
        of_positions = any(axis.spatial for axes in numbers for axis in axes)
        self._follows_positions = of_positions or node.op not in ANY_RESOLUTION
        self._inputs = self._elastic([axis for name in node.inputs if name for axis in axis_map.axes[name]])
        self._outputs = self._elastic([axis for name in node.outputs for axis in axis_map.axes[name]])
        self.axes = (*self._inputs, *self._outputs)
        self.kind = (
            node.op,
            node.attributes,
            tuple(name if name in graph.constants else bool(name) for name in node.inputs),
            len(node.outputs),
            tuple(len(axis_map.axes[name]) for name in names),
            tuple((axis.size, bool(self._elastic([axis])), axis.batched) for axis in axes),
        )
        self.of_kind: dict[tuple[int, ...], tuple[nn.Module, frozenset[str]]] = {}  # by sizes of `axes`
        self.looked_at: tuple[Axis, ...] = ()
        self.by_sizes: dict[tuple[int, ...], nn.Module] = {}

    def _elastic(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(a for a in axes if (self._follows_positions or not a.spatial) and (a.groups or a.spatial))

    def axes_of(self, read: frozenset[str]) -> tuple[Axis, ...]:
        """The axes of the named shapes."""
        inputs = self._inputs if "inputs" in read else ()
        return (*inputs, *self._outputs) if read & {"outputs", "open_outputs"} else inputs

    def look(self, axes: Collection[Axis]) -> None:
        """Add axes whose sizes distinguish modules."""
        if not set(axes).issubset(self.looked_at):
            self.looked_at = tuple({*self.looked_at, *axes})
            self.by_sizes.clear()

    def add(self, sizes: Sizes, module: nn.Module) -> None:
        """Keep a module; the oldest is dropped if there are too many."""
        if len(self.by_sizes) >= MODULES_KEPT:
            self.by_sizes.pop(next(iter(self.by_sizes)))
        self.by_sizes[tuple(map(sizes, self.looked_at))] = module


class Lowering:
    """Lowers nodes to modules. Modules are cached by the shapes that their lowering reads."""

    def __init__(self, graph: Graph, tensors: Tensors, axis_map: AxisMap) -> None:
        self.graph = graph
        self.axis_map = axis_map
        self.constants = {name: tensors[name].cpu() for name in graph.constants}
        self.data = graph.data_values()
        targets = [(t.device, t.dtype) for t in tensors.values() if t.is_floating_point()]
        self._target = targets[0] if targets else HOME
        self._modules: dict[str, _NodeModules] = {}
        self._kinds: dict[Hashable, dict[tuple[int, ...], tuple[nn.Module, frozenset[str]]]] = {}

    def shapes(self, node: Node, sizes: Sizes) -> NodeShapes:
        """Shapes of a node's operands and results."""
        return self.axis_map.node_shapes(node, sizes)

    def operands(self, node: Node) -> tuple[str, ...]:
        """The values and tensors with which a node's module is called, in order."""
        record = OPERATORS[node.op]
        names = tuple(name for name in node.inputs[: record.operands] if name)
        return (*names, self.graph.batched_input) if record.needs_batch and node.outputs[0] in self.data else names

    def lower(self, node: Node, sizes: Sizes) -> Lowered:
        """The module of a node and the names of its operands, in order."""
        return Lowered(self.module(node, sizes), self.operands(node))

    def module(self, node: Node, sizes: Sizes) -> nn.Module:
        """The module of a node, whose inputs may be renamed."""
        known = self._modules.get(node.name)
        if known is None:
            known = self._modules[node.name] = _NodeModules(node, self.graph, self.axis_map)
            known.of_kind = self._kinds.setdefault(known.kind, known.of_kind)
        module = known.by_sizes.get(tuple(map(sizes, known.looked_at)))
        if module is None:
            if node.op == "Gather" and node.outputs[0] not in self.data:
                module = self._make_lookup(node, sizes, known)
            else:
                module, read = self._shared(node, sizes, known)
                known.look(known.axes_of(read))
            known.add(sizes, module)
        return module

    def _shared(self, node: Node, sizes: Sizes, known: _NodeModules) -> tuple[nn.Module, frozenset[str]]:
        """The module of this node and all equal nodes, and the shapes that its lowering has read."""
        of_kind, key = known.of_kind, tuple(map(sizes, known.axes))
        if key not in of_kind:
            if len(of_kind) >= MODULES_KEPT:
                of_kind.pop(next(iter(of_kind)))
            of_kind[key] = self._make(node, sizes)
        return of_kind[key]

    def _make(self, node: Node, sizes: Sizes) -> tuple[nn.Module, frozenset[str]]:
        record = OPERATORS[node.op]
        shapes = _WatchedShapes(node, self.axis_map, sizes)
        if record.lower is None:
            module = convert_static(node, self.graph, self.constants).module
        else:
            module = record.lower(node, cast(NodeShapes, shapes), self.constants)
        if isinstance(module, Expand):
            module.batch_axis = self.graph.batch_axis(self.graph.batched_input)
        if self._target != HOME:
            device, dtype = self._target
            module = module.to(device=device, dtype=dtype)
        return module, shapes.read

    def _make_lookup(self, node: Node, sizes: Sizes, known: _NodeModules) -> nn.Module:
        """The module of a look-up by position: the looked-up entries are resampled to the resolution."""
        module, read = self._make(node, sizes)
        axes = self.axis_map.axes[node.outputs[0]]
        first = node.int("axis", 0) % len(self.axis_map.axes[node.inputs[0]])
        new = range(first, first + self.constants[node.inputs[1]].dim())
        resample = make_resampler(axes, sizes, new)
        known.look({*known.axes_of(read), *(leaf for axis in axes for leaf in axis.leaves)})
        return module if resample is None else Resampled(module, resample)
