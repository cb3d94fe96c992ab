"""From a network's regions and a user's selectors to its space: the variables, and their legal choices."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tailor_ir.axes import groups_of
from tailor_ir.graph import Graph
from tailor_ir.spaces.draft import HARDWARE_MULTIPLE, ChannelGrain, Draft
from tailor_ir.spaces.kinds import KINDS
from tailor_ir.spaces.presence import NEVER, DerivedColumns, Presence, Selection, Sizing, find_needs
from tailor_ir.spaces.selectors import Selectors, SpaceSpec
from tailor_ir.spaces.space import Space, Structure
from tailor_ir.structure.propagation import AxisMap
from tailor_ir.structure.regions import Regions

SMALLER_MULTIPLES = tuple(HARDWARE_MULTIPLE >> halvings for halvings in (1, 2, 3))
HARDLY_ANY = 6  # combinations of choices
FEW_SUBNETS = 16  # hardly more than a run's ten budgets
MOST_REASONS = 3
SHARED_WIDTH = "layers that can be left out have one width with those beside them"
UNSAID = ("", "constant", "network input")  # reasons that do not explain to a user why a network has no choices


def propose(graph: Graph, axis_map: AxisMap, regions: Regions, spec: SpaceSpec | None) -> Structure:
    """A network with its space: the user's, or (None) a proposed one.

    SpaceError if a selector matches nothing, or a choice is impossible.
    """
    draft = _by_itself(graph, axis_map, regions)
    if spec is not None or graph.alternatives:
        draft = Draft(graph.original(), axis_map, regions, Selectors(spec), graph.alternatives, draft.grain)
        _propose_variables(draft)
    if draft.selectors.ask_for_alternatives and not regions.stages:
        draft.dropped.append("alternatives: the network has no blocks that could be replaced")
    draft.selectors.refuse_unmatched(draft.dropped)
    presence, selections, columns = _presence(graph, tuple(draft.selections.values()), len(draft.variables))
    sizings = _placed(draft.sizings, graph, axis_map, presence, columns)
    space = Space(
        variables=tuple(draft.variables),
        resolution=draft.resolution,
        base_spatial=draft.input_spatial,
        sizings=sizings,
        selections=selections,
        derived=tuple(columns.derived),
        dropped=tuple(draft.dropped),
    )
    return Structure(graph=graph, axis_map=axis_map, regions=regions, space=space, presence=presence)


def _by_itself(graph: Graph, axis_map: AxisMap, regions: Regions) -> Draft:
    """The space proposed for a network without a user's request, with the coarsest grain that leaves choices.

    Channels are kept in smaller multiples if otherwise no choice of channels is left, and in more shares if there are hardly
    any choices. The grain depends on the network alone, so that a choice means the same under every request.
    """

    def proposed(grain: ChannelGrain) -> Draft:
        draft = Draft(graph.original(), axis_map, regions, Selectors(None), (), grain)
        _propose_variables(draft)
        return draft

    coarse = proposed(ChannelGrain())
    finer = (proposed(ChannelGrain(multiple)) for multiple in SMALLER_MULTIPLES)
    draft = next((each for each in (coarse, *(() if _divides(coarse) else finer)) if _divides(each)), None)
    if draft is None:
        return coarse
    multiples = [multiple for multiple in (HARDWARE_MULTIPLE, *SMALLER_MULTIPLES) if multiple <= draft.grain.multiple]
    for multiple in multiples:
        if _combinations(draft) > HARDLY_ANY:
            break
        draft = max(draft, proposed(ChannelGrain(multiple, fine=True)), key=_combinations)
    return draft


def _divides(draft: Draft) -> bool:
    """Whether a variable of a draft divides channels or heads."""
    return any(KINDS[variable.kind].divides for variable in draft.variables)


def _combinations(draft: Draft) -> int:
    return prod(len(variable.choices) for variable in draft.variables)


def _propose_variables(draft: Draft) -> None:
    kinds = tuple(KINDS.values())
    for kind in kinds:
        if kind.of_network is not None:
            kind.of_network(draft)
    for stage in draft.regions.stages:
        for kind in kinds:
            if kind.of_stage is not None:
                kind.of_stage(draft, stage)
    blocks = draft.named_blocks()
    for kind in kinds:
        if kind.of_rest is not None:
            kind.of_rest(draft, blocks)
    for named in blocks:
        for kind in kinds:
            if kind.of_block is not None:
                kind.of_block(draft, named)


def _presence(
    graph: Graph, selections: Sequence[Selection], variables: int
) -> tuple[dict[str, Presence], tuple[Selection, ...], DerivedColumns]:
    """The presence of every node, the selections with the SubNets in which their values are read, and the derived columns."""
    steps = [([name for name in node.inputs if name], node.outputs) for node in graph.nodes]
    needs = find_needs(steps, graph.outputs, selections, DerivedColumns(variables))
    presence = {node.name: where for node, where in zip(graph.nodes, needs.steps, strict=True)}
    placed = tuple(replace(each, live=needs.reads.get(each.value, NEVER)) for each in selections)
    return presence, placed, needs.columns


def _placed(
    sizings: list[Sizing], graph: Graph, axis_map: AxisMap, presence: dict[str, Presence], columns: DerivedColumns
) -> tuple[Sizing, ...]:
    """The sizings, each with the SubNets in which a node has its group."""
    found: dict[int, list[Presence]] = {sizing.group: [] for sizing in sizings}
    for node in reversed(graph.nodes):  # presences build on those of later nodes
        axes = {axis for name in (*node.inputs, *node.outputs) if name for axis in axis_map.axes[name]}
        for group in groups_of(axes) & found.keys():
            found[group].append(presence[node.name])
    return tuple(replace(sizing, presence=columns.any_of(found[sizing.group])) for sizing in sizings)


def few_subnets(structure: Structure, spec: SpaceSpec | None) -> tuple[str, ...]:
    """A message for a network whose proposed space has few SubNets, with the reasons that keep its axes fixed; else nothing."""
    if spec is not None or structure.space.distinct > FEW_SUBNETS:
        return ()
    axis_map = structure.axis_map
    values = structure.graph.data_values() & axis_map.frozen.keys()
    kept = Counter(reason for name in values for reason in axis_map.frozen[name] if reason not in UNSAID)
    shared = any(block.kind == "Layer" for stage in structure.regions.stages for block in stage.blocks)
    described = [
        axis_map.resolution_frozen,
        SHARED_WIDTH if shared else "",
        *(reason for reason, _ in kept.most_common(MOST_REASONS)),
    ]
    why = "; ".join(dict.fromkeys(filter(None, described))) or "no axis is free"
    count = f"{structure.space.distinct} SubNets" if structure.space.variables else "one SubNet, the network itself"
    return (f"the space has {count} ({why}); net.space.dropped says which choices came to nothing",)
