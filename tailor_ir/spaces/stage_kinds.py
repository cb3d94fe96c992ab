"""Kinds `width_mult` and `growth_mult`: multipliers of the channels that run through a stage, or between its blocks.

Kind `depth`: number of blocks at the end of a stage that are skipped. Readers of a skipped block's exit read its entry.

Kinds `resolution` and `sequence_length`: height and width of the network's images, or the length of its token sequences.

Kind `exit`: the computed part of the network. Choices are places in order of depth; the last is the whole network.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tailor_ir.axes import Concat, groups_of, spatial_in
from tailor_ir.errors import SpaceError
from tailor_ir.graph import Node
from tailor_ir.ops.recurrent import GATES as RECURRENT
from tailor_ir.spaces.draft import Draft, Kind, NamedBlock, StreamWidth, plain_number
from tailor_ir.spaces.selectors import NumberChoice
from tailor_ir.structure.propagation import Resolutions
from tailor_ir.structure.regions import Stage, find_groups

WIDTH_MULTS = (0.65, 0.8, 1.0)  # proposed widths, from AutoTailor's ResNet50
RECURRENT_MULTS = tuple(sixteenths / 16 for sixteenths in range(4, 17))
"""Proposed widths of inputs and outputs of recurrent layers: such networks have few layers, and each has few operators."""
FINE_MULTS = tuple(sorted({*WIDTH_MULTS, *RECURRENT_MULTS}))  # in networks with hardly any other choice
WidthSizes = tuple[int, ...]


def _of_stem(draft: Draft) -> None:
    regions = draft.regions
    staged = {draft.stream_of(stage) for stage in regions.stages}
    group = draft.stream(regions.stem[-1].exit) if regions.stem and regions.stages else None
    if group is not None and group not in staged:
        _propose_width(draft, WIDTH, "stem.width_mult", [group])


def _of_stage(draft: Draft, stage: Stage) -> None:
    group = draft.stream_of(stage)
    if group is not None:
        _propose_width(draft, WIDTH, f"{stage.name}.width_mult", [group])


def _of_branches(draft: Draft, blocks: Sequence[NamedBlock]) -> None:
    """Propose one multiplier per stage for channels that are neither a stage's stream nor inside one block."""
    everything = find_groups(draft.graph.nodes, (), draft.axis_map, draft.regions.carriers)
    inside = {g for named in blocks for g in (*named.groups.hidden, *named.groups.heads, *named.groups.values)}
    labels = labels_of(draft)
    found: dict[tuple[str, bool], list[int]] = {}
    for group in everything.hidden:
        producers = [labels[name] for name in draft.regions.carriers[group] if name in labels]
        if group not in draft.widths and group not in inside and producers:
            found.setdefault((min(producers)[1], _grows(draft, group)), []).append(group)
    taken = {variable.name for variable in draft.variables}
    for (label, grows), groups in found.items():
        kind = GROWTH if grows else WIDTH
        name = f"{label}.{kind.name}"
        if name in taken:
            kind, name = WIDTH, f"{label}.branch_width_mult"
        _propose_width(draft, kind, name, groups, everything.element_channels)


def _propose_width(
    draft: Draft, kind: Kind, name: str, groups: Sequence[int], element_channels: Mapping[int, int] | None = None
) -> None:
    """Propose one multiplier for channel groups that have none yet."""
    groups = [group for group in groups if group not in draft.widths]
    if not groups:
        return
    choices, sizes = _choices(draft, name, groups, element_channels or {})
    variable = draft.add(name, kind.name, kind.scope, choices) if len(choices) > 1 else None
    for index, group in enumerate(groups):
        own = tuple(kept[index] for kept in sizes)
        draft.widths[group] = StreamWidth(variable=variable, sizes=own)
        if variable is not None:
            draft.size(group, (variable,), own)


def _choices(
    draft: Draft, name: str, groups: Sequence[int], element_channels: Mapping[int, int]
) -> tuple[list[NumberChoice], list[WidthSizes]]:
    """The multipliers, and the sizes of all groups under each."""
    full = [draft.axis_map.groups[group] for group in groups]
    asked = draft.selectors.choices(name)
    choices: list[NumberChoice] = []
    sizes: list[WidthSizes] = []
    dropped: list[str] = []
    usual = FINE_MULTS if draft.grain.fine else WIDTH_MULTS
    proposed = RECURRENT_MULTS if any(_is_recurrent(draft, group) for group in groups) else usual
    for mult in reversed((1.0,) if asked is None else asked or proposed):
        if not 0 < mult <= 1:
            raise SpaceError(f"space: {name}={mult}; allowed: above 0, up to 1")
        kept = tuple(
            size if mult == 1 else draft.kept(mult * size, size, element_channels.get(group, 1))
            for group, size in zip(groups, full, strict=True)
        )
        if kept in sizes:
            same = "sizes" if len(kept) > 1 else f"{kept[0]} channels"
            if asked and draft.selectors.is_named(name):
                raise SpaceError(f"space: {name}={mult}: the same {same} as another choice; leave it out")
            dropped.append(f"{name}={mult}: the same {same} as a larger choice")
            continue
        choices.insert(0, plain_number(mult))
        sizes.insert(0, kept)
    if not draft.grain.fine or len(choices) == 1:  # many shares always contain equal sizes
        draft.dropped += dropped
    if choices[-1] != 1:
        raise SpaceError(f"space: {name}={list(choices)}: must include 1, the network as it is")
    return choices, sizes


def _grows(draft: Draft, group: int) -> bool:
    """Whether a group is part of ever longer concatenations, as in densely connected layers."""
    axes = {axis for name in draft.regions.carriers[group] for axis in draft.axis_map.axes[name]}
    lengths = {axis.size for axis in axes if isinstance(axis, Concat) and group in axis.groups}
    return len(lengths) > 2


def labels_of(draft: Draft) -> dict[str, tuple[int, str]]:
    """Computed value -> position and name of its stage (the last that began before it)."""
    position = {node.name: i for i, node in enumerate(draft.graph.nodes)}
    starts = [(position[stage.blocks[0].nodes[0].name], stage.name) for stage in draft.regions.stages]
    layers_alone = all(block.kind == "Layer" for stage in draft.regions.stages for block in stage.blocks)
    if layers_alone and (not starts or any(_enlarges(draft, node) for node in draft.graph.nodes)):
        name = "part" if starts else "stage"  # layers that can be skipped are already called stages
        starts = [(at, f"{name}.{number}") for number, at in enumerate(_parts_without_blocks(draft), start=1)]
    labels = {}
    for node in draft.graph.nodes:
        before = [name for start, name in starts if start <= position[node.name]]
        labels.update(dict.fromkeys(node.outputs, (position[node.name], before[-1] if before else "stem")))
    return labels


def _parts_without_blocks(draft: Draft) -> list[int]:
    """Positions of the first nodes of the parts of a network without blocks.

    A part begins where images, or the signals of convolutions, reach a size for the first time, where they grow again, and at
    each recurrent layer. In a network with a single such part, a part begins at each layer that creates channels.
    """
    seen: list[object] = []
    starts: list[int] = []
    for index, node in enumerate(draft.graph.nodes):
        axes = draft.axis_map.axes[node.outputs[0]]
        places = axes[-1:] if len(axes) > 2 and axes[-1].spatial else axes[2:] if _reads_signals(draft, node) else ()
        new = bool(places) and places not in seen
        if new:
            seen.append(places)
        if new or node.op in RECURRENT or _enlarges(draft, node):
            starts.append(index)
    return starts if len(starts) > 1 else _layers(draft) or starts


def _reads_signals(draft: Draft, node: Node) -> bool:
    """Whether a node is a convolution over positions that do not depend on an image's size."""
    return node.op in ("Conv", "ConvTranspose") and not spatial_in(draft.axis_map.axes[node.outputs[0]])


def _layers(draft: Draft) -> list[int]:
    """Positions of the layers whose channels no earlier layer has."""
    seen: set[int] = set()
    starts = []
    for index, node in enumerate(draft.graph.nodes):
        stored = [name for name in node.inputs if name in draft.graph.parameters]
        made = groups_of(axis for name in node.outputs if name for axis in draft.axis_map.axes[name]) - seen
        if stored and made:
            starts.append(index)
        seen |= made
    return starts


def _enlarges(draft: Draft, node: Node) -> bool:
    """Whether a node's result is an image of at least twice its input's size, as in the decoders of U-Nets."""
    before, after = (draft.axis_map.axes.get(next(iter(names), ""), ()) for names in (node.inputs, node.outputs))
    images = len(before) == len(after) > 2 and before[-1].spatial and after[-1].spatial
    return images and after[-1].size >= 2 * before[-1].size


def _is_recurrent(draft: Draft, group: int) -> bool:
    """Whether the weights of a recurrent layer contain the group."""
    layers = [node for node in draft.graph.nodes if node.op in RECURRENT]
    return any(group in groups_of(draft.axis_map.axes[name]) for node in layers for name in node.inputs if name)


WIDTH = Kind(
    name="width_mult",
    scope="stage",
    phase=3,
    uniform="width",
    divides=True,
    seen=True,
    of_network=_of_stem,
    of_stage=_of_stage,
    of_rest=_of_branches,
)
GROWTH = Kind(
    name="growth_mult", scope="stage", phase=3, divides=True
)  # proposed in addition to the other widths between blocks


def _propose_depth(draft: Draft, stage: Stage) -> None:
    if not stage.trailing:
        return
    name = f"{stage.name}.depth"
    asked = draft.selectors.choices(name, {block.kind for block in stage.blocks})
    if asked is None:
        return
    deepest = min(stage.trailing, max(2, len(stage.blocks) // 2))
    choices = asked or tuple(range(-deepest, 1))
    _check(name, choices, stage)
    if len(choices) == 1:
        return
    variable = draft.add(name, DEPTH.name, DEPTH.scope, tuple(int(choice) for choice in choices))
    for left, block in enumerate(reversed(stage.blocks[-stage.trailing :]), start=1):  # blocks from this one to the end
        skipped = np.asarray([-int(choice) >= left for choice in choices])
        if skipped.any():
            draft.select(block.exit, (block.exit, block.entry), (variable,), skipped.astype(np.int64))


def _check(name: str, choices: Sequence[NumberChoice], stage: Stage) -> None:
    for choice in choices:
        if choice != int(choice) or not -stage.trailing <= choice <= 0:
            allowed = ", ".join(str(-k) for k in range(stage.trailing + 1))
            raise SpaceError(
                f"space: {name}={choice} leaves no block or skips one that changes axes "
                f"({len(stage.blocks)} blocks); allowed: {allowed}"
            )
    if 0 not in choices:
        raise SpaceError(f"space: {name}={list(choices)}: must include 0, the network as it is")


DEPTH = Kind(name="depth", scope="stage", phase=2, seen=True, of_stage=_propose_depth)


BUCKETS = (0.125, 0.25, 0.5, 0.75)
"""Proposed lengths as shares of the network's own length; shorter sequences are padded to the next proposed length."""


def _propose_resolution(draft: Draft) -> None:
    if not draft.graph.sequences:
        _propose_sizes(draft, RESOLUTION)


def _propose_length(draft: Draft) -> None:
    if draft.graph.sequences:
        _propose_sizes(draft, SEQUENCE_LENGTH)


def _propose_sizes(draft: Draft, kind: Kind) -> None:
    name = kind.name
    asked = draft.selectors.choices(name)
    if asked is None:
        return
    reason = draft.axis_map.resolution_frozen
    if reason:
        if asked:
            raise SpaceError(f"space: {name}={list(asked)}: the {name.replace('_', ' ')} cannot change ({reason})")
        draft.dropped.append(f"{name}: cannot change ({reason})")
        return
    base = draft.input_spatial[0]
    resolutions = Resolutions(draft.axis_map, draft.input_spatial)
    proposed = resolutions.proposed() if kind is RESOLUTION else resolutions.proposed(BUCKETS)
    candidates = asked or proposed
    legal: list[NumberChoice] = []
    for size in candidates:
        problem = resolutions.problem(int(size))
        if problem:
            near = ", ".join(str(s) for s in proposed)
            raise SpaceError(f"space: {name} {size}: {problem}; allowed: up to {base}, for example {near}")
        legal.append(int(size))
    if len(legal) == 1:
        draft.dropped.append(f"{name}: {resolutions.problem(base // 2) or 'no other is legal'}")
    if base not in legal:
        raise SpaceError(f"space: {name}={list(candidates)}: must include the network's own, {base}")
    if len(legal) > 1:
        draft.resolution = draft.add(name, name, kind.scope, legal)


RESOLUTION = Kind(name="resolution", scope="global", phase=None, uniform="resolution", of_network=_propose_resolution)
SEQUENCE_LENGTH = Kind(
    name="sequence_length", scope="global", phase=None, uniform="resolution", of_network=_propose_length
)


LAST = "last"
"""The choice of the whole network."""


def _propose_exit(draft: Draft) -> None:
    asked = draft.selectors.exits()
    own = [one for one in draft.alternatives if one.kind == EXIT.name]
    if not own or asked is None:
        return
    variable = draft.add(EXIT.name, EXIT.name, EXIT.scope, (*(one.choice for one in own), LAST))
    answer = own[0].value
    producers = (*(one.producer for one in own), answer)
    draft.select(answer, producers, (variable,), np.arange(len(producers)))


EXIT = Kind(name="exit", scope="global", phase=None, of_network=_propose_exit)
