"""Adding alternatives to a network: finds the requested ones, checks whether they are legal, and inserts them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tailor_ir.alternatives.blocks import MERGED, PRUNED
from tailor_ir.alternatives.convolutions import FIRE, GHOST, GROUPED, SEPARABLE
from tailor_ir.alternatives.least_squares import ReplacedLayer
from tailor_ir.alternatives.low_rank import LOW_RANK
from tailor_ir.alternatives.site import GivenNetwork, Site, macs_of
from tailor_ir.alternatives.sketch import AlternativeKind, NotHere, Sketch, joined
from tailor_ir.errors import SpaceError
from tailor_ir.graph import Alternative, Graph, Node, Tensors
from tailor_ir.spaces.kinds import BLOCK, ORIGINAL, variable_name
from tailor_ir.spaces.selectors import Selectors, SpaceSpec
from tailor_ir.spaces.space import Structure
from tailor_ir.structure.regions import Block

ALTERNATIVES: dict[str, AlternativeKind] = {
    kind.name: kind for kind in (MERGED, PRUNED, LOW_RANK, GROUPED, SEPARABLE, FIRE, GHOST)
}
"""The kinds by name. A new kind is a record in a module of this package, an entry here, and a test."""

Read = Callable[[Graph, Tensors], Structure]
"""Reads the structure of a network with the space that the user requests."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An alternative that is illegal at a block: the variable's name, the choice, and the reason."""

    variable: str
    choice: str
    reason: str

    def __str__(self) -> str:
        return f"{self.variable}={self.choice}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Written:
    variable: str
    choice: str
    sketch: Sketch
    producer: str
    macs: int

    @property
    def alternative(self) -> Alternative:
        value = self.sketch.site.exit
        return Alternative(kind=BLOCK.name, value=value, producer=self.producer, choice=self.choice)


def add_alternatives(
    graph: Graph, tensors: Tensors, spec: SpaceSpec | None, read: Read
) -> tuple[Graph, Tensors, tuple[Refused, ...]]:
    """The network with the alternatives that a space requests, and the requested ones that are illegal.

    An alternative is legal if it can be written, saves multiply-accumulates, and leaves everything elastic that is elastic
    without it. SpaceError for an unknown name, for a name that is legal nowhere, and for a name requested for a single block
    where it is illegal.
    """
    selectors = Selectors(spec)
    if not selectors.ask_for_alternatives:
        return graph, tensors, ()
    plain = read(graph, tensors)
    network = GivenNetwork(graph, tensors, plain.axis_map, plain.regions.carriers)
    written: list[_Written] = []
    refused: list[Refused] = []
    for name, row, choices in _wished(plain, selectors):
        layers: dict[str, ReplacedLayer] = {}
        for choice, kind in choices:
            found = _write(network, name, row, choice, kind, layers)
            if isinstance(found, Refused):
                refused.append(found)
            else:
                written.append(found)
    written, more = _harmless(plain, network, written, read)
    refused += more
    _raise_for(selectors, written, refused)
    return (*_joined(network, written), tuple(refused))


def _wished(
    structure: Structure, selectors: Selectors
) -> Iterator[tuple[str, Sequence[Block], list[tuple[str, AlternativeKind]]]]:
    """For each block: its variable's name, the row of blocks up to it, and the requested choices."""
    for name, row in named_rows(structure):
        block = row[-1]
        asked = selectors.alternatives(name, {block.kind}, [node.name for node in block.nodes])
        if asked is not None:
            yield name, row, _choices(name, asked)


def named_rows(structure: Structure) -> Iterator[tuple[str, Sequence[Block]]]:
    """For each block: its variable's name, and the row of consecutive blocks up to it."""
    row: list[Block] = []
    for stage in structure.regions.stages:
        for index, block in enumerate(stage.blocks, start=1):
            row = [*row, block] if row and row[-1].exit == block.entry and not block.nested else [block]
            yield variable_name(f"{stage.name}.block.{index}"), row


def _choices(name: str, asked: Sequence[str]) -> list[tuple[str, AlternativeKind]]:
    """The choices selected by names of kinds or choices; all choices if no name is given."""
    known = {choice: kind for kind in ALTERNATIVES.values() for choice in kind.choices}
    if not asked:
        return list(known.items())
    for wanted in asked:
        if wanted not in known and wanted not in ALTERNATIVES and wanted != ORIGINAL:
            allowed = ", ".join((*ALTERNATIVES, *(one for one in known if one not in ALTERNATIVES), ORIGINAL))
            raise SpaceError(f"space: {name}={wanted}; allowed: {allowed}")
    return [(choice, kind) for choice, kind in known.items() if choice in asked or kind.name in asked]


def _write(
    network: GivenNetwork,
    name: str,
    row: Sequence[Block],
    choice: str,
    kind: AlternativeKind,
    layers: dict[str, ReplacedLayer],
) -> _Written | Refused:
    """The alternative to the last blocks of a row. layers: as in `Sketch`."""
    count = kind.blocks(kind.choices[choice])
    if count > len(row):
        return Refused(name, choice, f"it stands for {count} blocks in a row, and there are {len(row)} up to this one")
    site = Site(network, tuple(row[-count:]))
    if not all(block.gives_exit for block in site.blocks):
        return Refused(name, choice, "a block inside of it gives what it gives")
    if _is_read_between(site):
        return Refused(name, choice, "something else reads what is between the blocks")
    sketch = Sketch(site, prefix_of(site, choice), layers=layers)
    try:
        producer = kind.write(sketch, kind.choices[choice])
    except NotHere as error:
        return Refused(name, choice, str(error))
    if sketch.shape(producer) != network.shape(site.exit):
        return Refused(name, choice, f"it gives {sketch.shape(producer)} instead of {network.shape(site.exit)}")
    macs, full = macs_of(sketch.nodes, _Shapes(sketch)), macs_of(site.nodes, network.graph.shapes)
    if macs >= full:
        return Refused(name, choice, f"it takes {macs:,} multiply-accumulates, not fewer than {full:,}")
    return _Written(name, choice, sketch, producer, macs)


def prefix_of(site: Site, choice: str) -> str:
    """Prefix of the names of an alternative's nodes, values and tensors."""
    return f"{site.exit}/{choice}/"


def _is_read_between(site: Site) -> bool:
    """Whether nodes outside of the site read the result of an inner block."""
    inside = {node.name for node in site.nodes}
    between = {block.exit for block in site.blocks[:-1]}
    nodes = site.network.graph.nodes
    return any(node.name not in inside and not between.isdisjoint(node.inputs) for node in nodes)


class _Shapes(dict[str, tuple[int, ...]]):
    """The shapes of a sketch's values and of the network's."""

    def __init__(self, sketch: Sketch) -> None:
        super().__init__(sketch.shapes)
        self._network = sketch.network

    def __missing__(self, name: str) -> tuple[int, ...]:
        return self._network.shape(name)


def _harmless(
    plain: Structure, network: GivenNetwork, written: list[_Written], read: Read
) -> tuple[list[_Written], list[Refused]]:
    """The alternatives whose exits have the axes of the network's own, and that take no elasticity from the network."""
    refused: list[Refused] = []
    structure = _read_with(network, written, read)
    if not _same(plain, structure):
        reason = "something would be elastic no more"
        for choice in dict.fromkeys(each.choice for each in written):
            own = [each for each in written if each.choice == choice]
            if not _same(plain, _read_with(network, own, read)):
                guilty = [one for one in own if not _same(plain, _read_with(network, [one], read))]
                refused += [Refused(one.variable, one.choice, reason) for one in guilty]
                written = [one for one in written if one not in guilty]
        structure = _read_with(network, written, read)
    axes = structure.axis_map.axes
    other = [one for one in written if axes[one.producer] != axes[one.sketch.site.exit]]
    refused += [Refused(one.variable, one.choice, "its sizes do not follow those of the block") for one in other]
    return [one for one in written if one not in other], refused


def _same(plain: Structure, other: Structure) -> bool:
    """Whether two structures have the same variables, except for those of alternatives."""
    first, second = ([one for one in each.space.variables if one.kind != BLOCK.name] for each in (plain, other))
    return first == second


def _raise_for(selectors: Selectors, written: Sequence[_Written], refused: Sequence[Refused]) -> None:
    """Raise SpaceError if the user requests an alternative that is legal at none of the requested blocks.

    One legal choice of a kind is enough, unless the choice itself is requested for a single block.
    """
    for each in refused:
        kind = next(kind for kind in ALTERNATIVES.values() if each.choice in kind.choices)
        single = selectors.is_named(each.variable)
        legal = {one.choice for one in written if not single or one.variable == each.variable}
        if single and selectors.names_alternative(each.variable, each.choice):
            raise SpaceError(f"space: {each}; leave the choice out")
        if selectors.names_alternative(each.variable if single else None, each.choice, kind.name) and legal.isdisjoint(
            kind.choices
        ):
            where = "not legal there" if single else "legal at no block"
            raise SpaceError(f"space: '{kind.name}' is {where} ({each}); leave it out")


def _read_with(network: GivenNetwork, written: Sequence[_Written], read: Read) -> Structure:
    graph, tensors = _joined(network, written)
    return read(graph, tensors)


def _joined(network: GivenNetwork, written: Sequence[_Written]) -> tuple[Graph, Tensors]:
    """The network with alternatives; the alternatives to a block are in ascending order of multiply-accumulates."""
    own: dict[str, list[_Written]] = {}
    for each in sorted(written, key=lambda one: one.macs):
        own.setdefault(each.sketch.site.exit, []).append(each)
    nodes: list[Node] = []
    for node in network.graph.nodes:
        for value in node.outputs:
            for each in own.get(value, ()):
                nodes += each.sketch.nodes
        nodes.append(node)
    placed = [one for ones in own.values() for one in ones]
    return joined(network, nodes, {one.alternative: one.sketch for one in placed})
