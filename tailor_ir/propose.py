"""From a network's regions and a user's wishes to its space: which variables exist, and which choices are legal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from tailor_ir.axes import Channels
from tailor_ir.errors import SpaceError
from tailor_ir.graph import Graph
from tailor_ir.propagate import AxisMap
from tailor_ir.regions import Block, Regions, Stage, hidden_groups
from tailor_ir.resolution import Resolutions
from tailor_ir.space import Choice, Depth, Expansion, Space, Variable, Width

AUTO = "auto"
RELATIVE_RATIOS = (0.5, 0.75, 1.0)  # proposed expansions, as shares of the network's own
WIDTH_MULTS = (0.65, 0.8, 1.0)  # proposed widths; those of AutoTailor's ResNet50
HARDWARE_MULTIPLE = 8  # channels are kept in multiples of this where the network's own are

Wish = Mapping[str, Sequence[Choice] | str]


def make_divisible(value: float, divisor: int) -> int:
    """The multiple of `divisor` nearest to `value`, not below 90 % of it. Source: MobileNetV2 (CVPR 2018), reference code."""
    result = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return result if result >= 0.9 * value else result + divisor


def channel_multiple(size: int) -> int:
    """The largest power of two up to 8 that divides a group's full size."""
    return next(d for d in (HARDWARE_MULTIPLE, 4, 2, 1) if size % d == 0)


def _kept(value: float, full: int) -> int:
    return min(full, make_divisible(value, channel_multiple(full)))


@dataclass(slots=True)
class Proposal:
    """Builds one space. Names that a user asked for must match something; choices that cannot be taken are refused."""

    graph: Graph
    axis_map: AxisMap
    regions: Regions
    wish: Wish | None
    variables: list[Variable] = field(default_factory=list)
    widths: dict[int, Width] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    matched: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)

    def build(self) -> Space:
        shape = self.graph.shapes[self.graph.inputs[0]]
        resolution = self._resolution(shape[2:])
        for stem in self._stem_groups():
            self._width("stem.width_mult", stem)
        depths: list[Depth] = []
        depth_of: dict[str, Depth] = {}
        positions = {id(block): i for i, block in enumerate(self.regions.blocks)}
        for stage in self.regions.stages:
            depth = self._depth(stage, positions)
            if depth is not None:
                depths.append(depth)
                depth_of[stage.name] = depth
            group = self._stream(stage.blocks[-1].exit)
            if group is not None:
                self._width(f"{stage.name}.width_mult", group)
        expansions = [
            e
            for stage in self.regions.stages
            for i, block in enumerate(stage.blocks)
            if (e := self._expansion(stage, i, block, depth_of.get(stage.name), positions)) is not None
        ]
        self._refuse_unmatched()
        return Space(
            variables=tuple(self.variables),
            resolution=resolution,
            base_spatial=tuple(shape[2:]),
            widths=tuple(self.widths.values()),
            expansions=tuple(expansions),
            depths=tuple(depths),
            dropped=tuple(self.dropped),
        )

    # -- what the user asked for -------------------------------------------------------------------------------------

    def _wished(self, name: str) -> Sequence[Choice] | None:
        """Choices for a variable: the user's, () for the proposed ones, None when it is to stay as it is."""
        self.names.append(name)
        if self.wish is None:
            return ()
        selectors = [selector for selector in self.wish if fnmatchcase(name, selector)]
        self.matched.update(selectors)
        if not selectors:
            return None
        choices = self.wish[selectors[-1]]  # later selectors override earlier ones
        if isinstance(choices, str):
            if choices != AUTO:
                raise SpaceError(f"space: {selectors[-1]}={choices}; allowed: a list of choices, or '{AUTO}'")
            return ()
        if not choices or not all(isinstance(c, int | float) for c in choices):
            raise SpaceError(f"space: {selectors[-1]}={list(choices)}; allowed: a list of numbers")
        return tuple(sorted(set(choices)))

    def _refuse_unmatched(self) -> None:
        for selector in self.wish or {}:
            if selector not in self.matched:
                raise SpaceError(
                    f"space: no variable matches '{selector}'; allowed: {', '.join(self.names) or 'none'}; "
                    "use * to match several"
                )

    def _add(self, name: str, kind: str, scope: str, choices: Sequence[Choice]) -> int:
        self.variables.append(Variable(name=name, kind=kind, scope=scope, choices=tuple(choices)))
        return len(self.variables) - 1

    # -- resolution --------------------------------------------------------------------------------------------------

    def _resolution(self, spatial: tuple[int, ...]) -> int | None:
        wished = self._wished("resolution")
        if wished is None:
            return None
        reason = self.axis_map.resolution_frozen
        if not reason and len(set(spatial)) != 1:
            reason = f"the input is not square: {spatial}"
        if reason:
            if wished:
                raise SpaceError(f"space: resolution={list(wished)}: the resolution cannot change ({reason})")
            self.dropped.append(f"resolution: cannot change ({reason})")
            return None
        base = spatial[0]
        resolutions = Resolutions(self.axis_map, base)
        candidates = wished or resolutions.proposed()
        legal: list[Choice] = []
        for size in candidates:
            problem = resolutions.problem(int(size))
            if problem:
                near = ", ".join(str(s) for s in resolutions.proposed())
                raise SpaceError(f"space: resolution {size}: {problem}; allowed: up to {base}, for example {near}")
            legal.append(int(size))
        if len(legal) == 1:
            self.dropped.append(f"resolution: {resolutions.problem(base // 2) or 'no other is legal'}")
        if base not in legal:
            raise SpaceError(f"space: resolution={list(candidates)}: must include the network's own, {base}")
        return self._add("resolution", "resolution", "global", legal) if len(legal) > 1 else None

    # -- depth -------------------------------------------------------------------------------------------------------

    def _depth(self, stage: Stage, positions: Mapping[int, int]) -> Depth | None:
        if not stage.trailing:
            return None
        wished = self._wished(f"{stage.name}.depth")
        if wished is None:
            return None
        name = f"{stage.name}.depth"
        deepest = min(stage.trailing, max(2, len(stage.blocks) // 2))
        choices = wished or tuple(range(-deepest, 1))
        for choice in choices:
            if choice != int(choice) or not -stage.trailing <= choice <= 0:
                allowed = ", ".join(str(-k) for k in range(stage.trailing + 1))
                raise SpaceError(
                    f"space: {name}={choice} leaves no block or skips one that changes axes "
                    f"({len(stage.blocks)} blocks); allowed: {allowed}"
                )
        if 0 not in choices:
            raise SpaceError(f"space: {name}={list(choices)}: must include 0, the network as it is")
        if len(choices) == 1:
            return None
        variable = self._add(name, "depth", "stage", tuple(int(c) for c in choices))
        blocks = stage.blocks[-stage.trailing :]
        return Depth(variable=variable, blocks=tuple(positions[id(block)] for block in blocks))

    # -- widths ------------------------------------------------------------------------------------------------------

    def _stream(self, value: str) -> int | None:
        groups = [axis for axis in self.axis_map.axes[value] if isinstance(axis, Channels)]
        return groups[0].group if len(groups) == 1 else None

    def _stem_groups(self) -> list[int]:
        staged = {self._stream(stage.blocks[-1].exit) for stage in self.regions.stages}
        group = self._stream(self.regions.stem[-1].exit) if self.regions.stem and self.regions.stages else None
        return [group] if group is not None and group not in staged else []

    def _width(self, name: str, group: int) -> None:
        if group in self.widths:
            return
        full = self.axis_map.groups[group]
        wished = self._wished(name)
        if wished is None:
            self.widths[group] = Width(group=group, variable=None, sizes=(full,))
            return
        choices: list[Choice] = []
        sizes: list[int] = []
        for mult in reversed(wished or WIDTH_MULTS):
            if not 0 < mult <= 1:
                raise SpaceError(f"space: {name}={mult}; allowed: above 0, up to 1")
            size = full if mult == 1 else _kept(mult * full, full)
            if size in sizes:
                if wished:
                    raise SpaceError(f"space: {name}={mult}: the same {size} channels as another choice; leave it out")
                self.dropped.append(f"{name}={mult}: the same {size} channels as a larger choice")
                continue
            choices.insert(0, mult)
            sizes.insert(0, size)
        if choices[-1] != 1:
            raise SpaceError(f"space: {name}={list(choices)}: must include 1, the network as it is")
        variable = self._add(name, "width_mult", "stage", choices) if len(choices) > 1 else None
        self.widths[group] = Width(group=group, variable=variable, sizes=tuple(sizes))

    def _reference(self, value: str) -> Width | None:
        group = self._stream(value)
        if group is not None and group in self.widths:
            return self.widths[group]
        sizes = [axis.size for axis in self.axis_map.axes[value][1:2]]
        size = self.axis_map.groups[group] if group is not None else sizes[0] if sizes else None
        return Width(group=group, variable=None, sizes=(size,)) if size else None

    # -- expansions --------------------------------------------------------------------------------------------------

    def _expansion(
        self, stage: Stage, index: int, block: Block, depth: Depth | None, positions: Mapping[int, int]
    ) -> Expansion | None:
        groups = hidden_groups(block, self.axis_map, self.regions.carriers)
        if not groups:
            return None
        full = max(self.axis_map.groups[g] for g in groups)
        reference = self._reference(block.entry)
        if reference is None or full <= reference.sizes[-1]:  # a bottleneck's ratio is of its output
            reference = self._reference(block.exit) or reference
        if reference is None:
            return None
        name = f"{stage.name}.block.{index + 1}.expand_ratio"
        own = full / reference.sizes[-1]
        wished = self._wished(name)
        if wished is None:
            return None
        choices = self._expansion_choices(name, wished, own, full)
        if len(choices) < 2:
            return None
        tables = tuple(self._expansion_sizes(choices, own, self.axis_map.groups[g], reference) for g in groups)
        variable = self._add(name, "expand_ratio", "block", choices)
        skippable = depth is not None and positions[id(block)] in depth.blocks
        return Expansion(
            groups=groups,
            variable=variable,
            reference=reference,
            sizes=tables,
            depth=depth.variable if depth and skippable else None,
            skipped_by=len(depth.blocks) - depth.blocks.index(positions[id(block)]) if depth and skippable else None,
        )

    def _expansion_choices(self, name: str, wished: Sequence[Choice], own: float, full: int) -> tuple[Choice, ...]:
        exact = int(own) if own == int(own) else own
        if not wished:
            proposed: dict[int, Choice] = {}
            for share in RELATIVE_RATIOS:
                ratio = exact if share == 1 else round(own * share, 4)
                size = full if share == 1 else _kept(own * share * (full / own), full)
                if size in proposed:
                    self.dropped.append(f"{name}={proposed[size]}: the same {size} channels as a larger choice")
                proposed[size] = ratio
            return tuple(sorted(proposed.values()))
        if any(not 0 < c <= own * 1.001 for c in wished):
            raise SpaceError(
                f"space: {name}={list(wished)}; allowed: above 0, up to the network's own, {round(own, 4)}"
            )
        if not any(abs(c - own) <= 1e-3 * own for c in wished):
            raise SpaceError(f"space: {name}={list(wished)}: must include the network's own, {round(own, 4)}")
        return tuple(wished)

    def _expansion_sizes(
        self, choices: Sequence[Choice], own: float, full: int, reference: Width
    ) -> tuple[tuple[int, ...], ...]:
        """Channels by reference width choice and ratio choice. Hidden groups narrower than the widest keep their share."""
        largest = choices[-1]
        table = []
        for width in reference.sizes:
            share = width / reference.sizes[-1]
            row = tuple(
                full if ratio == largest and share == 1 else _kept(full * share * ratio / own, full)
                for ratio in choices
            )
            table.append(row)
        return tuple(table)


def propose(graph: Graph, axis_map: AxisMap, regions: Regions, wish: Wish | None) -> Space:
    """The space of a network: the user's, or (None) a proposed one."""
    return Proposal(graph, axis_map, regions, wish).build()
