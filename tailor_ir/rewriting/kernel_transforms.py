"""Smaller kernels as learned transforms of larger ones, for kernels that are elastic in a space."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch

from tailor_ir.axes import Kernel, groups_of
from tailor_ir.errors import SpaceError
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.ops.kernels import KERNEL_TRANSFORM, SIZES
from tailor_ir.spaces.structure import Structure
from tailor_ir.structure.propagation import AxisMap
from tailor_ir.structure.regions import Regions, groups_inside


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
