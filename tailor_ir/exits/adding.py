"""Adding exits to a network: places at the ends of blocks are found or chosen, checked, and get heads.

A few good places are chosen if the user names none; requested places are checked whether they are legal.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from tailor_ir.alternatives.adding import Read, Refused
from tailor_ir.alternatives.site import GivenNetwork, Site, macs_of
from tailor_ir.alternatives.sketch import NotHere, Sketch, joined
from tailor_ir.errors import SpaceError
from tailor_ir.exits.heads import CONVOLUTION, LIGHT, ClassAnswer, Head, HeadKind, find_answer
from tailor_ir.graph import Alternative, Graph, Node, Tensors
from tailor_ir.spaces.selectors import EXIT_HEAD, Selectors, SpaceSpec, matches_block
from tailor_ir.spaces.space import Structure
from tailor_ir.spaces.stage_kinds import EXIT
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
    graph, tensors = _joined(network, answer, written)
    other = read(graph, tensors)
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
