"""A sketch (nodes, values and tensors of one alternative while it is written), and the record of its kind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from tailor_ir.alternatives.least_squares import PatchMoments, ReplacedLayer
from tailor_ir.alternatives.site import GivenNetwork, Kept, Site
from tailor_ir.axes import Sizes
from tailor_ir.graph import Alternative, Attribute, Graph, Node, Tensors
from tailor_ir.ops import OPERATORS
from tailor_ir.structure.propagation import AxisMap

Rewrite = Callable[["Sketch", Node, str], str | None]
"""Writes a replacement for a node that reads a value of the sketch, and returns its result; None: the node is copied."""


class NotHere(Exception):
    """The alternative is not legal at this site; the text says why."""


@dataclass(slots=True)
class Sketch:
    """New nodes between the entry and the exit of a site. Their names begin with `prefix`.

    parameters, statistics, constants: new tensors by kind; `shapes` has the shapes of all new values and tensors. moments: of
    the inputs of the network's layers, by node; first weights are fitted to them. layers: the layers requested so far, by node;
    sketches of alternatives to the same block share them.
    """

    site: Site
    prefix: str
    moments: Mapping[str, PatchMoments] = field(default_factory=dict)
    layers: dict[str, ReplacedLayer] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    statistics: dict[str, torch.Tensor] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def network(self) -> GivenNetwork:
        """The original network."""
        return self.site.network

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a new value or tensor, or of one of the original network."""
        return self.shapes[name] if name in self.shapes else self.network.shape(name)

    # -- single nodes ------------------------------------------------------------------------------------------------

    def parameter(self, name: str, tensor: torch.Tensor) -> str:
        """A new trainable tensor."""
        name = self._free(name)
        self.parameters[name] = tensor.contiguous().clone()
        self.shapes[name] = tuple(tensor.shape)
        return name

    def node(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        shape: tuple[int, ...],
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        """Add a node with one result; return the result's name."""
        name = self._free(name)
        self.nodes.append(
            Node(name=name, op=op, inputs=tuple(inputs), outputs=(name,), attributes=tuple((attributes or {}).items()))
        )
        self.shapes[name] = shape
        return name

    def convolution(
        self,
        name: str,
        x: str,
        weight: torch.Tensor,
        like: Node | None = None,
        *,
        bias: str | None = None,
        groups: int = 1,
        stride: int = 1,
    ) -> str:
        """A convolution of x with a weight (O, I / groups, *K).

        like: a convolution whose output positions to use; the new kernel may be larger. Without it: every `stride`-th position
        of x. bias: name of a tensor of the sketch.
        """
        rank = weight.ndim - 2
        kernel = tuple(weight.shape[2:])
        attributes: dict[str, Attribute] = {"kernel_shape": kernel, "group": groups}
        if like is None:
            attributes |= {"pads": tuple(size // 2 for size in kernel) * 2, "strides": (stride,) * rank}
        else:
            attributes |= {key: value for key, value in like.attributes if key in ("strides", "dilations")}
            attributes |= {"pads": self._pads(like, kernel)}
        weight_name = self.parameter(f"{name}.weight", weight)
        inputs = (x, weight_name) if bias is None else (x, weight_name, bias)
        strides, dilations, pads = _window(attributes, rank)
        sizes = self.shape(x)[2:]
        spatial = tuple(
            (sizes[i] + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
            for i in range(rank)
        )
        return self.node(name, "Conv", inputs, (self.shape(x)[0], weight.shape[0], *spatial), attributes)

    def linear(self, name: str, x: str, weight: torch.Tensor, bias: str | None = None) -> str:
        """A linear map of the last dimension of x by a weight (O, I). bias: name of a tensor of the sketch."""
        weight_name = self.parameter(f"{name}.weight", weight)
        inputs = (x, weight_name) if bias is None else (x, weight_name, bias)
        return self.node(name, "Linear", inputs, (*self.shape(x)[:-1], weight.shape[0]))

    def batch_norm(self, name: str, x: str) -> str:
        """A BatchNorm of x (B, C, *S), initialised as the identity."""
        channels = self.shape(x)[1]
        scale = self.parameter(f"{name}.weight", torch.ones(channels))
        bias = self.parameter(f"{name}.bias", torch.zeros(channels))
        mean = self._statistic(f"{name}.running_mean", torch.zeros(channels))
        variance = self._statistic(f"{name}.running_var", torch.ones(channels))
        return self.node(name, "BatchNormalization", (x, scale, bias, mean, variance), self.shape(x), {"epsilon": 1e-5})

    def _statistic(self, name: str, tensor: torch.Tensor) -> str:
        name = self._free(name)
        self.statistics[name] = tensor
        self.shapes[name] = tuple(tensor.shape)
        return name

    def _pads(self, like: Node, kernel: tuple[int, ...]) -> tuple[int, ...]:
        """The padding with which a kernel has the same output positions as another convolution."""
        full, rank = self.network.shape(like.inputs[1])[2:], len(kernel)
        dilations = like.ints("dilations", (1,) * rank)
        cut = [dilations[i] * (full[i] - kernel[i]) for i in range(rank)]
        pads = like.ints("pads", (0,) * (2 * rank))
        found = tuple(pads[i] - cut[i % rank] // 2 for i in range(2 * rank))
        if min(found, default=0) < 0 or any(size % 2 for size in cut):
            raise NotHere(f"the padding {pads} of '{like.name}' is too narrow for the middle of its kernel")
        return found

    def biased(self, name: str, x: str, bias: str | None) -> str:
        """The sum of x and a tensor (C,) of the sketch; x itself if `bias` is None."""
        if bias is None:
            return x
        tensor = self.parameters.pop(bias)
        del self.shapes[bias]
        column = self.parameter(f"{name}/bias", tensor.reshape(1, -1, *(1,) * (len(self.shape(x)) - 2)))
        return self.node(f"{name}/biased", "Add", (x, column), self.shape(x))

    def concatenated(self, name: str, values: Sequence[str]) -> str:
        """Values concatenated along the channels."""
        shapes = [self.shape(value) for value in values]
        channels = sum(shape[1] for shape in shapes)
        return self.node(name, "Concat", values, (shapes[0][0], channels, *shapes[0][2:]), {"axis": 1})

    # -- copies ------------------------------------------------------------------------------------------------------

    def copy(
        self,
        nodes: Sequence[Node],
        values: Mapping[str, str],
        kept: Kept | None = None,
        rewrites: Mapping[str, Rewrite] | None = None,
    ) -> dict[str, str]:
        """Copies of nodes with weights of their own; returns the copy's name of every value.

        values: the sketch's names of outside values that the nodes read. kept: the channels that stay of some groups. rewrites:
        replacements for some nodes, by the node's name.
        """
        return _Copy(self, dict(values), kept or {}, rewrites or {}).of(nodes)

    def name_of(self, original: str) -> str:
        """The name of a copy."""
        return f"{self.prefix}{original}"

    def _free(self, name: str) -> str:
        """A name that is not in use yet: layers that are replaced may share a tensor."""
        own = free = self.name_of(name)
        number = 1
        while free in self.shapes:
            number += 1
            free = f"{own}/{number}"
        return free


def _window(attributes: Mapping[str, Attribute], rank: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, dilations and padding of a window from its attributes."""
    read = Node(name="", op="Conv", inputs=(), outputs=(), attributes=tuple(attributes.items()))
    return (
        read.ints("strides", (1,) * rank),
        read.ints("dilations", (1,) * rank),
        read.ints("pads", (0,) * (2 * rank)),
    )


class _Copy:
    """One copy of some nodes."""

    def __init__(self, sketch: Sketch, values: dict[str, str], kept: Kept, rewrites: Mapping[str, Rewrite]) -> None:
        self.sketch, self.values, self.kept, self.rewrites = sketch, values, kept, rewrites
        self.axis_map: AxisMap = sketch.network.axis_map
        graph = sketch.network.graph
        sizes = {group: len(channels) for group, channels in kept.items()}
        self.sizes = Sizes(groups=sizes, spatial=graph.positions, batch=graph.samples)

    def of(self, nodes: Sequence[Node]) -> dict[str, str]:
        for node in nodes:
            rewrite = self.rewrites.get(node.name)
            written = None if rewrite is None else rewrite(self.sketch, node, self.operand(node.inputs[0]))
            if written is not None:
                self.values[node.outputs[0]] = written
            else:
                self.add(node)
        return self.values

    def add(self, node: Node) -> None:
        """Copy a node, with the sizes of the kept channels."""
        sketch, record = self.sketch, OPERATORS[node.op]
        shapes = self.axis_map.node_shapes(node, self.sizes)
        tensors = sketch.network.tensors
        given = {name: tensors[name] for name in node.inputs if name in sketch.network.graph.constants}
        found = dict(record.constants(node, shapes, given)) if record.constants is not None and self.kept else {}
        inputs = [
            self._constant(node, position, found[position]) if position in found else self.operand(name)
            for position, name in enumerate(node.inputs)
        ]
        outputs = tuple(sketch.name_of(name) for name in node.outputs)
        attributes = tuple(record.attributes_of(node, shapes).items()) if self.kept else node.attributes
        name = sketch.name_of(node.name)
        sketch.nodes.append(replace(node, name=name, inputs=tuple(inputs), outputs=outputs, attributes=attributes))
        for original, copied in zip(node.outputs, outputs, strict=True):
            sketch.shapes[copied] = self.sizes.shape(self.axis_map.axes[original])
            self.values[original] = copied

    def _constant(self, node: Node, position: int, value: np.ndarray) -> str:
        name = self.sketch.name_of(f"{node.name}/input{position}")
        self.sketch.constants[name] = torch.from_numpy(np.array(value, order="C"))
        self.sketch.shapes[name] = value.shape
        return name

    def operand(self, name: str) -> str:
        """The sketch's name of an operand of a copied node; a tensor is copied when it is first read."""
        if not name or name in self.values:
            return self.values.get(name, name)
        network = self.sketch.network
        graph = network.graph
        if name not in graph.initializers:
            raise NotHere(f"it reads '{name}', which lies outside of the block")
        tensor = network.cut(name, self.kept)
        tensors = self.sketch.statistics if name in graph.statistics else self.sketch.parameters
        if name in graph.constants:
            if tensor is network.tensors[name]:
                return name
            tensors = self.sketch.constants
        copied = self.sketch.name_of(name)
        tensors[copied] = tensor.clone()
        self.sketch.shapes[copied] = tuple(tensor.shape)
        self.values[name] = copied
        return copied


def joined(
    network: GivenNetwork, nodes: Sequence[Node], sketches: Mapping[Alternative, Sketch]
) -> tuple[Graph, Tensors]:
    """The network with the alternatives of some sketches. nodes: the nodes of both, in order."""
    graph, tensors = network.graph, dict(network.tensors)
    shapes = dict(graph.shapes)
    parameters, statistics, constants = list(graph.parameters), list(graph.statistics), list(graph.constants)
    for sketch in sketches.values():
        shapes.update(sketch.shapes)
        for names, found in (
            (parameters, sketch.parameters),
            (statistics, sketch.statistics),
            (constants, sketch.constants),
        ):
            names += found
            tensors.update(found)
    whole = replace(
        graph,
        nodes=tuple(nodes),
        shapes=shapes,
        parameters=tuple(parameters),
        statistics=tuple(statistics),
        constants=tuple(constants),
        alternatives=(*graph.alternatives, *sketches),
    )
    return whole, tensors


Write = Callable[[Sketch, float], str]
"""Writes the alternative into a sketch; returns the value that replaces the site's exit. NotHere if it is illegal there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeKind:
    """One kind of alternatives.

    choices: names for configs, each with its number: blocks that it replaces, the share that it keeps … blocks: number of
    consecutive blocks that a choice replaces, by its number.
    """

    name: str
    choices: Mapping[str, float]
    write: Write
    blocks: Callable[[float], int] = lambda number: 1
