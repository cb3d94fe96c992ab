"""Transposes: views, and transposes that move behind other steps."""

from tailor_ir.graph import Node
from tailor_ir.memory.planning.drafts import Drafts, OpenStep

CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def move_channels(drafts: Drafts, node: Node, draft: OpenStep) -> None:
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
            drafts.enter(OpenStep(draft.position - 0.5, None, [operand], (new,)), "plain")
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


def transpose_results(drafts: Drafts, node: Node, draft: OpenStep) -> None:
    """Transpose each result of a Split or Squeeze separately, unless its only reader is a transpose."""
    order = drafts.transposed[node.inputs[0]]
    if node.op == "Split":
        draft.writes = tuple(f"{name}/split" for name in draft.writes)
        for name in filter(None, node.outputs):
            part = f"{name}/split"
            drafts.layouts[part], drafts.typed_like[part], drafts.by_output[part] = "plain", name, draft
            drafts.new_axes[part] = tuple(drafts.axes[name][order.index(axis)] for axis in range(len(order)))
            drafts.enter(OpenStep(draft.position, draft.unit, [part], (name,), view=_waits(drafts, name)), "plain")
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
