"""SubNets in parts that pass values to each other: up to each exit, or from one block to the next.

A part has some nodes of a SubNet, with their inputs and outputs.

From block to block, all paths through a network with alternatives are parts between boundaries: a SubNet is a chain of
parts. A boundary separates the network: all later nodes depend on earlier values through the boundary alone. Boundaries
are the network's input, the exits of blocks with alternatives, the inputs of alternatives, and the answer. A part with
an alternative to several blocks skips the boundaries between them.

Up to exits, each part ends at one exit, and reads the results of the parts before it. A node belongs to the first exit
that needs it, so that every node is in exactly one part.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tailor_ir.errors import SpaceError
from tailor_ir.graph import Graph, Node, needed
from tailor_ir.ops import OPERATORS
from tailor_ir.spaces.kinds import BLOCK, ORIGINAL
from tailor_ir.spaces.space import Structure, Subnet
from tailor_ir.spaces.stage_kinds import EXIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Nodes of a SubNet.

    subnet: the nodes, with all nodes that depend on weights alone, and their outputs. inputs: the values of the network's input
    and of earlier parts that they read.
    """

    subnet: Subnet
    inputs: tuple[str, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values that the part gives."""
        return self.subnet.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart(Part):
    """The nodes between an exit and the one before it. outputs: the answer (B, K), then values for later parts."""

    exit: str


def reads(graph: Graph, node: Node) -> tuple[str, ...]:
    """The values with which a node's module is called; some modules read the network's input for the number of samples."""
    return (*node.inputs, graph.batched_input) if OPERATORS[node.op].needs_batch else node.inputs


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
            entry=entry, exit=value, column=column, choice=str(choice), codes=codes, subnet=subnet, producer=producer
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
    own = needed([node for node in subnet.nodes if node.outputs[0] in data], (end,), (start,))
    written = {name for node in own for name in node.outputs}
    read = {name for node in own for name in reads(structure.graph, node) if name in data} - written - {start}
    if read:
        raise SpaceError(f"{where}: '{min(read)}' is read, too, so that it is no part of a chain; leave it out")
    names = of_weights | {node.name for node in own}
    return Subnet(tuple(node for node in subnet.nodes if node.name in names), (end,), subnet.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a SubNet as a stand-alone network, in eval mode.

    exit: the exit whose answer it gives. module: takes the values of `inputs` in order; returns the values of `outputs`, a
    single one or a tuple: the answer (B, K), then values for later segments. macs: multiply-accumulates of one sample,
    including the head's.
    """

    exit: str
    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    macs: int

    def __call__(self, values: dict[str, torch.Tensor]) -> torch.Tensor:
        """The answer of the exit (B, K), from the values so far; adds the values for later segments to them.

        The first segment reads the network's input from there, by the name of its own input.
        """
        found = self.module(*(values[name] for name in self.inputs))
        answer, *handed = (found,) if len(self.outputs) == 1 else found
        values.update(zip(self.outputs[1:], handed, strict=True))
        return torch.as_tensor(answer)


def exits_of(structure: Structure, codes: np.ndarray) -> tuple[str, ...]:
    """The exits that a SubNet passes, its own as the last one; () for a space without exits.

    An exit is passed if the SubNet computes everything that the exit needs except its head. An exit between blocks that another
    block replaces is not passed.
    """
    column = _column(structure)
    if column is None:
        return ()
    choices, own = structure.space.variables[column].choices, int(codes[column])
    there = {node.name: node for node in _ended(structure, codes, column, own).nodes}
    heads = _nodes_of_heads(structure.graph)
    found = [
        str(choices[at])
        for at in range(own)
        if all(
            there.get(node.name) == node or node.name in heads for node in _ended(structure, codes, column, at).nodes
        )
    ]
    return (*found, str(choices[own]))


def find_parts(
    structure: Structure, codes: np.ndarray, exits: Sequence[str] | None = None, batch: int = 1
) -> tuple[AnswerPart, ...]:
    """The parts of one SubNet. exits: the requested ones among those that it passes; its own is always the last part.

    SpaceError for a space without exits, and for exits that the SubNet does not pass.
    """
    parts, _ = _divided(structure, codes, exits, batch)
    return parts


def with_all_answers(
    structure: Structure, codes: np.ndarray, exits: Sequence[str] | None = None, batch: int = 1
) -> Subnet:
    """One SubNet with the heads of exits, as in `find_parts`; its outputs are the exits' answers in order."""
    parts, whole = _divided(structure, codes, exits, batch)
    return Subnet(whole, tuple(part.outputs[0] for part in parts), parts[0].subnet.sizes)


def _divided(
    structure: Structure, codes: np.ndarray, exits: Sequence[str] | None, batch: int
) -> tuple[tuple[AnswerPart, ...], tuple[Node, ...]]:
    column = _column(structure)
    passed = exits_of(structure, codes)
    if column is None:
        raise SpaceError("space: the network has no exits, so that it has no segments; compile it with exits: auto")
    for name in exits or ():
        if name not in passed:
            raise SpaceError(f"exit {name}: the SubNet does not pass it; allowed: {', '.join(passed)}")
    wanted = [name for name in passed if exits is None or name in exits or name == passed[-1]]
    choices = list(map(str, structure.space.variables[column].choices))
    ended = [_ended(structure, codes, column, choices.index(name), batch) for name in wanted]
    nodes = {node.name: node for one in ended for node in one.nodes}
    whole = tuple(nodes[node.name] for node in structure.graph.nodes if node.name in nodes)
    answers = [one.outputs[0] for one in ended]
    return _parts(structure.graph, whole, dict(zip(wanted, answers, strict=True)), ended[-1]), whole


def _parts(graph: Graph, nodes: Sequence[Node], answers: Mapping[str, str], last: Subnet) -> tuple[AnswerPart, ...]:
    """Nodes grouped by the first exit that needs them. answers: value of the answer by exit, in order."""
    data = graph.data_values()
    of_weights = [node for node in nodes if node.outputs[0] not in data]
    left = [node for node in nodes if node.outputs[0] in data]
    own: list[tuple[Node, ...]] = []
    for answer in answers.values():
        own.append(needed(left, (answer,)))
        taken = {node.name for node in own[-1]}
        left = [node for node in left if node.name not in taken]
    read = [tuple(dict.fromkeys(n for node in part for n in reads(graph, node) if n in data)) for part in own]
    written = [[name for node in part for name in node.outputs] for part in own]
    found = []
    for at, (name, answer) in enumerate(answers.items()):
        later = {value for one in read[at + 1 :] for value in one}
        handed = tuple(value for value in written[at] if value in later and value != answer)
        present = {node.name for node in (*of_weights, *own[at])}
        found.append(
            AnswerPart(
                exit=name,
                subnet=Subnet(tuple(node for node in nodes if node.name in present), (answer, *handed), last.sizes),
                inputs=tuple(value for value in read[at] if value not in written[at]),
            )
        )
    return tuple(found)


def _column(structure: Structure) -> int | None:
    return next((at for at, one in enumerate(structure.space.variables) if one.kind == EXIT.name), None)


def _ended(structure: Structure, codes: np.ndarray, column: int, at: int, batch: int = 1) -> Subnet:
    """The SubNet with the same choices that ends at another exit."""
    other = codes.copy()
    other[column] = at
    return structure.subnet(other, batch)


def _nodes_of_heads(graph: Graph) -> frozenset[str]:
    """Names of the nodes that belong to heads alone."""
    producers = [one.producer for one in graph.alternatives if one.kind == EXIT.name]
    original = {node.name for node in graph.original().nodes}
    return frozenset(n.name for n in needed([n for n in graph.nodes if n.name not in original], producers))
