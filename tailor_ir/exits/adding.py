"""Adding exits to a network: finds the requested places, checks whether they are legal, and inserts heads there."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tailor_ir.alternatives.adding import Read, Refused
from tailor_ir.alternatives.site import GivenNetwork, Site, macs_of
from tailor_ir.alternatives.sketch import NotHere, Sketch, joined
from tailor_ir.errors import SpaceError
from tailor_ir.exits.classifier import ClassAnswer, find_answer
from tailor_ir.exits.heads import CONVOLUTION, LIGHT
from tailor_ir.exits.places import ExitPlace, choose, find_places
from tailor_ir.exits.record import Head, HeadKind
from tailor_ir.graph import Alternative, Graph, Node, Tensors
from tailor_ir.spaces.kinds.exit import EXIT
from tailor_ir.spaces.selectors import EXIT_HEAD, Selectors, SpaceSpec
from tailor_ir.spaces.structure import Structure

HEADS: dict[str, HeadKind] = {kind.name: kind for kind in (CONVOLUTION, LIGHT)}
"""The kinds of heads by name, the default first. A new kind is a record in `heads`, an entry here, and a test."""


HEAD_SHARE = 0.1
"""The most that the convolution of one head may take, as a share of the network's multiply-accumulates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    place: ExitPlace
    sketch: Sketch
    producer: str


def add_exits(
    graph: Graph, tensors: Tensors, spec: SpaceSpec | None, read: Read
) -> tuple[Graph, Tensors, tuple[Refused, ...]]:
    """The network with the exits that a space requests, and the proposed exits that are illegal.

    An exit is legal if everything that the answer needs passes its place, a head can be written there, both together take fewer
    multiply-accumulates than the network, and everything stays elastic that is elastic without it. SpaceError for a network
    that is not a classifier, for unknown places and heads, and for a requested place that is illegal.
    """
    selectors = Selectors(spec)
    asked = selectors.exits()
    if asked is None:
        return graph, tensors, ()
    kind = _kind(selectors)
    answer = find_answer(graph.original())
    plain = read(graph, tensors)
    network = GivenNetwork(graph, tensors, plain.axis_map, plain.regions.carriers)
    total = macs_of(graph.original().nodes, graph.shapes)
    written: list[_Written] = []
    refused: list[Refused] = []
    for place in choose(find_places(plain), asked, total):
        found = _write(network, place, kind, answer, total)
        if isinstance(found, Refused):
            refused.append(found)
        else:
            written.append(found)
    written, more = _harmless(plain, network, answer, written, read)
    refused += more
    for one in refused:
        if one.choice in asked:
            raise SpaceError(f"space: {one}; leave the place out")
    if not written:
        why = f" ({refused[0]})" if refused else ""
        raise SpaceError(f"space: exits: the network has no place for one{why}; leave exits out")
    return (*_joined(network, answer, written), tuple(refused))


def _kind(selectors: Selectors) -> HeadKind:
    name = selectors.exit_head()
    if name is None:
        return next(iter(HEADS.values()))
    if name not in HEADS:
        raise SpaceError(f"space: {EXIT_HEAD}={name}; allowed: {', '.join(HEADS)}")
    return HEADS[name]


def _write(
    network: GivenNetwork, place: ExitPlace, kind: HeadKind, answer: ClassAnswer, total: int
) -> _Written | Refused:
    """The head at a place; its answer ends with the same functions as the network's."""
    sketch = Sketch(Site(network, (place.block,)), f"{EXIT.name}/{place.label}/")
    generator = torch.Generator().manual_seed(zlib.crc32(place.label.encode()))
    try:
        producer = kind.write(
            Head(sketch=sketch, classes=answer.classes, most_macs=round(HEAD_SHARE * total), generator=generator)
        )
    except NotHere as error:
        return Refused(EXIT.name, place.label, str(error))
    for node in answer.shares:
        producer = sketch.node(node.op, node.op, (producer,), sketch.shape(producer), dict(node.attributes))
    macs = place.macs + macs_of(sketch.nodes, {**network.graph.shapes, **sketch.shapes})
    if macs >= total:
        samples = network.shape(answer.value)[0]
        own, whole = macs // samples, total // samples
        reason = f"it takes {own:,} multiply-accumulates with its head, not fewer than {whole:,}"
        return Refused(EXIT.name, place.label, reason)
    return _Written(place=place, sketch=sketch, producer=producer)


def _harmless(
    plain: Structure, network: GivenNetwork, answer: ClassAnswer, written: list[_Written], read: Read
) -> tuple[list[_Written], list[Refused]]:
    """The exits whose answers have the axes of the network's, and that keep everything elastic that is elastic without them."""
    refused: list[Refused] = []
    if not written or _is_harmless(plain, network, answer, written, read):
        return written, refused
    kept = []
    for one in written:
        if _is_harmless(plain, network, answer, [one], read):
            kept.append(one)
        else:
            refused.append(Refused(EXIT.name, one.place.label, "something would be elastic no more"))
    return kept, refused


def _is_harmless(
    plain: Structure, network: GivenNetwork, answer: ClassAnswer, written: Sequence[_Written], read: Read
) -> bool:
    other = read(*_joined(network, answer, written))
    axes = other.axis_map.axes
    same = tuple(one for one in other.space.variables if one.kind != EXIT.name) == plain.space.variables
    return same and all(axes[one.producer] == axes[answer.value] for one in written)


def _joined(network: GivenNetwork, answer: ClassAnswer, written: Sequence[_Written]) -> tuple[Graph, Tensors]:
    """The network with heads, each directly after its place."""
    heads = {one.place.block.exit: one for one in written}
    nodes: list[Node] = []
    for node in network.graph.nodes:
        nodes.append(node)
        for value in node.outputs:
            if value in heads:
                nodes += heads[value].sketch.nodes
    sketches = {
        Alternative(kind=EXIT.name, value=answer.value, producer=one.producer, choice=one.place.label): one.sketch
        for one in written
    }
    return joined(network, nodes, sketches)
