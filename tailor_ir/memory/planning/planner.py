"""All steps of a network: one node after the other, then changes of layout, then their order."""

from collections.abc import Callable, Sequence

from tailor_ir.axes import Axis
from tailor_ir.graph import Node
from tailor_ir.memory.layouts import Layout, Rules
from tailor_ir.memory.planning.blocks import (
    FUSED_INTO_CONV,
    KEEP_BLOCKS,
    PADDED,
    blocked_conv,
    blocked_pool,
    conv_layouts,
    keeps_blocks,
    settled,
)
from tailor_ir.memory.planning.drafts import LAST, Drafts, OpenStep
from tailor_ir.memory.planning.fusing import pads_for_another, scales_product, taken_up
from tailor_ir.memory.planning.order import ordered
from tailor_ir.memory.planning.relayouts import add_relayouts
from tailor_ir.memory.planning.transposes import is_view, move_channels, transpose_results
from tailor_ir.memory.steps import Steps
from tailor_ir.ops.elementwise import ACTIVATIONS
from tailor_ir.spaces.needs import DerivedColumns, find_needs
from tailor_ir.spaces.presence import Selection
from tailor_ir.spaces.structure import Structure

VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
MOVABLE = ACTIVATIONS | {"Add", "Div", "Mul", "Sub"}
FUSED_INTO_LINEAR = frozenset(("LeakyRelu", "Relu", "Sigmoid", "Tanh"))
IN_PLACE = frozenset(
    ("Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Selu", "Sigmoid", "Softmax", "Softplus")
).union(("Softsign", "Tanh", "ThresholdedRelu"))
FUNCTIONS = frozenset(("HardSwish", "Mish"))  # run as two steps, if not fused into a convolution


def find_steps(structure: Structure, sizes_of: Callable[[Axis], frozenset[int]], rules: Rules) -> Steps:
    """The steps of all SubNets. sizes_of: an axis -> its sizes in all SubNets."""
    unit_of, space = structure.unit_of(), structure.space
    drafts = Drafts(structure.graph, structure.axis_map.axes, unit_of, space.sources, sizes_of, rules)
    return _plan(drafts, space.selections, DerivedColumns.of(len(space.variables), space.derived))


def _plan(drafts: Drafts, selections: Sequence[Selection], columns: DerivedColumns) -> Steps:
    """All steps, each with its presence. columns: as in `find_needs`."""
    for position, node in enumerate(drafts.graph.nodes):
        if not drafts.data.isdisjoint(node.outputs):
            inputs = tuple(drafts.padded.get(name, name) for name in node.inputs if name in drafts.data)
            if pads_for_another(drafts, node):
                drafts.padded[node.outputs[0]] = inputs[0]
            elif not taken_up(drafts, node, inputs, position):
                _add(drafts, node, inputs, position)
    for position, draft in enumerate(ordered(drafts), start=len(drafts.graph.nodes)):
        if drafts.layouts[draft.writes[0]] not in ("plain", "rows"):  # created last, in this order
            draft.position = position
    add_relayouts(drafts)
    for position, draft in enumerate(ordered(drafts)):
        if draft.late:
            draft.position = 2 * LAST + position
    found = ordered(drafts)
    needs = find_needs([(draft.reads, draft.writes) for draft in found], drafts.graph.outputs, selections, columns)
    steps = tuple(draft.closed(present) for draft, present in zip(found, needs.steps, strict=True))
    axes = {name: drafts.new_axes.get(name) or drafts.axes[name] for name in drafts.layouts}
    typed_like = {name: drafts.typed_like.get(name, name) for name in drafts.layouts}
    return Steps(
        steps=steps,
        layouts=drafts.layouts,
        axes=axes,
        typed_like=typed_like,
        groups=drafts.groups,
        deciding=drafts.deciding,
        derived=tuple(columns.derived),
    )


def _add(drafts: Drafts, node: Node, inputs: tuple[str, ...], position: int) -> None:
    draft = OpenStep(
        position, drafts.unit_of[node.name], list(dict.fromkeys(inputs)), tuple(filter(None, node.outputs))
    )
    layout: Layout = "plain"
    if node.op == "Conv" and node.inputs[1] not in drafts.data:
        draft.norms, draft.activations = True, FUSED_INTO_CONV
        draft.sums = drafts.rules.channel_block > 1
        if blocked_conv(drafts, node):
            layout, draft.wanted = conv_layouts(drafts, node, drafts.axes[inputs[0]][1])
        if layout != "blocked" and _copies_patches(drafts, node):
            _add_patches(drafts, node, draft)
            if layout != "plain":
                drafts.deciding[draft.writes[1]] = drafts.axes[inputs[0]][1]
    elif blocked_pool(drafts, node):
        layout = draft.wanted = settled(drafts, "whole", drafts.axes[inputs[0]][1])
    elif inputs and all(drafts.layouts[name] == "blocked" for name in inputs) and keeps_blocks(drafts, node, inputs):
        padded = node.op in ("Add", "Resize") or node.op in KEEP_BLOCKS or node.op in PADDED
        layout = draft.wanted = "blocked" if padded else settled(drafts, "whole", drafts.axes[inputs[0]][1])
    elif node.op == "Linear":
        layout, draft.norms = "rows", len(drafts.graph.shapes[node.outputs[0]]) == 2
        draft.activations = FUSED_INTO_LINEAR
    elif node.op in VIEWS or (node.op == "Transpose" and is_view(drafts, node)) or scales_product(drafts, node, inputs):
        draft.view = True
    if node.op in MOVABLE and layout == "plain":
        move_channels(drafts, node, draft)
    if node.op in IN_PLACE:
        draft.in_place = tuple(draft.reads)
    if node.op in FUNCTIONS and layout == "plain":
        _add_inner(drafts, node, draft, "plain")
    if node.op == "GroupNorm":  # normalised in another shape, then scaled, then shifted
        _add_inner(drafts, node, draft, "rows")
        _add_inner(drafts, node, draft, "plain")
        draft.reads = draft.reads[-1:]
    drafts.enter(draft, layout)
    if node.op in ("Split", "Squeeze") and inputs[0] in drafts.transposed:
        transpose_results(drafts, node, draft)


def _add_inner(drafts: Drafts, node: Node, draft: OpenStep, layout: Layout) -> None:
    """Add one step of an operator that the runtime executes as several; the next step reads its result, too."""
    (name,) = node.outputs
    inner = f"{name}/inner {layout}"
    drafts.typed_like[inner], drafts.new_axes[inner] = name, drafts.axes[name]
    drafts.enter(OpenStep(draft.position - 0.5, draft.unit, draft.reads[-1:], (inner,)), layout)
    draft.reads.append(inner)


def _copies_patches(drafts: Drafts, node: Node) -> bool:
    """Whether the runtime copies patches for a convolution that works on no blocks (im2col). 1 × 1 kernels need no copy."""
    direct = (
        not any(node.ints("pads", (0,)))
        and set(node.ints("strides", (1,))) == {1}
        and set(drafts.graph.shapes[node.inputs[1]][2:]) == {1}
    )
    return not direct


def _add_patches(drafts: Drafts, node: Node, draft: OpenStep) -> None:
    name = f"{node.outputs[0]}/patches"
    drafts.typed_like[name], drafts.groups[name] = node.outputs[0], node.int("group", 1)
    drafts.new_axes[name] = (*drafts.axes[node.inputs[1]], *drafts.axes[node.outputs[0]][2:])
    draft.writes = (*draft.writes, name)
