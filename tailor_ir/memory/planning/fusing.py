"""Nodes that are fused into the step before or after them."""

from collections.abc import Sequence
from math import prod

from tailor_ir.graph import Node
from tailor_ir.memory.planning.drafts import Drafts, OpenStep


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


def _merge(drafts: Drafts, before: OpenStep, node: Node, inputs: Sequence[str], name: str, position: int) -> None:
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
    maker, users = drafts.makers.get(inputs[0]), drafts.consumers.get(node.outputs[0], ())
    after = maker is not None and maker.op == "MatMul" and len(drafts.consumers[inputs[0]]) == 1
    return numbers and (after or (bool(users) and all(user.op == "MatMul" for user in users)))
