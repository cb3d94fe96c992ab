"""Rewrites that merge common groups of ONNX operators into one node; each pass is `Graph -> Graph`.

Each pass preserves the computed function. `Linear`, `Gelu`, `Silu`, `GroupNorm`, `RmsNorm` … are operators of the IR;
the exporter writes them as standard ONNX again (`tailor_ir/subnets/standard_operators.py`). Passes also merge:

- cyclic shifts, which exporters write as two slices concatenated in swapped order;
- elements taken from a concatenation, such as the last layer's state from the states of all layers;
- constants that hold one row per traced sample, such as the initial zero state of a recurrent cell.

If kernels are elastic in a space, smaller kernels become learned transforms of larger ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import torch

from tailor_ir.axes import Kernel, groups_of
from tailor_ir.errors import MixedSamples, SpaceError
from tailor_ir.graph import Graph, Node, Tensors, needed
from tailor_ir.ops.kernels import KERNEL_TRANSFORM, SIZES
from tailor_ir.rewriting.fusions import RULES, apply_rule
from tailor_ir.spaces.space import Structure
from tailor_ir.structure.propagation import AxisMap, propagate
from tailor_ir.structure.regions import Regions, groups_inside


def fuse_roll(graph: Graph, tensors: Tensors) -> Graph:
    """Replace Concat(x[s:], x[:s]) along one axis by `Roll(x; axis, shift=s)`."""
    producers, consumers = graph.producers(), graph.consumers()
    rolls: dict[str, Node] = {}
    removed: set[str] = set()
    for node in graph.nodes:
        pieces = [producers.get(name) for name in node.inputs] if node.op == "Concat" and len(node.inputs) == 2 else []
        if not pieces or any(piece is None or piece.op != "Slice" for piece in pieces):
            continue
        tail, head = pieces
        assert tail is not None
        assert head is not None
        rank = len(graph.shapes[node.outputs[0]])
        axis = node.int("axis", 0) % rank
        ranges = [_range(piece, axis, graph, tensors) for piece in (tail, head)]
        size = graph.shapes[node.outputs[0]][axis]
        if tail.inputs[0] != head.inputs[0] or None in ranges or graph.shapes[tail.inputs[0]][axis] != size:
            continue
        (start, stop), (first, last) = ranges  # type: ignore[misc]
        if first == 0 and stop == size and start == last:
            rolls[node.name] = Node(
                name=node.name,
                op="Roll",
                inputs=(tail.inputs[0],),
                outputs=node.outputs,
                attributes=(("axis", axis), ("shift", start)),
            )
            single = (p for p in (tail, head) if len(consumers[p.outputs[0]]) == 1)
            removed.update(p.name for p in single if p.outputs[0] not in graph.outputs)
    if not rolls:
        return graph
    return graph.with_nodes(tuple(rolls.get(node.name, node) for node in graph.nodes if node.name not in removed))


def _range(node: Node, axis: int, graph: Graph, tensors: Tensors) -> tuple[int, int] | None:
    """(start, stop) of a slice along `axis` alone with step 1; None for other slices."""
    given = [tensors.get(name) for name in node.inputs[1:]]
    if len(given) < 3 or any(value is None or value.numel() != 1 for value in given):
        return None
    starts, stops, axes, *steps = (int(value) for value in given if value is not None)
    shape = graph.shapes[node.inputs[0]]
    if axes % len(shape) != axis or (steps and steps[0] != 1):
        return None
    start, stop, _ = slice(starts, stops).indices(shape[axis])
    return start, stop


def take_of_parts(graph: Graph, tensors: Tensors) -> Graph:
    """Let a Gather of one element of a Concat read the part with this element, so that other parts are not tied to it."""
    producers, shapes = graph.producers(), dict(graph.shapes)
    constants = list(graph.constants)
    nodes: list[Node] = []
    for node in graph.nodes:
        found = _part(node, producers.get(node.inputs[0]), graph, tensors) if node.op == "Gather" else None
        if found is not None:
            part, position = found
            index = f"{node.name}/position"
            tensors[index] = torch.full_like(tensors[node.inputs[1]], position)
            shapes[index] = tuple(tensors[index].shape)
            constants.append(index)
            node = replace(node, inputs=(part, index))
        nodes.append(node)
    if len(constants) == len(graph.constants):
        return graph
    whole = replace(graph, shapes=shapes, constants=tuple(constants))
    return whole.with_nodes(needed(nodes, graph.outputs))


def _part(node: Node, joined: Node | None, graph: Graph, tensors: Tensors) -> tuple[str, int] | None:
    """The part of a concatenation that holds the only element that a node takes, and its position in the part; else None."""
    index = tensors.get(node.inputs[1]) if node.inputs[1] in graph.constants else None
    if joined is None or joined.op != "Concat" or index is None or index.numel() != 1:
        return None
    rank = len(graph.shapes[joined.outputs[0]])
    axis = node.int("axis", 0) % rank
    if joined.int("axis", 0) % rank != axis:
        return None
    position = int(index) % graph.shapes[joined.outputs[0]][axis]
    for part in joined.inputs:
        if position < graph.shapes[part][axis]:
            return part, position
        position -= graph.shapes[part][axis]
    return None


def repeat_for_samples(graph: Graph, tensors: Tensors) -> tuple[Graph, Tensors]:
    """Replace stored tensors that follow the number of samples by one row, which is repeated to the batch size.

    Their axes show which tensors follow it. MixedSamples: the rows of a tensor differ.
    """
    samples = graph.samples
    stored = (*graph.parameters, *graph.constants)
    if samples == 1 or not any(samples in graph.shapes[name] for name in stored if tensors[name].is_floating_point()):
        return _made_late(graph), tensors
    axes = propagate(graph, tensors).axes
    found = {
        name: next(dim for dim, axis in enumerate(axes[name]) if axis.batched)
        for name in stored
        if any(axis.batched for axis in axes[name])
    }
    if not found:
        return _made_late(graph), tensors
    shapes, tensors, nodes = dict(graph.shapes), dict(tensors), []
    for name, dim in found.items():
        row, target = f"{name}/row", f"{name}/shape"
        tensors[row] = _row(graph, name, tensors.pop(name), dim, samples)
        tensors[target] = torch.tensor(shapes[name])
        shapes |= {row: tuple(tensors[row].shape), target: (len(shapes[name]),)}
        nodes.append(Node(name=f"{name}/repeat", op="Expand", inputs=(row, target), outputs=(name,)))
    kept = tuple(name for name in graph.constants if name not in found)
    added = tuple(name for node in nodes for name in node.inputs)
    repeated = replace(graph, nodes=(*nodes, *graph.nodes), shapes=shapes, constants=(*kept, *added))
    return _made_late(repeated), tensors


def _made_late(graph: Graph) -> Graph:
    """Move values that are repeated from constants alone directly before their readers, so that they belong together."""
    data = graph.data_values()
    plain = set(graph.constants)
    early: dict[str, Node] = {}
    for node in graph.nodes:
        if plain.issuperset(name for name in node.inputs if name):
            plain.update(node.outputs)
            if node.outputs[0] in data:
                early.update(dict.fromkeys(node.outputs, node))
    ordered: dict[str, Node] = {}

    def add(node: Node) -> None:
        for name in node.inputs:
            if name in early and early[name].name not in ordered:
                add(early[name])
        ordered[node.name] = node

    for node in graph.nodes:
        if node.outputs[0] not in early:
            add(node)
    for node in early.values():  # early values without readers are outputs
        if node.name not in ordered:
            add(node)
    return replace(graph, nodes=tuple(ordered.values()))


def _row(graph: Graph, name: str, tensor: torch.Tensor, dim: int, samples: int) -> torch.Tensor:
    row = tensor.narrow(dim, 0, 1).clone()
    if tensor.shape[dim] != samples or name in graph.parameters or not torch.equal(tensor, row.expand_as(tensor)):
        user = graph.consumers()[name][0]
        raise MixedSamples(
            f"{user.place}: '{name}' has other values for each sample of a batch of {samples}; "
            "allowed: networks that treat all samples alike, in batches of any size"
        )
    return row


def transform_kernels(graph: Graph, tensors: Tensors, structure: Structure) -> tuple[Graph, Tensors]:
    """The same network with a transform between each elastic kernel and its readers, and a matrix per step of its sizes.

    structure: structure of the graph; its space defines the elastic kernels.
    Matrices start as identity, so every SubNet initially computes the same as without them. They are ordinary parameters:
    `NAME.7to5`, `NAME.5to3` for the weight NAME. SpaceError: the space has no elastic kernel.
    Source: OFA (ICLR 2020) §3.3.
    """
    sizes = _kernel_sizes(structure)
    if not sizes:
        raise SpaceError(_why_none(structure.axis_map, structure.regions))
    nodes: list[Node] = []
    shapes, tensors = dict(graph.shapes), dict(tensors)
    matrices: list[str] = []
    transformed: dict[str, str] = {}
    for node in graph.nodes:
        for weight in dict.fromkeys(node.inputs):
            if weight in sizes and weight not in transformed:
                transform = _transform(weight, (shapes[weight][2], *sizes[weight]), node)
                for name, size in zip(transform.inputs[1:], sizes[weight], strict=True):
                    positions: int = size ** len(shapes[weight][2:])
                    assert name not in shapes, name
                    shapes[name] = (positions, positions)
                    tensors[name] = torch.eye(positions, dtype=tensors[weight].dtype)
                transformed[weight] = transform.outputs[0]
                shapes[transform.outputs[0]] = shapes[weight]
                matrices += transform.inputs[1:]
                nodes.append(transform)
        nodes.append(replace(node, inputs=tuple(transformed.get(name, name) for name in node.inputs)))
    parameters = (*graph.parameters, *matrices)
    return replace(graph, nodes=tuple(nodes), shapes=shapes, parameters=parameters), tensors


def matrices_of(graph: Graph) -> tuple[str, ...]:
    """Names of the matrices of all kernel transforms."""
    return tuple(name for node in graph.nodes if node.op == KERNEL_TRANSFORM for name in node.inputs[1:])


def _kernel_sizes(structure: Structure) -> Mapping[str, tuple[int, ...]]:
    """Weight -> the smaller sizes that its kernel can have, descending."""
    of_group: dict[int, set[int]] = {}
    for sizing in structure.space.sizings:
        of_group.setdefault(sizing.group, set()).update(sizing.sizes.reshape(-1).tolist())
    found = {}
    for name in structure.graph.parameters:
        kernels = [axis for axis in structure.axis_map.axes[name] if isinstance(axis, Kernel)]
        smaller = {s for group in groups_of(kernels) for s in of_group.get(group, ()) if s < kernels[0].size}
        if smaller:
            found[name] = tuple(sorted(smaller, reverse=True))
    return found


def _transform(weight: str, sizes: tuple[int, ...], reader: Node) -> Node:
    return Node(
        name=f"{reader.name}/{KERNEL_TRANSFORM}",
        op=KERNEL_TRANSFORM,
        inputs=(weight, *(f"{weight}.{larger}to{smaller}" for larger, smaller in pairwise(sizes))),
        outputs=(f"{weight}/transformed",),
        attributes=((SIZES, sizes[1:]),),
    )


def _why_none(axis_map: AxisMap, regions: Regions) -> str:
    blocks = [block for stage in regions.stages for block in stage.blocks]
    if any(groups_inside(block, axis_map, regions.carriers).kernels for block in blocks):
        return (
            "kernel_transform: the space leaves every kernel as it is; allowed: with a kernel_size variable; "
            "name one in the space ('*.kernel_size': 'auto'), or leave kernel_transform out"
        )
    return (
        "kernel_transform: no block of this network has a kernel that can be elastic; allowed: kernels of odd size from 5, "
        "the same in every direction, padded so that their centre gives the same positions; leave kernel_transform out"
    )


Pass = Callable[[Graph, Tensors], Graph]


class _Rewriter:
    """Collects replacements of nodes, with the producers and readers of each value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self.removed: set[str] = set()
        self.replacements: dict[str, Node] = {}

    def only_consumer(self, value: str) -> Node | None:
        users = self.consumers.get(value, [])
        return users[0] if len(users) == 1 and value not in self.graph.outputs else None

    def replace(self, last: Node, removed: list[Node], by: Node) -> None:
        self.removed.update(node.name for node in removed)
        self.replacements[last.name] = by

    def result(self) -> Graph:
        nodes = [self.replacements.get(node.name, node) for node in self.graph.nodes if node.name not in self.removed]
        # transposed weights that only rewritten nodes read are left out
        return self.graph.with_nodes(needed(nodes, self.graph.outputs))


def fuse_linear(graph: Graph, tensors: Tensors) -> Graph:
    """Replace Gemm and MatMul by a (transposed) weight, with or without bias, by `Linear(x, weight (out, in)[, bias])`."""
    graph = _flatten_biases(_turn_weights(graph, tensors), tensors)
    rewriter = _Rewriter(graph)
    parameters = set(graph.parameters)
    for node in graph.nodes:
        if node.op == "Gemm" and node.int("transB", 0) == 1 and node.int("transA", 0) == 0:
            plain = node.float("alpha", 1.0) == 1.0 and node.float("beta", 1.0) == 1.0
            if node.inputs[1] in parameters and plain and _has_bias_of_layer(node, graph):
                rewriter.replace(node, [], replace(node, op="Linear", attributes=()))
        elif node.op == "MatMul":
            _fuse_matmul(rewriter, node, parameters)
    return rewriter.result()


def _turn_weights(graph: Graph, tensors: Tensors) -> Graph:
    """Store weights (in, out) of MatMuls and Gemms as (out, in), as in torch modules; a MatMul gets a Transpose before it."""
    parameters, readers = set(graph.parameters), graph.consumers()
    shapes = dict(graph.shapes)
    nodes: list[Node] = []
    for node in graph.nodes:
        weight = node.inputs[1] if node.op in ("MatMul", "Gemm") else ""
        plain = node.op == "MatMul" or node.int("transB", 0) == 0
        if weight in parameters and plain and len(shapes[weight]) == 2 and len(readers[weight]) == 1:
            tensors[weight] = tensors[weight].T.contiguous()
            shapes[weight] = shapes[weight][::-1]
            if node.op == "Gemm":
                node = replace(node, attributes=(*(a for a in node.attributes if a[0] != "transB"), ("transB", 1)))
            else:
                turned = f"{weight}/turned"
                shapes[turned] = shapes[weight][::-1]
                nodes.append(
                    Node(
                        name=f"{node.name}/turn",
                        op="Transpose",
                        inputs=(weight,),
                        outputs=(turned,),
                        attributes=(("perm", (1, 0)),),
                    )
                )
                node = replace(node, inputs=(node.inputs[0], turned))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), shapes=shapes)


def _flatten_biases(graph: Graph, tensors: Tensors) -> Graph:
    """Reshape biases (1, O) of Gemms to (O), as in torch modules."""
    parameters, readers = set(graph.parameters), graph.consumers()
    shapes = dict(graph.shapes)
    for node in graph.nodes:
        bias = node.inputs[2] if node.op == "Gemm" and len(node.inputs) > 2 else ""
        if bias in parameters and shapes[bias] == (1, shapes[node.outputs[0]][1]) and len(readers[bias]) == 1:
            tensors[bias] = tensors[bias].reshape(-1)
            shapes[bias] = shapes[bias][1:]
    return replace(graph, shapes=shapes)


def _has_bias_of_layer(node: Node, graph: Graph) -> bool:
    """Whether a Gemm adds nothing or one number per output; Gemms with other sums, such as one number for all, stay Gemms."""
    return len(node.inputs) < 3 or graph.shapes[node.inputs[2]] == graph.shapes[node.outputs[0]][1:]


def _fuse_matmul(rewriter: _Rewriter, node: Node, parameters: set[str]) -> None:
    transpose = rewriter.producers.get(node.inputs[1])
    if transpose is None or transpose.op != "Transpose" or transpose.inputs[0] not in parameters:
        return
    weight = transpose.inputs[0]
    if len(rewriter.graph.shapes[weight]) != 2:
        return
    inputs = (node.inputs[0], weight)
    add = rewriter.only_consumer(node.outputs[0])
    bias = next((name for name in add.inputs if name in parameters), None) if add and add.op == "Add" else None
    if add is not None and bias is not None and rewriter.graph.shapes[bias] == (rewriter.graph.shapes[weight][0],):
        linear = Node(name=node.name, op="Linear", inputs=(*inputs, bias), outputs=add.outputs)
        rewriter.replace(add, [node], linear)
    else:
        rewriter.replace(node, [], Node(name=node.name, op="Linear", inputs=inputs, outputs=node.outputs))


def fuse_known_groups(graph: Graph, tensors: Tensors) -> Graph:
    """Replace activations and normalisations that exporters write as several nodes by one node."""
    for rule in RULES:
        graph = apply_rule(graph, tensors, rule)
    return graph


def drop_expansions(graph: Graph, tensors: Tensors) -> Graph:
    """Remove an Expand if all its readers broadcast anyway, because another operand already has the shape."""
    consumers, outputs = graph.consumers(), set(graph.outputs)
    alias: dict[str, str] = {}
    for node in graph.nodes:
        result = node.outputs[0]
        if node.op != "Expand" or result in outputs or len(graph.shapes[node.inputs[0]]) > len(graph.shapes[result]):
            continue
        readers = consumers.get(result, [])
        if readers and all(_broadcasts_to(reader, result, graph) for reader in readers):
            alias[result] = node.inputs[0]
    nodes = [node for node in graph.nodes if node.op != "Expand" or node.outputs[0] not in alias]
    nodes = [replace(node, inputs=tuple(_source(name, alias) for name in node.inputs)) for node in nodes]
    return graph.with_nodes(tuple(nodes))


def _source(name: str, alias: Mapping[str, str]) -> str:
    while name in alias:
        name = alias[name]
    return name


def _broadcasts_to(reader: Node, name: str, graph: Graph) -> bool:
    others = [other for other in reader.inputs if other != name]
    return reader.op in BROADCASTING and any(graph.shapes[other] == graph.shapes[name] for other in others)


PASSES: tuple[Pass, ...] = (fuse_linear, drop_expansions, take_of_parts, fuse_known_groups, fuse_roll)
BROADCASTING = frozenset(("Add", "Div", "Mul", "Sub"))


def simplify(graph: Graph, tensors: Tensors) -> tuple[Graph, Tensors]:
    """Apply all passes in order and drop tensors that nothing reads any more."""
    for rewrite in PASSES:
        graph = rewrite(graph, tensors)
    return graph, {name: tensor for name, tensor in tensors.items() if name in graph.initializers}
