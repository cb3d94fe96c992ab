"""Kinds of variables inside blocks, one record each, and functions that they share.

expand_ratio       the hidden channels of a block, as a multiple of its input or output channels
kernel_size        the kernels of a block's convolutions; SubNets keep the centre
heads, v_scale     attention heads of a block, and the width of attention's values as a multiple of the keys'
block              the alternative that replaces a block; choices are names, the last is the block itself

A new kind needs its record here or in `stage_kinds`, an entry below, and a test.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tailor_ir.errors import SpaceError
from tailor_ir.spaces.draft import Draft, Kind, NamedBlock, StreamWidth, plain_number
from tailor_ir.spaces.selectors import NumberChoice
from tailor_ir.spaces.stage_kinds import DEPTH, EXIT, GROWTH, RESOLUTION, SEQUENCE_LENGTH, WIDTH, labels_of
from tailor_ir.structure.regions import find_groups

SizeTable = Sequence[Sequence[int]]  # sizes by reference width choice and own choice


def asked_of_block(draft: Draft, kind: Kind, named: NamedBlock) -> tuple[str, Sequence[NumberChoice] | None]:
    """The variable's name, and the choices that the user requests: () for the proposed ones, None for no variable."""
    name = f"{named.prefix}.{kind.name}"
    part = {kind.part} if named.block.kind == "Transformer" and kind.part else set()
    return name, draft.selectors.choices(name, {named.block.kind} | part, [node.name for node in named.block.nodes])


def add_to_block(
    draft: Draft,
    kind: Kind,
    name: str,
    choices: Sequence[NumberChoice],
    tables: Mapping[int, SizeTable],
    reference: StreamWidth,
) -> None:
    """Add a variable for groups of a block, if there is a choice. tables: sizes by group."""
    if len(choices) < 2:
        return
    variable = draft.add(name, kind.name, kind.scope, choices)
    for group, table in tables.items():
        if reference.variable is None:
            draft.size(group, (variable,), table[0])
        else:
            draft.size(group, (reference.variable, variable), table)


def propose_sizes(
    draft: Draft,
    kind: Kind,
    named: NamedBlock,
    groups: Sequence[int],
    legal: Sequence[int],
    proposed: Sequence[int],
    scale: int,
) -> None:
    """Add a variable whose choices are the sizes themselves, divided by `scale`, for groups of one size."""
    name, asked = asked_of_block(draft, kind, named)
    if asked is not None:
        choices = tuple(asked) or tuple(plain_number(size / scale) for size in proposed)
        add_sizes(draft, kind, name, choices, groups, legal, scale)


def add_sizes(
    draft: Draft,
    kind: Kind,
    name: str,
    choices: Sequence[NumberChoice],
    groups: Sequence[int],
    legal: Sequence[int],
    scale: int,
) -> None:
    """Add the variable of `propose_sizes` under a given name."""
    full = draft.axis_map.groups[groups[0]]
    sizes = [round(choice * scale) for choice in choices]
    for choice, size in zip(choices, sizes, strict=True):
        if size not in legal or abs(choice * scale - size) > 1e-6:
            allowed = ", ".join(str(plain_number(round(size / scale, 4))) for size in legal[-12:])
            raise SpaceError(f"space: {name}={choice}; allowed: {allowed}")
    if full not in sizes:
        raise SpaceError(f"space: {name}={list(choices)}: must include the network's own, {plain_number(full / scale)}")
    add_to_block(draft, kind, name, choices, dict.fromkeys(groups, (sizes,)), StreamWidth(variable=None, sizes=(full,)))


VALUE_SHARES = (0.5, 0.75, 1.0)  # proposed, as shares of the network's own width


def _propose_shared(draft: Draft, blocks: Sequence[NamedBlock]) -> None:
    """Heads that several blocks share, for example by shared weights: one variable for those of a stage."""
    everything = find_groups(draft.graph.nodes, (), draft.axis_map, draft.regions.carriers)
    shared = set(everything.heads) - {group for named in blocks for group in named.groups.heads}
    labels = labels_of(draft) if shared else {}
    found: dict[str, list[int]] = {}
    for group in sorted(shared):
        producers = [labels[name] for name in draft.regions.carriers[group] if name in labels]
        found.setdefault(min(producers)[1], []).append(group)
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


RELATIVE_RATIOS = (0.5, 0.75, 1.0)  # proposed, as shares of the network's own
FINE_RATIOS = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)  # in networks with hardly any other choice


def _propose_expansion(draft: Draft, named: NamedBlock) -> None:
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
    name="expand_ratio", scope="block", phase=3, uniform="width", divides=True, part="FFN", of_block=_propose_expansion
)


SMALLEST_KERNEL = 3  # of the proposed ones


def _propose_kernel(draft: Draft, named: NamedBlock) -> None:
    if named.groups.kernels:
        groups = draft.same_size(named.groups.kernels)
        full = draft.axis_map.groups[groups[0]]
        legal = [size for size in range(1, full + 1) if draft.padded(groups, full - size)]
        propose_sizes(draft, KERNEL, named, groups, legal, range(SMALLEST_KERNEL, full + 1, 2), 1)


KERNEL = Kind(name="kernel_size", scope="block", phase=1, of_block=_propose_kernel)


ORIGINAL = "original"
"""The choice of the original block."""


def variable_name(prefix: str) -> str:
    """The name of the variable of a block, from the prefix of the names of the block's variables."""
    return f"{prefix}.{BLOCK.name}"


def _propose_alternatives(draft: Draft, named: NamedBlock) -> None:
    own = [one for one in draft.alternatives if one.kind == BLOCK.name and one.value == named.block.exit]
    name = variable_name(named.prefix)
    asked = draft.selectors.alternatives(name, {named.block.kind}, [node.name for node in named.block.nodes])
    if not own or asked is None or not named.block.gives_exit:
        return
    variable = draft.add(name, BLOCK.name, BLOCK.scope, (*(one.choice for one in own), ORIGINAL))
    producers = (*(one.producer for one in own), named.block.exit)
    draft.select(named.block.exit, producers, (variable,), np.arange(len(producers)))


BLOCK = Kind(name="block", scope="block", phase=None, of_block=_propose_alternatives)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (RESOLUTION, SEQUENCE_LENGTH, DEPTH, WIDTH, GROWTH, EXPANSION, HEADS, VALUES, KERNEL, BLOCK, EXIT)
}
"""The kinds by name, in the order in which they propose variables."""
