"""The record that describes an operator, and the arguments of its functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from tailor_ir.dims import Dim, DimPool, factors_of
from tailor_ir.errors import ImportFailed, MixedSamples
from tailor_ir.graph import Attribute, Graph, Node, Tensors
from tailor_ir.reading.places import unknown_operator

Dims = tuple[Dim, ...]


@dataclass(slots=True)
class Propagation:
    """State while a network is read operator by operator: the dimensions of every value so far."""

    graph: Graph
    tensors: Tensors
    pool: DimPool = field(default_factory=DimPool)
    dims: dict[str, Dims] = field(default_factory=dict)
    data: frozenset[str] = frozenset()  # values that depend on the network's input

    def of(self, name: str) -> Dims:
        """Dimensions of a value; dimensions of an initializer are separate channel groups until operators join them."""
        if name not in self.dims:
            self.dims[name] = tuple(self.pool.free(size) for size in self.graph.shapes[name])
        return self.dims[name]

    def constant(self, node: Node, position: int) -> np.ndarray:
        """An input that must be known before running, such as the axes of a Squeeze. ImportFailed: the input is computed."""
        name = node.inputs[position]
        if name not in self.tensors or name in self.graph.parameters:
            raise ImportFailed(
                f"{node.place}: input {position} ('{name}') is computed while running; "
                "allowed: constants; export with a fixed input shape"
            )
        return self.tensors[name].numpy()

    def output_sizes(self, node: Node, position: int = 0) -> tuple[int, ...]:
        return self.graph.shapes[node.outputs[position]]

    def broadcast(self, node: Node, operands: Sequence[Dims]) -> Dims:
        """Dimensions of an elementwise result. Size one broadcasts; equal sizes must be the same axis."""
        rank = max(len(dims) for dims in operands)
        result: list[Dim] = []
        for position in range(-rank, 0):
            present = [dims[position] for dims in operands if len(dims) >= -position]
            wide = (
                [dim for dim in present if dim.size > 1] or [d for d in present if not self.pool.is_fixed(d)] or present
            )
            joined = wide[0]
            if joined.size > 1 and any(self.pool.is_batch(dim) and dim.size == 1 for dim in present):
                self.pool.batch_conflict = f"{node.place}: the batch meets an axis that is none"
            for dim in wide[1:]:
                joined = self.pool.unify(joined, dim, node.place)
            result.append(joined)
        return tuple(result)

    def freeze(self, dims: Sequence[Dim], node: Node, why: str) -> None:
        for dim in dims:
            self.pool.freeze(dim, f"{node.place}: {why}")

    def put_together(self, dims: Sequence[Dim], node: Node) -> None:
        """Note that an operator computes with all entries along some dimensions. MixedSamples: the batch is among them."""
        if any(self.pool.is_batch(factor) for factor in factors_of(dims)):
            raise MixedSamples(
                f"{node.place}: computes with all samples of a batch; allowed: networks that treat "
                "all samples alike, each by itself; leave this operator to the code around the network"
            )

    def unify(self, a: Dim, b: Dim, node: Node) -> Dim:
        return self.pool.unify(a, b, node.place)


@dataclass(frozen=True, slots=True)
class NodeShapes:
    """Shapes of a node's operands and results under one config.

    `full_inputs`: shapes of the operands in the largest network. `open_outputs`: shapes of the results with -1 for sizes that
    depend on the batch.
    """

    full_inputs: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    open_outputs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A module without parameters, and the names of the values (and parameters) with which it is called."""

    module: nn.Module
    inputs: tuple[str, ...]


Axes = Callable[[Node, Propagation], tuple[Dims, ...]]
Order = Callable[[Node, Propagation], Iterable[Dim]]
Lower = Callable[[Node, NodeShapes, Tensors], nn.Module]
LayerBuilder = Callable[[Node, NodeShapes, Sequence[torch.Tensor]], nn.Module]
Constants = Callable[[Node, NodeShapes, Mapping[str, torch.Tensor]], dict[int, np.ndarray]]
Attributes = Callable[[Node, NodeShapes], Mapping[str, Attribute]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator, or several that differ only in name.

    axes: dimensions of the results; joins dimensions of the operands.
    order: dimensions along which positions or neighbours matter, such as those of a window; channels along them are never
    sorted. None: all dimensions of operands and results (the safe default).
    lower: a parameterless module that computes the operator; None lets onnx2torch convert it.
    operands: number of leading inputs with which `lower`'s module is called; the others are constants read beforehand.
    layer: an ordinary torch layer with its own parameters, for stand-alone networks; None keeps `lower`.
    constants: constant inputs whose values depend on the config, by input position.
    attributes: attributes whose values depend on the config.
    needs_batch: the module takes the network's input as an additional operand, to know the batch size.
    """

    names: tuple[str, ...]
    axes: Axes
    order: Order | None = None
    lower: Lower | None = None
    operands: int | None = None
    layer: LayerBuilder | None = None
    constants: Constants | None = None
    attributes: Attributes | None = None
    needs_batch: bool = False

    def ordered(self, node: Node, p: Propagation) -> tuple[Dim, ...]:
        """The dimensions whose order matters to a node."""
        if self.order is not None:
            return tuple(self.order(node, p))
        return tuple(dim for name in (*node.inputs, *node.outputs) if name for dim in p.of(name))

    def attributes_of(self, node: Node, shapes: NodeShapes) -> dict[str, Attribute]:
        """All attributes of a node under one config."""
        return {**dict(node.attributes), **({} if self.attributes is None else self.attributes(node, shapes))}


class Function(nn.Module):
    """A function of the operands as a module, with fixed settings."""

    def __init__(self, function: Callable[..., Any], **settings: object) -> None:
        super().__init__()
        self.function, self.settings = function, settings

    def extra_repr(self) -> str:
        return getattr(self.function, "__name__", "").lstrip("_")

    def forward(self, *operands: torch.Tensor) -> Any:
        return self.function(*operands, **self.settings)


def computed_by(function: Callable[..., Any], settings: Callable[[Node], Mapping[str, object]] | None = None) -> Lower:
    """`lower` of operators that one function computes; settings: its keyword arguments, read from the attributes of a node."""
    return lambda node, shapes, tensors: Function(function, **({} if settings is None else settings(node)))


def filled(layer: nn.Module, parameters: Iterable[torch.Tensor]) -> nn.Module:
    """A torch layer with these parameters (weight, then bias)."""
    for own, given in zip(layer.parameters(), parameters, strict=True):
        own.data.copy_(given)
    return layer


def same_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    """Dimensions of results with the axes of the first operand."""
    return (p.of(node.inputs[0]),)


def no_order(node: Node, p: Propagation) -> Dims:
    """Order of operators that commute with permutations of channels: no dimension.

    They work element by element, sum over whole axes, or move elements along with the axes that they report.
    """
    return ()


def order_of_positions(node: Node, p: Propagation) -> Iterable[Dim]:
    """Order of windows and interpolations over x (B, C, *S), possibly with a kernel (O, I, *K): S and K."""
    return (dim for name in node.inputs[:2] if name for dim in p.of(name)[2:])


def order_along(default: int = -1) -> Order:
    """Order of operators whose attribute `axis` names the only axis that they read in order."""

    def ordered(node: Node, p: Propagation) -> Dims:
        return (p.of(node.inputs[0])[node.int("axis", default)],)

    return ordered


def find(operators: Mapping[str, Operator], node: Node) -> Operator:
    """The record of a node's operator. ImportFailed: no record exists."""
    if node.op not in operators:
        raise unknown_operator(node.op, node.name, operators)
    return operators[node.op]
