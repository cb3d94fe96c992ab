"""Functions shared by kinds of variables inside blocks."""

from collections.abc import Mapping, Sequence

from tailor_ir.errors import SpaceError
from tailor_ir.spaces.draft import Draft, NamedBlock, StreamWidth, plain_number
from tailor_ir.spaces.kinds.record import Kind
from tailor_ir.spaces.variables import NumberChoice

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
