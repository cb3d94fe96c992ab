"""Kinds `heads` and `v_scale`: attention heads of a block, and the width of attention's values as a multiple of the keys'."""

from collections.abc import Sequence

from tailor_ir.spaces.draft import Draft, NamedBlock
from tailor_ir.spaces.kinds.block import add_sizes, propose_sizes
from tailor_ir.spaces.kinds.record import Kind
from tailor_ir.spaces.kinds.width import labels_of
from tailor_ir.structure.block_groups import find_groups

VALUE_SHARES = (0.5, 0.75, 1.0)  # proposed, as shares of the network's own width


def _propose_shared(draft: Draft, blocks: Sequence[NamedBlock]) -> None:
    """Heads that several blocks share, for example by shared weights: one variable for those of a stage."""
    everything = find_groups(draft.graph.nodes, (), draft.axis_map, draft.regions.carriers)
    shared = set(everything.heads) - {group for named in blocks for group in named.groups.heads}
    labels = labels_of(draft) if shared else {}
    found: dict[str, list[int]] = {}
    for group in sorted(shared):
        makers = [labels[name] for name in draft.regions.carriers[group] if name in labels]
        found.setdefault(min(makers)[1], []).append(group)
    for label, groups in found.items():
        name = f"{label}.{HEADS.name}"
        asked = draft.selectors.choices(name)
        if asked is not None:
            groups = list(draft.same_size(groups))
            full = draft.axis_map.groups[groups[0]]
            add_sizes(draft, HEADS, name, asked or _proposed_heads(full), groups, range(1, full + 1), 1)


def _proposed_heads(full: int) -> Sequence[int]:
    return sorted({max(1, full // 2), -(-3 * full // 4), full})


def _propose_heads(draft: Draft, named: NamedBlock) -> None:
    if named.groups.heads:
        groups = draft.same_size(named.groups.heads)
        full = draft.axis_map.groups[groups[0]]
        propose_sizes(draft, HEADS, named, groups, range(1, full + 1), _proposed_heads(full), 1)


def _propose_values(draft: Draft, named: NamedBlock) -> None:
    if named.groups.values:
        groups = draft.same_size(named.groups.values)
        full = draft.axis_map.groups[groups[0]]
        proposed = sorted({draft.kept(share * full, full) for share in VALUE_SHARES})
        propose_sizes(draft, VALUES, named, groups, range(1, full + 1), proposed, named.groups.key_size)


HEADS = Kind(
    name="heads",
    scope="block",
    phase=3,
    divides=True,
    part="Attention",
    of_rest=_propose_shared,
    of_block=_propose_heads,
)
VALUES = Kind(name="v_scale", scope="block", phase=3, divides=True, part="Attention", of_block=_propose_values)
