"""Blocks and stages of a network, found by dependency, in a joint search for axes and regions, and groups with choices.

Segments are joined into one block if a boundary would fall inside an expansion; blocks over the same axes form a stage.
Kinds only give blocks their familiar names. The joint search finds how positions form windows, and which layers can be
skipped. Groups inside one block are hidden channels, attention heads, widths of attention's values, and kernels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tailor_ir.axes import Axis, BatchAxis, Channels, Fixed, Kernel, Product, groups_of, spatial_in
from tailor_ir.dims import Windows
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.structure.propagation import AxisMap, Resolutions, propagate
from tailor_ir.structure.segments import Block, depthwise, find_residuals, find_segments, reads_entry_alone


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


MAIN_KINDS = frozenset(
    ("Attention", "FFN", "Layer", "MBConv", "DepthwiseSeparable", "Bottleneck", "BasicBlock", "Residual", "Transformer")
)
LAYOUT = frozenset(("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive blocks over the same axes; the first may read other axes. `trailing` blocks at the end may be skipped.

    `headed`: a layer directly before the first block makes the stage's axes, and stays if a single block is skipped.
    """

    name: str
    blocks: tuple[Block, ...]
    headed: bool = False

    @property
    def trailing(self) -> int:
        """Number of blocks at the end that can be skipped without emptying the stage."""
        count = 0
        for block in reversed(self.blocks):
            if not block.skippable:
                break
            count += 1
        return count if self.headed and len(self.blocks) == 1 else min(count, len(self.blocks) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """The whole network as blocks in order, and the stages among them."""

    blocks: tuple[Block, ...]
    stages: tuple[Stage, ...]
    stem: tuple[Block, ...]
    carriers: Mapping[int, frozenset[str]]  # channel group -> the computed values that have it


def repeats(graph: Graph, regions: Regions) -> tuple[tuple[str, str], ...]:
    """(entry, exit) of plain blocks with weights that keep the shape of their operand, for networks without sums."""
    return tuple(
        (block.entry, block.exit)
        for block in regions.blocks
        if not block.nested
        and any(node.op in ("Conv", "Linear") for node in block.nodes)
        and reads_entry_alone(block.nodes, block.entry, graph)
        and graph.shapes[block.entry] == graph.shapes[block.exit]
    )


def find_regions(graph: Graph, axis_map: AxisMap, joins: Sequence[tuple[str, str]] = ()) -> Regions:
    """Blocks and stages of a network. `joins`: (entry, exit) of plain blocks that can be skipped if the axes agree."""
    segments = find_segments(graph, axis_map)
    carriers = carriers_of(graph, axis_map)
    joined = [replace(block, kind=_kind(block, axis_map, carriers)) for block in _join(segments, axis_map)]
    whole = _wrap_layouts(joined, axis_map)
    blocks = [_needed(_layer(block, axis_map, joins), graph) for block in _pair_alternating(whole)]
    runs = _runs(blocks, axis_map)
    first = next((i for i, block in enumerate(blocks) if block.kind in MAIN_KINDS), 0)
    stem = tuple(blocks[:first])
    for index, block in enumerate(blocks):
        if not block.skippable:
            blocks[index], nested = _unnest(block, graph, axis_map, carriers)
            runs += [(chain, True) for chain in nested]
            runs = [([blocks[index] if b is block else b for b in run], headed) for run, headed in runs]
            blocks += [b for chain in nested for b in chain]
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    blocks = sorted((block for block in blocks if block.nodes), key=lambda block: position[block.nodes[0].name])
    runs.sort(key=lambda run: position[run[0][0].nodes[0].name])
    return Regions(
        blocks=tuple(blocks),
        stages=tuple(
            Stage(name=f"stage.{i}", blocks=tuple(run), headed=headed) for i, (run, headed) in enumerate(runs, start=1)
        ),
        stem=stem,
        carriers=carriers,
    )


def _layer(block: Block, axis_map: AxisMap, joins: Sequence[tuple[str, str]]) -> Block:
    same = (block.entry, block.exit) in joins and axis_map.axes[block.entry] == axis_map.axes[block.exit]
    return replace(block, skippable=True, kind="Layer") if same and not block.skippable else block


def _needed(block: Block, graph: Graph) -> Block:
    """Mark a block that gives further outputs of the network, or only outputs, as present in every SubNet."""
    given = {output for node in block.nodes for output in node.outputs}
    further = given.intersection(graph.outputs) - {block.exit}
    leaves = block.skippable and not further and block.entry != block.exit
    return replace(block, skippable=leaves, kind=block.kind if leaves or block.kind != "Layer" else "Plain")


def _runs(blocks: Sequence[Block], axis_map: AxisMap) -> list[tuple[list[Block], bool]]:
    """Runs of blocks of known kinds over the same axes, and whether a convolution directly before makes these axes."""
    runs: list[tuple[list[Block], bool]] = []
    previous: Block | None = None
    for block in blocks:
        if block.kind in MAIN_KINDS:
            same = previous is not None and axis_map.axes[previous.exit] == axis_map.axes[block.exit]
            if runs and same and previous is runs[-1][0][-1]:
                runs[-1][0].append(block)
            else:
                headed = previous is not None and same and axis_map.axes[previous.entry] != axis_map.axes[previous.exit]
                runs.append(([block], headed))
        previous = block
    return runs


def _unnest(
    block: Block, graph: Graph, axis_map: AxisMap, carriers: Mapping[int, frozenset[str]]
) -> tuple[Block, list[list[Block]]]:
    """A block without the chains of residual blocks inside it, and these chains."""
    chains = []
    for chain in find_residuals(graph, axis_map, block.nodes):
        inner = [
            Block(nodes=r.nodes, entry=r.entry, exit=r.exit, residual=True, skippable=True, nested=True) for r in chain
        ]
        named = _pair_alternating([replace(b, kind=_kind(b, axis_map, carriers)) for b in inner])
        chains.append(named)
    taken = {node.name for chain in chains for inner in chain for node in inner.nodes}
    return replace(block, nodes=tuple(node for node in block.nodes if node.name not in taken)), chains


def _pointwise(node: Node, axis_map: AxisMap) -> bool:
    return node.op == "Conv" and all(axis.size == 1 for axis in axis_map.axes[node.inputs[1]][2:])


def _expanded_groups(segments: Sequence[Block], axis_map: AxisMap) -> frozenset[int]:
    """Groups between a pointwise expansion and its projection, with a depthwise convolution inside."""
    streams = {g for s in segments if s.residual or _is_unit(s, axis_map) for g in groups_of(axis_map.axes[s.exit])}
    nodes = [node for segment in segments for node in segment.nodes if node.op == "Conv"]
    inside = {g for n in nodes if depthwise(n, axis_map) for g in groups_of(axis_map.axes[n.outputs[0]])}
    producers = [n for n in nodes if not depthwise(n, axis_map)]
    widened = {g for n in producers if not _pointwise(n, axis_map) for g in groups_of(axis_map.axes[n.outputs[0]][1:2])}
    return frozenset(inside - streams - widened)


def _is_unit(segment: Block, axis_map: AxisMap) -> bool:
    """Whether a segment has depthwise convolutions followed by one that mixes channels: parallel branches."""
    convolutions = [node for node in segment.nodes if node.op == "Conv"]
    found = [depthwise(node, axis_map) for node in convolutions]
    return any(found) and not found[-1]


def _join(segments: list[Block], axis_map: AxisMap) -> list[Block]:
    expanded = _expanded_groups(segments, axis_map)
    result: list[Block] = []
    open_depthwise = False
    for segment in segments:
        first = segment.nodes[0]
        continues = bool(result) and (
            bool(groups_of(axis_map.axes[segment.entry]) & expanded)
            or open_depthwise
            or (first.op == "BatchNormalization" and not result[-1].skippable)
        )
        if continues:
            last = result[-1]
            result[-1] = Block(nodes=last.nodes + segment.nodes, entry=last.entry, exit=segment.exit)
        else:
            result.append(segment)
        if segment.residual or _is_unit(segment, axis_map):
            open_depthwise = False
        elif any(depthwise(node, axis_map) for node in segment.nodes):
            open_depthwise = True
        elif first.op == "Conv":
            open_depthwise = False
    return result


def _kind(block: Block, axis_map: AxisMap, carriers: Mapping[int, frozenset[str]]) -> str:
    convolutions = [node for node in block.nodes if node.op == "Conv"]
    if any(depthwise(node, axis_map) for node in convolutions):
        return "MBConv" if groups_inside(block, axis_map, carriers).hidden else "DepthwiseSeparable"
    if not block.residual:
        return "Plain"
    if any(node.op == "MatMul" for node in block.nodes):
        return "Attention"
    if not convolutions:
        return "FFN" if any(node.op == "Linear" for node in block.nodes) else "Residual"
    if all(_pointwise(node, axis_map) for node in convolutions):
        return "FFN"
    return "Bottleneck" if _pointwise(convolutions[0], axis_map) else "BasicBlock"


def _wrap_layouts(blocks: list[Block], axis_map: AxisMap) -> list[Block]:
    """Join a skippable block with the reshapes before and after it if they undo each other."""
    result: list[Block] = []
    index = 0
    while index < len(blocks):
        block = blocks[index]
        index += 1
        if not block.skippable:
            result.append(block)
            continue
        before = _layout_run(result[::-1])
        after = _layout_run(blocks[index:])
        for left in range(1, before + 1):
            entry = result[-left].entry
            right = next((r for r in range(1, after + 1) if _same(axis_map, entry, blocks[index + r - 1].exit)), 0)
            if right:
                around = (*result[-left:], block, *blocks[index : index + right])
                nodes = tuple(node for part in around for node in part.nodes)
                block = replace(block, nodes=nodes, entry=entry, exit=around[-1].exit)
                del result[-left:]
                index += right
                break
        result.append(block)
    return result


def _layout_run(blocks: Sequence[Block]) -> int:
    """Number of blocks at the beginning that only move elements."""
    count = 0
    while count < len(blocks) and all(node.op in LAYOUT for node in blocks[count].nodes):
        count += 1
    return count


def _same(axis_map: AxisMap, a: str, b: str) -> bool:
    return axis_map.axes[a] == axis_map.axes[b]


def _pair_alternating(blocks: list[Block]) -> list[Block]:
    """Join alternating attention and FFN blocks into Transformer blocks."""
    result: list[Block] = []
    for block in blocks:
        last = result[-1] if result else None
        if last and last.kind == "Attention" and block.kind == "FFN" and last.skippable and block.skippable:
            result[-1] = Block(
                nodes=last.nodes + block.nodes,
                entry=last.entry,
                exit=block.exit,
                residual=True,
                skippable=True,
                kind="Transformer",
            )
        else:
            result.append(block)
    return result


def carriers_of(graph: Graph, axis_map: AxisMap) -> dict[int, frozenset[str]]:
    """Channel group -> the computed values that have it."""
    found: dict[int, set[str]] = {}
    for name in graph.data_values():
        for group in groups_of(axis_map.axes[name]):
            found.setdefault(group, set()).add(name)
    return {group: frozenset(names) for group, names in found.items()}


def groups_inside(block: Block, axis_map: AxisMap, carriers: Mapping[int, frozenset[str]]) -> BlockGroups:
    """The groups inside a block that have choices."""
    boundary = (*axis_map.axes[block.entry], *axis_map.axes[block.exit])
    return find_groups(block.nodes, boundary, axis_map, carriers)


def find_axes_and_regions(graph: Graph, tensors: Tensors) -> tuple[AxisMap, Regions]:
    """Axes and regions of a network. Producers of one value have the same axes; regions are those of the original network.

    With more resolution, windows of positions grow in number or in size, whichever leaves resolutions to choose from. If
    nothing can be skipped, layers that keep the shape get the same axes on both sides, so that they can be skipped; except if
    the network's input or output would then fix their channels.
    """
    windows: Windows = "number"
    same = tuple((each.value, each.producer) for each in graph.alternatives)
    original = graph.original()
    axis_map = propagate(graph, tensors, joins=same)
    sides = () if graph.image is None else graph.positions
    if sides and _choices(axis_map, sides) == 1:
        other = propagate(graph, tensors, "size", same)
        if _choices(other, sides) > 1:
            axis_map, windows = other, "size"
    regions = find_regions(original, axis_map)
    skips = () if any(stage.trailing for stage in regions.stages) else repeats(original, regions)
    if skips:
        skippable = propagate(graph, tensors, windows, same, skips)
        found = find_regions(original, skippable, skips)
        if any(stage.trailing for stage in found.stages):
            return skippable, found
    return axis_map, regions


def _choices(axis_map: AxisMap, sides: Sequence[int]) -> int:
    return 1 if axis_map.resolution_frozen else len(Resolutions(axis_map, sides).proposed())
