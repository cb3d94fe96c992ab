"""All paths through a network with alternatives, as parts between boundaries: a SubNet is a chain of parts.

A boundary separates the network: all later nodes depend on earlier values through the boundary alone. Boundaries are the
network's input, the exits of blocks with alternatives, the inputs of alternatives, and the answer. A part with an alternative
to several blocks skips the boundaries between them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tailor_ir.errors import SpaceError
from tailor_ir.graph import Node
from tailor_ir.spaces.kinds.alternative import BLOCK, ORIGINAL
from tailor_ir.spaces.structure import Structure, Subnet
from tailor_ir.subnets.segments.part import Part, needed_for, reads


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPart(Part):
    """A part from one boundary to a later one; `start` and `end` count boundaries from the network's input, which is 0.

    variable, choice: of kind `block`; None: the network's own layers. codes: of a SubNet that has the part. It only reads the
    value at `start` and gives the value at `end`, by the name of its producer.
    """

    start: int
    end: int
    variable: str | None
    choice: str | None
    codes: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSegment:
    """The costs of a `BlockPart`: multiply-accumulates of one sample, and parameters, BatchNorm folded."""

    start: int
    end: int
    variable: str | None
    choice: str | None
    macs: int
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    entry: str
    exit: str
    column: int
    choice: str
    codes: np.ndarray
    subnet: Subnet
    producer: str


def find_block_parts(structure: Structure, codes: np.ndarray, batch: int = 1) -> tuple[BlockPart, ...]:
    """The parts of all SubNets whose variables of other kinds than `block` are fixed by `codes` (V,), by `start`.

    SpaceError if nothing has alternatives, or something reads past a boundary.
    """
    space = structure.space
    columns = [at for at, variable in enumerate(space.variables) if variable.kind == BLOCK.name]
    if not columns:
        raise SpaceError("space: no block has alternatives; compile it with alternatives: auto")
    base = codes.copy()
    base[columns] = space.cardinalities[columns] - 1
    whole = structure.subnet(base, batch)
    if len(whole.outputs) != 1:
        raise SpaceError(f"network: {len(whole.outputs)} outputs; the parts of its blocks need one")
    if len(structure.graph.inputs) != 1:
        raise SpaceError(f"network: {len(structure.graph.inputs)} inputs; the parts of its blocks need one")
    ways = [way for column in columns for way in _ways(structure, base, whole, column, batch)]
    (given,) = structure.graph.inputs
    place = {name: at for at, name in enumerate(name for node in whole.nodes for name in node.outputs)}
    inner = {value for way in ways for value in (way.entry, way.exit)} - {given, whole.outputs[0]}
    cuts = [given, *sorted(inner, key=place.__getitem__), whole.outputs[0]]
    found = [_own_part(structure, base, whole, cuts, at) for at in range(len(cuts) - 1)]
    found += [_way_part(structure, way, cuts) for way in ways]
    return tuple(sorted(found, key=lambda part: (part.start, part.end, part.variable is not None)))


def _ways(structure: Structure, base: np.ndarray, whole: Subnet, column: int, batch: int) -> Iterator[_Way]:
    """The alternatives that one variable can choose; none if its block is absent."""
    space, data = structure.space, structure.graph.data_values()
    value = next(each.value for each in space.selections if column in each.variables)
    present = {node.name for node in whole.nodes}
    if not any(value in node.outputs for node in whole.nodes):
        return
    for at, choice in enumerate(space.variables[column].choices):
        if choice == ORIGINAL:
            continue
        codes = base.copy()
        codes[column] = at
        subnet = structure.subnet(codes, batch)
        producer = space.sources.of(value, codes)
        new = [node for node in subnet.nodes if node.name not in present]
        written = {name for node in new for name in node.outputs}
        entries = {name for node in new for name in reads(structure.graph, node) if name in data} - written
        if len(entries) != 1:
            where = f"{space.variables[column].name}={choice}"
            raise SpaceError(f"{where}: it reads {len(entries)} values, so that it is no part of a chain; leave it out")
        (entry,) = entries
        yield _Way(
            entry=entry,
            exit=value,
            column=column,
            choice=str(choice),
            codes=codes,
            subnet=subnet,
            producer=producer,
        )


def _own_part(structure: Structure, base: np.ndarray, whole: Subnet, cuts: list[str], at: int) -> BlockPart:
    """The network's own layers between two neighbouring boundaries."""
    start, end = cuts[at : at + 2]
    subnet = _cut_out(structure, whole, start, end, f"between boundaries '{start}' and '{end}'")
    return BlockPart(subnet=subnet, inputs=(start,), start=at, end=at + 1, variable=None, choice=None, codes=base)


def _way_part(structure: Structure, way: _Way, cuts: list[str]) -> BlockPart:
    name = structure.space.variables[way.column].name
    return BlockPart(
        subnet=_cut_out(structure, way.subnet, way.entry, way.producer, f"{name}={way.choice}"),
        inputs=(way.entry,),
        start=cuts.index(way.entry),
        end=cuts.index(way.exit),
        variable=name,
        choice=way.choice,
        codes=way.codes,
    )


def _cut_out(structure: Structure, subnet: Subnet, start: str, end: str, where: str) -> Subnet:
    """The nodes that compute one value from another, together with those that depend on weights alone."""
    data = structure.graph.data_values()
    of_weights = {node.name for node in subnet.nodes if node.outputs[0] not in data}
    own = needed_for(end, [node for node in subnet.nodes if node.outputs[0] in data], frozenset({start}))
    _require_one_entry(structure, own, start, where)
    names = of_weights | {node.name for node in own}
    return Subnet(tuple(node for node in subnet.nodes if node.name in names), (end,), subnet.sizes)


def _require_one_entry(structure: Structure, own: tuple[Node, ...], start: str, where: str) -> None:
    data = structure.graph.data_values()
    written = {name for node in own for name in node.outputs}
    read = {name for node in own for name in reads(structure.graph, node) if name in data} - written - {start}
    if read:
        raise SpaceError(f"{where}: '{min(read)}' is read, too, so that it is no part of a chain; leave it out")
