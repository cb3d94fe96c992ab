"""The steps of a network as a runtime executes them: values read and written, and layouts in memory; also drafts.

A step in planning has the nodes that it may still absorb, and the properties of its values. Layouts state which steps
work on channels in blocks.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from solvers.tables import Derived
from tailor_ir.axes import Axis
from tailor_ir.graph import Graph, Node
from tailor_ir.memory.layouts import Layout, Rules, in_blocks, read_as
from tailor_ir.spaces.presence import Presence, Producers

LAST = 1e6  # after all other positions


@dataclass(slots=True)
class Step:
    """One step, which may still absorb nodes while steps are planned.

    in_place: operands whose memory the result may reuse, the preferred one first. view: the result shares the operand's memory.
    relayout: the step changes the layout; it is a view in SubNets whose operand already has that layout.
    """

    position: float  # of its last node
    unit: Hashable  # `Structure.unit_of`; nodes of other units are not absorbed
    reads: list[str]
    writes: tuple[str, ...]
    wanted: Layout = "plain"  # layout of its inputs
    in_place: tuple[str, ...] = ()
    view: bool = False
    relayout: bool = False
    norms: bool = False  # whether it can still absorb a BatchNorm,
    sums: bool = False  # an addition,
    late: bool = False  # whether it absorbed an addition outside of blocks; the runtime executes such steps last
    activations: frozenset[str] = frozenset()  # or one of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """All steps in order, each with the SubNets that run it; layout, axes and element type of every value of theirs.

    typed_like: value -> the value of the network with the same element type. groups: patches of a convolution -> its groups.
    deciding: value -> the axis that decides on blocks instead of its own (layout "read"). derived: derived columns of extended
    codes: the space's, then further ones.
    """

    steps: tuple[tuple[Step, Presence], ...]
    layouts: Mapping[str, Layout]
    axes: Mapping[str, tuple[Axis, ...]]
    typed_like: Mapping[str, str]
    groups: Mapping[str, int]
    deciding: Mapping[str, Axis]
    derived: tuple[Derived, ...] = ()


@dataclass(slots=True)
class Drafts:
    """The steps of a network so far, in no order, and their values.

    sizes_of: an axis -> its sizes in all SubNets. data: values that depend on the network's input; others are constants, which
    the runtime folds. makers, consumers: as in `Graph`. by_output: the step that writes a value. new_axes: of values that the
    graph does not have, or has with other axes; typed_like: for each of these, a value of the same type. groups and deciding:
    as in `Steps`.
    """

    graph: Graph
    axes: Mapping[str, tuple[Axis, ...]]
    unit_of: Mapping[str, Hashable]
    sources: Producers
    sizes_of: Callable[[Axis], frozenset[int]]
    rules: Rules
    data: frozenset[str] = field(init=False)
    producers: Mapping[str, Node] = field(init=False)
    consumers: Mapping[str, Sequence[Node]] = field(init=False)
    steps: list[Step] = field(default_factory=list)
    by_output: dict[str, Step] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(init=False)
    new_axes: dict[str, tuple[Axis, ...]] = field(default_factory=dict)
    typed_like: dict[str, str] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    deciding: dict[str, Axis] = field(default_factory=dict)
    padded: dict[str, str] = field(default_factory=dict)  # result of a Pad that its reader does -> the Pad's input
    channels_last: set[str] = field(default_factory=set)  # values stored with channels last, although their axes differ
    transposed: dict[str, tuple[int, ...]] = field(default_factory=dict)  # value -> permutation that follows a Split

    def __post_init__(self) -> None:
        self.data, self.consumers = _computed(self.graph), self.graph.consumers()
        self.producers = self.graph.producers()
        self.layouts = dict.fromkeys(self.graph.inputs, "plain")

    def enter(self, draft: Step, layout: Layout) -> None:
        self.steps.append(draft)
        for name in draft.writes:
            self.by_output[name] = draft
            self.layouts[name] = "im2col" if name in self.groups else layout

    def same_axes(self, name: str, other: str) -> bool:
        """Whether two values have equal axes. Image axes are compared by size: one size can be derived in several ways."""
        shape, axes, others = self.graph.shapes[name], self.axes[name], self.axes[other]
        return shape == self.graph.shapes[other] and (axes == others or (len(shape) == 4 and axes[:2] == others[:2]))


def _computed(graph: Graph) -> frozenset[str]:
    """Values that depend on the network's input."""
    found = set(graph.inputs)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return frozenset(found)


FUSED_INTO_CONV = frozenset(("Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"))
PADDED = frozenset(("Relu", "Sigmoid", "Tanh"))  # on blocks, including the padding, if not fused into a convolution
KEEP_BLOCKS = frozenset(("Gelu", "Silu"))  # never fused into a convolution, but computed on its blocks, with padding
POOLS = frozenset(("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"))
REPEATED = (("mode", "nearest"), ("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", "floor"))
"""Attributes of a Resize that runs on blocks: it repeats every position."""


def settled(drafts: Drafts, layout: Layout, channels: Axis) -> Layout:
    """Replace a layout that depends on the number of channels by a fixed one, if all SubNets agree on it."""
    sizes = drafts.sizes_of(channels)
    if layout == "many" and min(sizes) >= drafts.rules.channel_block:
        layout = "aligned"  # one name for equal layouts, so that a value is converted only once
    found = {in_blocks(size, layout, drafts.rules) for size in sizes}
    if len(found) > 1:
        return layout
    return "blocked" if found.pop() else "plain"


def conv_layouts(drafts: Drafts, node: Node, channels: Axis) -> tuple[Layout, Layout]:
    """Layouts that a convolution writes and reads. channels: the axis of the channels that it reads."""
    groups = node.int("group", 1)
    written = settled(drafts, read_as(groups), channels)
    if written == "read":
        drafts.deciding[node.outputs[0]] = channels
    return written, written if groups > 1 else settled(drafts, "many", channels)


def blocked_conv(drafts: Drafts, node: Node) -> bool:
    """Whether a convolution works on blocks of channels. Source: onnxruntime, NchwcTransformer."""
    block, shape = drafts.rules.channel_block, drafts.graph.shapes[node.inputs[1]]
    if block == 1 or len(shape) != 4:
        return False
    groups = node.int("group", 1)
    depthwise = shape[1] == 1 and shape[0] == groups
    return groups == 1 or depthwise or (shape[1] % block == 0 and shape[0] // groups % block == 0)


def blocked_pool(drafts: Drafts, node: Node) -> bool:
    """Whether a pooling works on blocks of channels if they are whole, whatever the layout of its input."""
    return (
        node.op in POOLS
        and len(node.outputs) == 1
        and len(drafts.graph.shapes[node.inputs[0]]) == 4 < drafts.rules.channel_block
    )


def keeps_blocks(drafts: Drafts, node: Node, inputs: Sequence[str]) -> bool:
    """Whether a node works on blocks, given that all its operands are in blocks."""
    same = all(drafts.same_axes(name, inputs[0]) for name in inputs)
    if node.op in ("Add", "Mul"):
        return same and len(inputs) == 2
    if node.op == "Concat":
        block = drafts.rules.channel_block
        return node.int("axis", 0) == 1 and all(drafts.graph.shapes[name][1] % block == 0 for name in inputs)
    if node.op in KEEP_BLOCKS:
        return True
    if node.op == "Resize":
        return all(node.attribute(name) == wanted for name, wanted in REPEATED)
    return len(inputs) == 1 and (node.op in POOLS or node.op in FUSED_INTO_CONV or node.op == "BatchNormalization")
