"""Layouts in which steps write and read: which steps work on channels in blocks."""

from collections.abc import Sequence

from tailor_ir.axes import Axis
from tailor_ir.graph import Node
from tailor_ir.memory.layouts import Layout, in_blocks, read_as
from tailor_ir.memory.planning.drafts import Drafts

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
