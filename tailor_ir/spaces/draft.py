"""A space while it is being proposed (its network, selectors, and variables found so far), and the record of a kind.

A kind of variables fills in its record.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tailor_ir.axes import Channels, groups_of
from tailor_ir.graph import Alternative, Graph, Node
from tailor_ir.ops.conv import explicit_pads
from tailor_ir.spaces.presence import Selection, Sizing, merged
from tailor_ir.spaces.selectors import Choice, NumberChoice, Selectors, Variable
from tailor_ir.structure.propagation import AxisMap
from tailor_ir.structure.regions import Block, BlockGroups, Regions, Stage, groups_inside

HARDWARE_MULTIPLE = 8  # channels are kept in multiples of this if the network's own are
CHANNELS_LAST = ("MatMul", "LayerNormalization", "RMSNormalization")


def make_divisible(value: float, divisor: int) -> int:
    """The multiple of `divisor` nearest to `value`, not below 90 % of it. Source: MobileNetV2 (CVPR 2018), reference code."""
    result = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return result if result >= 0.9 * value else result + divisor


def channel_multiple(size: int, most: int = HARDWARE_MULTIPLE) -> int:
    """The largest power of two up to `most` that divides a group's full size."""
    return next(d for d in (HARDWARE_MULTIPLE, 4, 2, 1) if d <= most and size % d == 0)


def kept_elements(value: float, full: int, unit: int = 1, most: int = HARDWARE_MULTIPLE) -> int:
    """Kept elements, about `value`, of a group of `full` elements of `unit` channels each.

    most: the largest multiple that channels are kept in.
    """
    channels = min(full * unit, make_divisible(value * unit, channel_multiple(full * unit, most)))
    return -(-channels // unit)


def plain_number(value: float) -> NumberChoice:
    """A whole number as an int, any other number unchanged."""
    return int(value) if value == int(value) else value


@dataclass(frozen=True, slots=True)
class ChannelGrain:
    """Granularity of the channels of a network.

    multiple: channels are kept in multiples of it, or of a smaller power of two if a group's own size requires it. fine:
    propose more shares of channels than usual.
    """

    multiple: int = HARDWARE_MULTIPLE
    fine: bool = False


@dataclass(frozen=True, slots=True)
class NamedBlock:
    """A block in its stage, the prefix of its variables' names, and the groups inside the block."""

    prefix: str
    block: Block
    groups: BlockGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWidth:
    """The width of a stream of channels: `sizes[i]` channels for choice i of `variable`. None: a single size."""

    variable: int | None
    sizes: tuple[int, ...]


@dataclass(slots=True)
class Draft:
    """A space under construction, which kinds of variables read and extend.

    graph: the original network. alternatives: other producers of its values. widths: of the groups that have one, whether
    elastic or not.
    """

    graph: Graph
    axis_map: AxisMap
    regions: Regions
    selectors: Selectors
    alternatives: tuple[Alternative, ...] = ()
    grain: ChannelGrain = ChannelGrain()
    variables: list[Variable] = field(default_factory=list)
    widths: dict[int, StreamWidth] = field(default_factory=dict)
    sizings: list[Sizing] = field(default_factory=list)
    selections: dict[str, Selection] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    resolution: int | None = None

    @property
    def input_spatial(self) -> tuple[int, ...]:
        """Height and width of the network's first image, or the length of its token sequences."""
        return self.graph.positions

    def kept(self, value: float, full: int, unit: int = 1) -> int:
        """Kept elements, about `value`, of a group of `full` elements of `unit` channels each, according to the grain."""
        return kept_elements(value, full, unit, self.grain.multiple)

    def named_blocks(self) -> list[NamedBlock]:
        """All blocks of all stages, in order."""
        return [
            NamedBlock(f"{stage.name}.block.{index}", block, groups_inside(block, self.axis_map, self.regions.carriers))
            for stage in self.regions.stages
            for index, block in enumerate(stage.blocks, start=1)
        ]

    def add(self, name: str, kind: str, scope: str, choices: Sequence[Choice]) -> int:
        """Add a variable; return its column."""
        self.variables.append(Variable(name=name, kind=kind, scope=scope, choices=tuple(choices)))
        return len(self.variables) - 1

    def size(self, group: int, variables: tuple[int, ...], sizes: Sequence[int] | Sequence[Sequence[int]]) -> None:
        """Set the sizes of a group over the choices of some variables, in ascending order."""
        assert list(variables) == sorted(variables), variables
        self.sizings.append(Sizing(group=group, variables=variables, sizes=np.asarray(sizes, np.int64)))

    def select(self, value: str, producers: tuple[str, ...], variables: tuple[int, ...], chosen: np.ndarray) -> None:
        """Set the producers of a value over the choices of some variables, in ascending order.

        An earlier selection has priority if it chooses another producer than the value itself.
        """
        assert list(variables) == sorted(variables), variables
        own = Selection(value=value, producers=producers, variables=variables, chosen=chosen)
        earlier = self.selections.get(value)
        self.selections[value] = own if earlier is None else merged(earlier, own)

    # -- questions about the network ---------------------------------------------------------------------------------

    def stream(self, value: str) -> int | None:
        """The channel group of a value; None if it has none, or several."""
        groups = [axis for axis in self.axis_map.axes[value] if isinstance(axis, Channels)]
        return groups[0].group if len(groups) == 1 else None

    def stream_of(self, stage: Stage) -> int | None:
        """The channel group that runs through a stage."""
        return self.stream(stage.blocks[-1].exit)

    def reference(self, block: Block, value: str) -> StreamWidth | None:
        """The width of a value at a block's border; the block's own sizes are relative to it."""
        group = self.stream(value)
        if group is not None and group in self.widths:
            return self.widths[group]
        axes = self.axis_map.axes[value]
        readers = [node.inputs[0] for node in block.nodes if node.op in CHANNELS_LAST]
        last = any(self.axis_map.axes[one] == axes for one in readers)
        sizes = [axis.size for axis in (axes[-1:] if last else axes[1:2])]
        size = self.axis_map.groups[group] if group is not None else sizes[0] if sizes else None
        return StreamWidth(variable=None, sizes=(size,)) if size else None

    def same_size(self, groups: Sequence[int]) -> tuple[int, ...]:
        """The groups of the largest size; other groups keep their sizes."""
        largest = max(self.axis_map.groups[g] for g in groups)
        return tuple(g for g in groups if self.axis_map.groups[g] == largest)

    def padded(self, groups: Sequence[int], cropped: int) -> bool:
        """Whether kernels of these groups can shrink by `cropped` positions: that much padding can be removed."""
        return cropped % 2 == 0 and all(self._can_crop(node, cropped) for node in self._convolutions(groups))

    def _convolutions(self, kernels: Sequence[int]) -> list[Node]:
        axes = self.axis_map.axes
        convolutions = [n for n in self.graph.nodes if n.op == "Conv" and n.inputs[1] in axes]
        return [n for n in convolutions if not groups_of(axes[n.inputs[1]][2:]).isdisjoint(kernels)]

    def _can_crop(self, node: Node, cropped: int) -> bool:
        rank = len(self.axis_map.axes[node.inputs[1]]) - 2
        dilations = node.ints("dilations", (1,) * rank)
        return all(p >= dilations[i % rank] * cropped // 2 for i, p in enumerate(explicit_pads(node, rank)))


VariableScope = Literal["global", "stage", "block"]
Uniform = Literal["resolution", "width", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of variables.

    A kind proposes variables for the whole network, for each stage, for channels outside of stages and blocks, or for each
    block; in this order, and for several kinds in the order of `KINDS`. A proposal adds to the draft a variable and its effect:
    `Draft.size` (a group's sizes) or `Draft.select` (a value's producers).

    phase: position of the kind's choices in progressive training, ascending; None: open from the start. uniform: the multiplier
    of a whole network to which the kind belongs in the baselines that shrink everything alike. divides: its choices are numbers
    of channels or heads. seen: the choice follows from the shapes of a stage, so tables of layers do not repeat it. part: the
    part of a Transformer block by which selectors match the kind's blocks, besides the block's own name.
    """

    name: str
    scope: VariableScope
    phase: int | None
    uniform: Uniform = "other"
    divides: bool = False
    seen: bool = False
    part: str = ""
    of_network: Callable[[Draft], None] | None = None
    of_stage: Callable[[Draft, Stage], None] | None = None
    of_rest: Callable[[Draft, Sequence[NamedBlock]], None] | None = None
    of_block: Callable[[Draft, NamedBlock], None] | None = None
