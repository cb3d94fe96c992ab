"""A SubNet with exits as a chain of parts: each ends at one exit, and reads the results of the parts before it.

A node belongs to the first exit that needs it, so that every node is in exactly one part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tailor_ir.errors import SpaceError
from tailor_ir.graph import Graph, Node
from tailor_ir.spaces.kinds.exit import EXIT
from tailor_ir.spaces.structure import Structure, Subnet
from tailor_ir.subnets.segments.part import AnswerPart, reads


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
    own: list[list[Node]] = []
    for answer in answers.values():
        needed, taken = {answer}, []
        for node in reversed(left):
            if not needed.isdisjoint(node.outputs):
                needed.update(node.inputs)
                taken.append(node)
        own.append(taken[::-1])
        left = [node for node in left if needed.isdisjoint(node.outputs)]
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
    written, found = graph.producers(), set[str]()
    original = {node.name for node in graph.original().nodes}
    while producers:
        node = written.get(producers.pop())
        if node is not None and node.name not in original | found:
            found.add(node.name)
            producers += node.inputs
    return frozenset(found)
