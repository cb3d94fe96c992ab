"""Groups inside one block that have choices: hidden channels, attention heads, widths of attention's values, kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tailor_ir.axes import Axis, BatchAxis, Channels, Fixed, Kernel, Product, groups_of, spatial_in
from tailor_ir.graph import Node
from tailor_ir.structure.propagation import AxisMap


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroups:
    """Groups of one block, by their meaning. element_channels: hidden group -> channels for each of its elements."""

    hidden: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    values: tuple[int, ...] = ()
    kernels: tuple[int, ...] = ()
    element_channels: Mapping[int, int]
    key_size: int = 1  # channels over which a query and a key of one head are compared


def find_groups(
    nodes: Sequence[Node], boundary: Sequence[Axis], axis_map: AxisMap, carriers: Mapping[int, frozenset[str]]
) -> BlockGroups:
    """The groups that only `nodes` have and that are not part of `boundary`, the axes that the block shares."""
    computed = {name for node in nodes for name in node.outputs}
    inside = {group for name in computed for group in groups_of(axis_map.axes[name])} - groups_of(boundary)
    own = {group for group in inside if carriers.get(group, frozenset()) <= computed and carriers.get(group)}
    heads, contracted, last, key_size = _attention(nodes, axis_map, own)
    values = last - contracted - heads
    element_channels = {
        group: _element_channels(group, carriers[group], axis_map) for group in own - heads - values - contracted
    }
    placed = any(map(_has_positions, (axis_map.axes[name] for name in computed)))
    hidden = {
        group
        for group, count in element_channels.items()
        if count and (not placed or _over_positions(group, carriers[group], axis_map))
    }
    kernels = dict.fromkeys(
        axis.group
        for node in nodes
        for n in node.inputs
        for axis in axis_map.axes.get(n, ())
        if isinstance(axis, Kernel)
    )
    return BlockGroups(
        hidden=tuple(sorted(hidden)),
        heads=tuple(sorted(heads)),
        values=tuple(sorted(values)),
        kernels=tuple(kernels),
        element_channels={group: element_channels[group] for group in hidden},
        key_size=key_size,
    )


def _attention(nodes: Sequence[Node], axis_map: AxisMap, own: set[int]) -> tuple[set[int], set[int], set[int], int]:
    """Groups of products of two computed matrices: heads, contracted groups, groups of the results; and the key size."""
    heads: set[int] = set()
    contracted: set[int] = set()
    last: set[int] = set()
    key_size = 0
    computed = {name for node in nodes for name in node.outputs}
    for node in nodes:
        if node.op != "MatMul" or not computed.issuperset(node.inputs):
            continue
        a, b = (axis_map.axes[name] for name in node.inputs)
        if _is_weight(a) or _is_weight(b):
            continue
        for axis in (*a[:-2], *b[:-2]):
            heads |= {factor.group for factor in _first_factor(axis)}
        contracted |= a[-1].groups | b[-2].groups
        last |= b[-1].groups | a[-2].groups
        key_size = key_size or a[-1].size
    return heads & own, contracted & own, last & own, key_size or 1


def _is_weight(axes: Sequence[Axis]) -> bool:
    """Whether a computed value is the matrix of a linear layer, for example a weight that is scaled before its use."""
    return len(axes) == 2 and not any(axis.batched for axis in axes)


def _first_factor(axis: Axis) -> tuple[Channels, ...]:
    """The channels that an axis consists of, alone or flattened with samples and positions.

    Among several (heads that share keys and values), the first, so that they are cut in whole groups.
    """
    factors = axis.factors if isinstance(axis, Product) else (axis,)
    elastic = [factor for factor in factors if factor.groups]
    return tuple(factor for factor in elastic if isinstance(factor, Channels))[
        : all(isinstance(f, Channels) for f in elastic)
    ]


def _element_channels(group: int, names: frozenset[str], axis_map: AxisMap) -> int:
    """The fewest channels per element of a group in any value; 0 if some value does not have whole channels per element."""
    axes = {axis for name in names for axis in axis_map.axes[name] if group in axis.groups}
    counts = {_factor(axis, group) for axis in axes}
    if len(counts) > 1:  # adjacent copies, as of both directions of a recurrent layer, are cut alike
        counts = {_factor(axis, group, copies=True) for axis in axes}
    return min(counts, default=0)  # 0 if some value has no whole channels for each element


def _factor(axis: Axis, group: int, copies: bool = False) -> int:
    """Channels of an axis per element of a group; `copies`: count only one of several copies of the group."""
    if isinstance(axis, Channels):
        return 1
    if isinstance(axis, Product):
        others = [f for f in axis.factors if group not in f.groups and not f.spatial]  # positions are not channels
        mine = [f for f in axis.factors if group in f.groups]
        if copies and mine:
            others = [f for f in axis.factors[axis.factors.index(mine[0]) :] if f in others]
        if len(mine) == 1 and all(isinstance(f, Fixed) for f in others):
            return prod(f.size for f in others) * _factor(mine[0], group, copies)
        return 0
    inner = {_factor(part, group, copies) for part in axis.parts if group in part.groups}
    return inner.pop() if len(inner) == 1 else 0


def _has_positions(axes: Sequence[Axis]) -> bool:
    """Whether a value of samples has positions besides its channels. A single step of a sequence has none."""
    sizes = [axis.size for axis in axes if not isinstance(axis, BatchAxis)]
    return any(axis.batched for axis in axes) and (spatial_in(axes) or sum(size > 1 for size in sizes) > 1)


def _over_positions(group: int, names: frozenset[str], axis_map: AxisMap) -> bool:
    """Whether some value has the group at every position of an image or sequence, instead of only in a pooled descriptor."""
    for name in names:
        others = [a for a in axis_map.axes[name] if group not in a.groups and not isinstance(a, BatchAxis)]
        if not others or spatial_in(others) or any(axis.size > 1 for axis in others):
            return True
    return False
