"""Kinds `heads` and `v_scale`: attention heads of a block, and the width of attention's values as a multiple of the keys'."""

from tailor_ir.spaces.draft import Draft, NamedBlock
from tailor_ir.spaces.kinds.block import propose_sizes
from tailor_ir.spaces.kinds.record import Kind

VALUE_SHARES = (0.5, 0.75, 1.0)  # proposed, of the network's own width


def _propose_heads(draft: Draft, named: NamedBlock) -> None:
    if named.groups.heads:
        groups = draft.same_size(named.groups.heads)
        full = draft.axis_map.groups[groups[0]]
        proposed = sorted({max(1, full // 2), -(-3 * full // 4), full})
        propose_sizes(draft, HEADS, named, groups, range(1, full + 1), proposed, 1)


def _propose_values(draft: Draft, named: NamedBlock) -> None:
    if named.groups.values:
        groups = draft.same_size(named.groups.values)
        full = draft.axis_map.groups[groups[0]]
        proposed = sorted({draft.kept(share * full, full) for share in VALUE_SHARES})
        propose_sizes(draft, VALUES, named, groups, range(1, full + 1), proposed, named.groups.key_size)


HEADS = Kind(name="heads", scope="block", phase=3, divides=True, part="Attention", of_block=_propose_heads)
VALUES = Kind(name="v_scale", scope="block", phase=3, divides=True, part="Attention", of_block=_propose_values)
