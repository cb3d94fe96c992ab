"""Kind `expand_ratio`: the hidden channels of a block, as a multiple of its input or output channels."""

from collections.abc import Sequence

from tailor_ir.errors import SpaceError
from tailor_ir.spaces.draft import Draft, NamedBlock, StreamWidth, plain_number
from tailor_ir.spaces.kinds.block import add_to_block, asked_of_block
from tailor_ir.spaces.kinds.record import Kind
from tailor_ir.spaces.variables import NumberChoice

RELATIVE_RATIOS = (0.5, 0.75, 1.0)  # proposed, as shares of the network's own
FINE_RATIOS = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)  # in networks with hardly any other choice


def _propose(draft: Draft, named: NamedBlock) -> None:
    element_channels = named.groups.element_channels
    groups = tuple(group for group in named.groups.hidden if group not in draft.widths)
    if not groups:
        return
    full = max(draft.axis_map.groups[g] * element_channels[g] for g in groups)
    reference = draft.reference(named.block, named.block.entry)
    if reference is None or full <= reference.sizes[-1]:  # a bottleneck's ratio refers to its output
        reference = draft.reference(named.block, named.block.exit) or reference
    if reference is None:
        return
    own = full / reference.sizes[-1]
    name, asked = asked_of_block(draft, EXPANSION, named)
    if asked is None:
        return
    choices = _choices(draft, name, asked, own, full)
    tables = [_sizes(draft, choices, own, draft.axis_map.groups[g], element_channels[g], reference) for g in groups]
    add_to_block(draft, EXPANSION, name, choices, dict(zip(groups, tables, strict=True)), reference)


def _choices(draft: Draft, name: str, asked: Sequence[NumberChoice], own: float, full: int) -> tuple[NumberChoice, ...]:
    if not asked:
        proposed: dict[int, NumberChoice] = {}
        for share in FINE_RATIOS if draft.grain.fine else RELATIVE_RATIOS:
            ratio = plain_number(own) if share == 1 else round(own * share, 4)
            size = full if share == 1 else draft.kept(own * share * (full / own), full)
            if size in proposed and not draft.grain.fine:
                draft.dropped.append(f"{name}={proposed[size]}: the same {size} channels as a larger choice")
            proposed[size] = ratio
        return tuple(sorted(proposed.values()))
    if any(not 0 < c <= own * 1.001 for c in asked):
        raise SpaceError(f"space: {name}={list(asked)}; allowed: above 0, up to the network's own, {round(own, 4)}")
    if not any(abs(c - own) <= 1e-3 * own for c in asked):
        raise SpaceError(f"space: {name}={list(asked)}: must include the network's own, {round(own, 4)}")
    return tuple(asked)


def _sizes(
    draft: Draft, choices: Sequence[NumberChoice], own: float, full: int, unit: int, reference: StreamWidth
) -> tuple[tuple[int, ...], ...]:
    """Elements by reference width choice and ratio choice. Narrower hidden groups keep their ratio to the widest."""
    largest = choices[-1]
    table = []
    for width in reference.sizes:
        share = width / reference.sizes[-1]
        row = tuple(
            full if ratio == largest and share == 1 else draft.kept(full * share * ratio / own, full, unit)
            for ratio in choices
        )
        table.append(row)
    return tuple(table)


EXPANSION = Kind(
    name="expand_ratio", scope="block", phase=3, uniform="width", divides=True, part="FFN", of_block=_propose
)
