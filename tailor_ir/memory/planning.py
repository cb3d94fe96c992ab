"""The steps that a runtime executes for a network, in order: fused nodes, views, moved transposes, layout changes.

The rules are ONNX Runtime's on a CPU with all graph optimisations, as observed in its optimised files and in its
requests to the allocator (`benchmarks/memory.py`); `Rules` switches off the rules that another runtime does not follow:

- a convolution absorbs its BatchNorm, the addition of a residual (written over that residual) and an activation; a
  convolution or average pooling does the padding before it;
- convolutions and poolings work on channels in blocks, and so do activations after them; if a neighbour does not, the
  tensor is converted; a convolution copies its patches if it reads channels that are no multiple of four, or if its
  groups fill no blocks;
- reshapes are views, and so are transposes that only move the channels; a matrix product does transposes and scales
  itself; a transpose before a split is moved behind the split;
- linear maps work on rows (positions, channels); an activation overwrites its input if nothing else reads it later;
- steps run depth first from the outputs; among several inputs, the input defined last comes first; the file's own nodes
  are defined before nodes on blocks, then come conversions out of blocks (in the runtime in an order that differs from
  session to session), and last convolutions that absorbed an addition outside of blocks.

All steps are found one node after the other, then changes of layout, then their order.
"""

from collections.abc import Callable, Sequence
from math import prod

from tailor_ir.axes import Axis
from tailor_ir.graph import Node
from tailor_ir.memory.layouts import IN_PLACE, Layout, Rules
from tailor_ir.memory.steps import (
    FUSED_INTO_CONV,
    KEEP_BLOCKS,
    LAST,
    PADDED,
    Drafts,
    Step,
    Steps,
    blocked_conv,
    blocked_pool,
    conv_layouts,
    keeps_blocks,
    settled,
)
from tailor_ir.ops.elementwise import ACTIVATIONS
from tailor_ir.spaces.presence import DerivedColumns, Selection, find_needs
from tailor_ir.spaces.space import Structure


def ordered(drafts: Drafts) -> list[Step]:
    """Steps depth first from the outputs. Among several inputs, the one with the last position comes first."""
    read = {source for draft in drafts.steps for source in _read_by(drafts, draft)}
    leaves = [draft for draft in drafts.steps if read.isdisjoint(draft.writes)]
    stack = [(draft, False) for draft in sorted(leaves, key=lambda d: d.position)]
    seen: set[int] = set()
    ordered: list[Step] = []
    while stack:
        draft, done = stack.pop()
        if done:
            ordered.append(draft)
        elif id(draft) not in seen:
            seen.add(id(draft))
            stack.append((draft, True))
            producers = {id(d): d for name in _read_by(drafts, draft) if (d := drafts.by_output.get(name)) is not None}
            stack += [(producer, False) for producer in sorted(producers.values(), key=lambda d: d.position)]
    return ordered


def _read_by(drafts: Drafts, draft: Step) -> list[str]:
    """The values that a step reads, and their other producers in some SubNets."""
    return [source for name in draft.reads for source in (name, *(other for other, _ in drafts.sources.all_of(name)))]


def taken_up(drafts: Drafts, node: Node, inputs: Sequence[str], position: int) -> bool:
    """Whether the node was absorbed by the step before it."""
    for name in _operands(drafts, node, inputs):
        before = drafts.by_output.get(name)
        if (
            before is None
            or before.writes[0] != name
            or (len(before.writes) > 1 and before.writes[1] not in drafts.groups)
            or before.unit != drafts.unit_of[node.name]
            or len(drafts.consumers[name]) > 1
            or name in drafts.graph.outputs
        ):
            continue
        if node.op == "BatchNormalization":
            fits = before.norms
        elif node.op == "Add":
            fits = before.sums and len(inputs) == 2 and _residual(drafts, inputs, name) is not None
        else:
            fits = node.op in before.activations
        if fits:
            _merge(drafts, before, node, inputs, name, position)
            return True
    return False


def _operands(drafts: Drafts, node: Node, inputs: Sequence[str]) -> list[str]:
    """The operands in the order in which they are tried: outside of blocks, the second convolution adds the first."""
    names = list(dict.fromkeys(inputs))
    return names if node.op != "Add" or drafts.layouts[names[0]] == "blocked" else names[::-1]


def _residual(drafts: Drafts, inputs: Sequence[str], name: str) -> str | None:
    """The value to add to `name`; None if it has other axes, or if `name` is in blocks and the value is not."""
    (other,) = [i for i in inputs if i != name] or [name]
    alike = drafts.layouts[name] != "blocked" or drafts.layouts[other] == "blocked"
    return other if other != name and alike and drafts.same_axes(other, name) else None


def _merge(drafts: Drafts, before: Step, node: Node, inputs: Sequence[str], name: str, position: int) -> None:
    if node.op == "Add":
        other = _residual(drafts, inputs, name)
        assert other is not None
        before.reads.append(other)
        before.in_place = (other,)
        before.late = drafts.layouts[name] != "blocked"
    before.norms, before.sums = False, before.sums and node.op == "BatchNormalization"
    if node.op in before.activations:
        before.activations = frozenset()
    layout = drafts.layouts.pop(name)
    del drafts.by_output[name]
    if name in drafts.deciding:
        drafts.deciding[node.outputs[0]] = drafts.deciding.pop(name)
    before.writes, before.position = (node.outputs[0], *before.writes[1:]), position
    drafts.by_output[before.writes[0]] = before
    drafts.layouts[before.writes[0]] = layout


def pads_for_another(drafts: Drafts, node: Node) -> bool:
    """Whether the convolution or pooling that reads a padding does it itself. Source: onnxruntime, PadFusion.

    Requires an explicit padding value, which is assumed to be zero. A padding that crops keeps or shrinks its sizes.
    """
    users = drafts.consumers.get(node.outputs[0], ())
    stated = drafts.rules.channel_block > 1 and node.op == "Pad" and len(node.inputs) > 2 and bool(node.inputs[2])
    if not stated or node.attribute("mode", "constant") != "constant" or len(users) != 1:
        return False
    before, after = drafts.graph.shapes[node.inputs[0]], drafts.graph.shapes[node.outputs[0]]
    grown = before[:2] == after[:2] and before != after and all(a <= b for a, b in zip(before, after, strict=True))
    read_alone = node.outputs[0] not in drafts.graph.outputs and node.outputs[0] not in drafts.sources.elsewhere
    return grown and users[0].op in ("AveragePool", "Conv") and read_alone


def scales_product(drafts: Drafts, node: Node, inputs: Sequence[str]) -> bool:
    """Whether the node multiplies by one number, and a matrix product before or after it absorbs the factor."""
    if node.op not in ("Mul", "Div") or len(inputs) != 1:
        return False
    numbers = all(prod(drafts.graph.shapes[name]) == 1 for name in node.inputs if name not in drafts.data)
    producer, users = drafts.producers.get(inputs[0]), drafts.consumers.get(node.outputs[0], ())
    after = producer is not None and producer.op == "MatMul" and len(drafts.consumers[inputs[0]]) == 1
    return numbers and (after or (bool(users) and all(user.op == "MatMul" for user in users)))


CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def move_channels(drafts: Drafts, node: Node, draft: Step) -> None:
    """Keep the channels last if all operands have them last; else transpose the operands that do."""
    (name,) = node.outputs
    operands = [i for i in draft.reads if drafts.axes[i] == drafts.axes[name]]
    if operands and drafts.channels_last.issuperset(operands):
        drafts.channels_last.add(name)
        drafts.new_axes[name] = tuple(drafts.axes[name][i] for i in CHANNELS_LAST)
        return
    for operand in drafts.channels_last.intersection(operands):
        new = f"{operand}/first"
        if new not in drafts.layouts:
            drafts.typed_like[new], drafts.new_axes[new] = operand, drafts.axes[operand]
            drafts.enter(Step(draft.position - 0.5, None, [operand], (new,)), "plain")
        draft.reads[draft.reads.index(operand)] = new


def is_view(drafts: Drafts, node: Node) -> bool:
    """Whether the runtime executes no step for this transpose.

    A transpose that the runtime moves behind the following Split is recorded in `transposed`.
    """
    order, users = node.ints("perm"), drafts.consumers.get(node.outputs[0], ())
    if order == CHANNELS_FIRST:
        drafts.channels_last.add(node.outputs[0])
    if order in (CHANNELS_FIRST, CHANNELS_LAST):
        return True
    if node.inputs[0] in drafts.transposed:
        return False
    if len(users) == 1 and users[0].op == "Split" and node.outputs[0] not in drafts.graph.outputs:
        drafts.transposed[node.outputs[0]] = order
        return True
    *rest, before, last = range(len(order))
    return order == (*rest, last, before) and all(user.op == "MatMul" for user in users)


def transpose_results(drafts: Drafts, node: Node, draft: Step) -> None:
    """Transpose each result of a Split or Squeeze separately, unless its only reader is a transpose."""
    order = drafts.transposed[node.inputs[0]]
    if node.op == "Split":
        draft.writes = tuple(f"{name}/split" for name in draft.writes)
        for name in filter(None, node.outputs):
            part = f"{name}/split"
            drafts.layouts[part], drafts.typed_like[part], drafts.by_output[part] = "plain", name, draft
            drafts.new_axes[part] = tuple(drafts.axes[name][order.index(axis)] for axis in range(len(order)))
            drafts.enter(Step(draft.position, draft.unit, [part], (name,), view=_waits(drafts, name)), "plain")
            if _waits(drafts, name):
                drafts.transposed[name] = order
    elif _waits(drafts, node.outputs[0]):
        drafts.transposed[node.outputs[0]] = order


def _waits(drafts: Drafts, name: str) -> bool:
    """Whether the only reader of a value, also through a Squeeze, is a transpose."""
    users = drafts.consumers.get(name, ())
    if len(users) != 1 or name in drafts.graph.outputs:
        return False
    return users[0].op == "Transpose" or (users[0].op == "Squeeze" and _waits(drafts, users[0].outputs[0]))


def add_relayouts(drafts: Drafts) -> None:
    """Add the steps that change layouts: one step for each value and layout, shared by all its readers."""
    for draft in tuple(drafts.steps):
        renamed = {
            name: _relayout(drafts, name, draft.wanted, _made_at(drafts, name, draft))
            for name in draft.reads
            if _may_differ(drafts, name, draft.wanted)
        }
        draft.reads = [renamed.get(name, name) for name in draft.reads]
        draft.in_place = tuple(renamed.get(name, name) for name in draft.in_place)


def _relayout(drafts: Drafts, name: str, wanted: Layout, position: float) -> str:
    new = f"{name}/{wanted}"
    if new not in drafts.layouts:
        drafts.enter(Step(position, None, [name], (new,), relayout=True), wanted)
        moved = [u.outputs[0] for u in drafts.consumers.get(name, ()) if u.op == "Transpose" and is_view(drafts, u)]
        drafts.typed_like[new] = name
        drafts.new_axes[new] = drafts.axes[moved[0] if moved and wanted == "plain" else name]
    return new


def _made_at(drafts: Drafts, name: str, reader: Step) -> float:
    """The position of a change of layout: into blocks directly before the reader, out of blocks after all other steps."""
    if drafts.layouts[name] in ("plain", "rows"):
        return reader.position - 0.5
    return LAST + drafts.by_output[name].position


def _may_differ(drafts: Drafts, name: str, wanted: Layout) -> bool:
    """Whether the producer's layout of a value differs from the reader's in some SubNet."""
    layouts = {drafts.layouts[source] for source, _ in drafts.sources.all_of(name)}
    return any(own != wanted and {own, wanted} != {"plain", "rows"} for own in layouts)


VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
MOVABLE = ACTIVATIONS | {"Add", "Div", "Mul", "Sub"}
FUSED_INTO_LINEAR = frozenset(("LeakyRelu", "Relu", "Sigmoid", "Tanh"))
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
    axes = {name: drafts.new_axes.get(name) or drafts.axes[name] for name in drafts.layouts}
    typed_like = {name: drafts.typed_like.get(name, name) for name in drafts.layouts}
    return Steps(
        steps=tuple(zip(found, needs.steps, strict=True)),
        layouts=drafts.layouts,
        axes=axes,
        typed_like=typed_like,
        groups=drafts.groups,
        deciding=drafts.deciding,
        derived=tuple(columns.derived),
    )


def _add(drafts: Drafts, node: Node, inputs: tuple[str, ...], position: int) -> None:
    draft = Step(position, drafts.unit_of[node.name], list(dict.fromkeys(inputs)), tuple(filter(None, node.outputs)))
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


def _add_inner(drafts: Drafts, node: Node, draft: Step, layout: Layout) -> None:
    """Add one step of an operator that the runtime executes as several; the next step reads its result, too."""
    (name,) = node.outputs
    inner = f"{name}/inner {layout}"
    drafts.typed_like[inner], drafts.new_axes[inner] = name, drafts.axes[name]
    drafts.enter(Step(draft.position - 0.5, draft.unit, draft.reads[-1:], (inner,)), layout)
    draft.reads.append(inner)


def _copies_patches(drafts: Drafts, node: Node) -> bool:
    """Whether the runtime copies patches for a convolution that works on no blocks (im2col). 1 × 1 kernels need no copy."""
    direct = (
        not any(node.ints("pads", (0,)))
        and set(node.ints("strides", (1,))) == {1}
        and set(drafts.graph.shapes[node.inputs[1]][2:]) == {1}
    )
    return not direct


def _add_patches(drafts: Drafts, node: Node, draft: Step) -> None:
    name = f"{node.outputs[0]}/patches"
    drafts.typed_like[name], drafts.groups[name] = node.outputs[0], node.int("group", 1)
    drafts.new_axes[name] = (*drafts.axes[node.inputs[1]], *drafts.axes[node.outputs[0]][2:])
    draft.writes = (*draft.writes, name)
