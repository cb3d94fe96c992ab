"""Equal nodes, equal constants, and what nobody reads."""

from collections.abc import Hashable

from tailor_ir.conversion.draft import OnnxDraft
from tailor_ir.conversion.nodes import OnnxNode

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Operators that give another result each time."""


def is_random(node: OnnxNode) -> bool:
    """Whether two runs differ, or may differ."""
    return bool(node.graphs) or not node.standard or node.op in RANDOM or (node.op == "Dropout" and bool(node.input(2)))


def _meaning(node: OnnxNode) -> Hashable:
    stored = (attribute.SerializeToString(deterministic=True) for attribute in node.attributes.values())
    return node.op, node.inputs, len(node.outputs), tuple(sorted(stored))


def merge_equal_nodes(draft: OnnxDraft) -> int:
    """Nodes that compute what an earlier node computes; how many there were."""
    found: dict[Hashable, OnnxNode] = {}
    count = 0
    for node in draft.in_order():
        if is_random(node):
            continue
        first = found.setdefault(_meaning(node), node)
        if first is node or any(name in draft.kept for name in node.outputs):
            continue
        if [bool(name) for name in first.outputs] != [bool(name) for name in node.outputs]:
            continue
        for old, new in zip(node.outputs, first.outputs, strict=True):
            if old:
                draft.redirect(old, new)
        draft.remove(node)
        count += 1
    return count


def merge_equal_constants(draft: OnnxDraft) -> int:
    """Constants of equal type, shape and values; how many there were more than needed."""
    found: dict[Hashable, str] = {}
    count = 0
    for name, tensor in draft.constants.items():
        if name in draft.kept or not draft.readers(name):
            continue
        key = (tensor.data_type, tuple(tensor.dims), draft.digest(name))
        first = found.setdefault(key, name)
        if first != name:
            draft.redirect(name, first)
            count += 1
    return count


def remove_unread(draft: OnnxDraft) -> int:
    """Nodes none of whose results are read, and results that are not; how many nodes."""
    count = 0
    for node in reversed(draft.in_order()):
        read = [name in draft.kept or bool(draft.readers(name)) for name in node.outputs]
        if not any(read):
            draft.remove(node)
            count += 1
    return count
