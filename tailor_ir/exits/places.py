"""Places of exits: the ends of blocks. A few good ones are chosen if the user names none."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tailor_ir.alternatives.site import macs_of
from tailor_ir.errors import SpaceError
from tailor_ir.spaces.selectors import matches_block
from tailor_ir.spaces.structure import Structure
from tailor_ir.structure.regions import Block

SHARES = (0.25, 0.5, 0.75)
"""Shares of a network's multiply-accumulates near which exits are proposed."""
MOST_SHARE = 0.9
"""The largest share of multiply-accumulates before a proposed exit, if there are places before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitPlace:
    """The end of a block.

    macs: total up to there, in the largest SubNet, for all samples of the traced shapes. name: the block's name within its
    stage; label: the place's name, which is the stage's at the end of a stage.
    """

    label: str
    name: str
    block: Block
    macs: int

    @property
    def ends_stage(self) -> bool:
        """Whether no other block of its stage follows."""
        return self.label != self.name


def find_places(structure: Structure) -> tuple[ExitPlace, ...]:
    """The ends of the blocks of all stages in order; without stages, the ends of all parts between single values."""
    macs = _macs_up_to(structure)
    found = list(_of_stages(structure)) or [
        (f"block.{number}", f"block.{number}", block)
        for number, block in enumerate(structure.regions.blocks, start=1)
        if not block.nested
    ]
    return tuple(
        ExitPlace(label=label, name=name, block=block, macs=macs[block.exit])
        for label, name, block in sorted(found, key=lambda each: macs[each[2].exit])
    )


def _of_stages(structure: Structure) -> Iterator[tuple[str, str, Block]]:
    for stage in structure.regions.stages:
        for number, block in enumerate(stage.blocks, start=1):
            name = f"{stage.name}.block.{number}"
            yield (stage.name if number == len(stage.blocks) else name), name, block


def _macs_up_to(structure: Structure) -> dict[str, int]:
    """Value -> multiply-accumulates of all nodes of the original network up to its producer."""
    graph = structure.graph.original()
    sums = accumulate(macs_of([node], graph.shapes) for node in graph.nodes)
    return {name: macs for node, macs in zip(graph.nodes, sums, strict=True) for name in node.outputs}


def choose(places: Sequence[ExitPlace], asked: Sequence[str], total: int) -> tuple[ExitPlace, ...]:
    """The places that a user requests, or, if none are named, a few good ones. total: multiply-accumulates of the network.

    SpaceError for a name or pattern that matches no place, and for places inside branches.
    """
    legal = [place for place in places if not place.block.nested]
    if not asked:
        early = [place for place in legal if place.macs <= MOST_SHARE * total]
        return _proposed(early or [place for place in legal if place.macs < total], total)
    found: set[str] = set()
    for selector in asked:
        own = [place for place in places if _is_meant(selector, place)]
        if not own:
            raise SpaceError(
                f"space: exits={selector}: no such place; allowed: 'auto', {_listed(legal)}; use * to match several"
            )
        inside = next((place for place in own if place.block.nested), None)
        if inside is not None and "*" not in selector:
            raise SpaceError(
                f"space: exits={selector}: {inside.name} lies in a branch, beside which others are computed; "
                f"allowed: {_listed(legal)}"
            )
        found.update(place.name for place in own)
    return tuple(place for place in legal if place.name in found)


def _is_meant(selector: str, place: ExitPlace) -> bool:
    """Whether a selector matches a place. A selector without "block" matches ends of stages alone."""
    name = place.name if "block" in selector else place.label
    if "block" not in selector and not place.ends_stage:
        return False
    return matches_block(selector, name, place.block.kind, [node.name for node in place.block.nodes])


def _listed(places: Sequence[ExitPlace]) -> str:
    return ", ".join(place.label for place in places)


def _proposed(places: Sequence[ExitPlace], total: int) -> tuple[ExitPlace, ...]:
    """The places nearest to the shares in `SHARES`: ends of stages if there are enough of them, else ends of blocks."""
    ends = [place for place in places if place.ends_stage]
    left = list(ends if len(ends) >= len(SHARES) else places)
    found = []
    for share in SHARES[: len(left)]:
        nearest = min(left, key=lambda place: abs(place.macs - share * total))
        left.remove(nearest)
        found.append(nearest)
    return tuple(sorted(found, key=lambda place: place.macs))
