"""Places of the blocks of a network, by readable names: stage and number, or before, between and after stages."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from tailor_ir import Block, Regions


@dataclass(frozen=True, slots=True)
class Place:
    """section: the stage, else stem, between, head or network. block: e.g. stage.2.block.1, empty outside stages."""

    section: str
    stage: bool
    block: str

    @property
    def name(self) -> str:
        """The block, or the section if its blocks have no names."""
        return self.block or self.section


def places(regions: Regions) -> tuple[Place, ...]:
    """The place of each of `regions.blocks`."""
    known = {
        id(block): (stage.name, f"{stage.name}.block.{number}")
        for stage in regions.stages
        for number, block in enumerate(stage.blocks, start=1)
    }
    return tuple(_places(regions.blocks, known))


def _places(blocks: tuple[Block, ...], known: Mapping[int, tuple[str, str]]) -> Iterator[Place]:
    named = (known.get(id(block), ("", "")) for block in blocks)
    runs = [(stage, list(run)) for stage, run in groupby(named, lambda names: names[0])]
    for position, (stage, run) in enumerate(runs):
        section = stage or _outside_stages(position, len(runs))
        yield from (Place(section, bool(stage), block) for _, block in run)


def _outside_stages(position: int, sections: int) -> str:
    if sections == 1:
        return "network"
    return "stem" if not position else "head" if position == sections - 1 else "between"
