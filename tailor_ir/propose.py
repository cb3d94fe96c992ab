"""From a network's regions and a user's wishes to its space: which variables exist, and which choices are legal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tailor_ir.axes import Channels, Concat, groups_of
from tailor_ir.errors import SpaceError
from tailor_ir.graph import Graph
from tailor_ir.inner import InnerGroups, inner_groups
from tailor_ir.ops.conv import explicit_pads
from tailor_ir.propagate import AxisMap
from tailor_ir.regions import Block, Regions, Stage, inner_of
from tailor_ir.resolution import Resolutions
from tailor_ir.space import Choice, Depth, Expansion, Space, Variable, Width
from tailor_ir.wishes import Wish, Wishes

RELATIVE_RATIOS = (0.5, 0.75, 1.0)  # proposed expansions, as shares of the network's own
WIDTH_MULTS = (0.65, 0.8, 1.0)  # proposed widths; those of AutoTailor's ResNet50
SMALLEST_KERNEL = 3  # of the proposed ones
CHANNELS_LAST = ("MatMul", "LayerNormalization", "RMSNormalization")
HARDWARE_MULTIPLE = 8  # channels are kept in multiples of this where the network's own are
PARTS = {"expand_ratio": "FFN", "heads": "Attention", "v_scale": "Attention"}  # of a Transformer block


def make_divisible(value: float, divisor: int) -> int:
    """The multiple of `divisor` nearest to `value`, not below 90 % of it. Source: MobileNetV2 (CVPR 2018), reference code."""
    result = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return result if result >= 0.9 * value else result + divisor


def channel_multiple(size: int) -> int:
    """The largest power of two up to 8 that divides a group's full size."""
    return next(d for d in (HARDWARE_MULTIPLE, 4, 2, 1) if size % d == 0)


def _kept(value: float, full: int, unit: int = 1) -> int:
    """Elements of a group of `full` elements of `unit` channels each, for about `value` elements."""
    channels = min(full * unit, make_divisible(value * unit, channel_multiple(full * unit)))
    return -(-channels // unit)


def _plain(value: float) -> Choice:
    return int(value) if value == int(value) else value


@dataclass(frozen=True, slots=True)
class _Place:
    """A block in its stage: where its variables belong, and when it is skipped."""

    prefix: str
    block: Block
    inner: InnerGroups
    depth: int | None
    skipped_by: int | None

    def kinds(self, attribute: str) -> frozenset[str]:
        part = {PARTS[attribute]} if self.block.kind == "Transformer" and attribute in PARTS else set()
        return frozenset({self.block.kind} | part)


@dataclass(slots=True)
class Proposal:
    """Builds one space. Names that a user asked for must match something; choices that cannot be taken are refused."""

    graph: Graph
    axis_map: AxisMap
    regions: Regions
    wishes: Wishes
    variables: list[Variable] = field(default_factory=list)
    widths: dict[int, Width] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def build(self) -> Space:
        shape = self.graph.shapes[self.graph.inputs[0]]
        resolution = self._resolution(shape[2:])
        for stem in self._stem_groups():
            self._width("stem.width_mult", stem)
        depth_of: dict[str, Depth] = {}
        for stage in self.regions.stages:
            depth = self._depth(stage)
            if depth is not None:
                depth_of[stage.name] = depth
            group = self._stream(stage.blocks[-1].exit)
            if group is not None:
                self._width(f"{stage.name}.width_mult", group)
        places = [place for stage in self.regions.stages for place in self._places(stage, depth_of.get(stage.name))]
        self._branches(places)
        expansions = [e for place in places for e in self._inner(place)]
        self.wishes.refuse_unmatched(self.dropped)
        return Space(
            variables=tuple(self.variables),
            resolution=resolution,
            base_spatial=tuple(shape[2:]),
            widths=tuple(self.widths.values()),
            expansions=tuple(expansions),
            depths=tuple(depth_of.values()),
            dropped=tuple(self.dropped),
        )

    def _add(self, name: str, kind: str, scope: str, choices: Sequence[Choice]) -> int:
        self.variables.append(Variable(name=name, kind=kind, scope=scope, choices=tuple(choices)))
        return len(self.variables) - 1

    # -- resolution --------------------------------------------------------------------------------------------------

    def _resolution(self, spatial: tuple[int, ...]) -> int | None:
        wished = self.wishes.choices("resolution")
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

    def _depth(self, stage: Stage) -> Depth | None:
        if not stage.trailing:
            return None
        name = f"{stage.name}.depth"
        wished = self.wishes.choices(name, {block.kind for block in stage.blocks})
        if wished is None:
            return None
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
        positions = {id(block): i for i, block in enumerate(self.regions.blocks)}
        return Depth(variable=variable, blocks=tuple(positions[id(b)] for b in stage.blocks[-stage.trailing :]))

    def _places(self, stage: Stage, depth: Depth | None) -> list[_Place]:
        places = []
        for index, block in enumerate(stage.blocks, start=1):
            left = len(stage.blocks) - index + 1  # blocks from this one to the end
            skippable = depth is not None and left <= len(depth.blocks)
            places.append(
                _Place(
                    prefix=f"{stage.name}.block.{index}",
                    block=block,
                    inner=inner_of(block, self.axis_map, self.regions.carriers),
                    depth=depth.variable if depth and skippable else None,
                    skipped_by=left if skippable else None,
                )
            )
        return places

    # -- widths ------------------------------------------------------------------------------------------------------

    def _stream(self, value: str) -> int | None:
        groups = [axis for axis in self.axis_map.axes[value] if isinstance(axis, Channels)]
        return groups[0].group if len(groups) == 1 else None

    def _stem_groups(self) -> list[int]:
        staged = {self._stream(stage.blocks[-1].exit) for stage in self.regions.stages}
        group = self._stream(self.regions.stem[-1].exit) if self.regions.stem and self.regions.stages else None
        return [group] if group is not None and group not in staged else []

    def _width(self, name: str, *groups: int, units: Mapping[int, int] | None = None) -> None:
        """One multiplier for channel groups that have none yet."""
        groups = tuple(group for group in groups if group not in self.widths)
        if not groups:
            return
        full = [self.axis_map.groups[group] for group in groups]
        wished = self.wishes.choices(name)
        choices: list[Choice] = []
        sizes: list[tuple[int, ...]] = []
        for mult in reversed((1.0,) if wished is None else wished or WIDTH_MULTS):
            if not 0 < mult <= 1:
                raise SpaceError(f"space: {name}={mult}; allowed: above 0, up to 1")
            kept = tuple(
                size if mult == 1 else _kept(mult * size, size, (units or {}).get(group, 1))
                for group, size in zip(groups, full, strict=True)
            )
            if kept in sizes:
                same = "sizes" if len(kept) > 1 else f"{kept[0]} channels"
                if wished:
                    raise SpaceError(f"space: {name}={mult}: the same {same} as another choice; leave it out")
                self.dropped.append(f"{name}={mult}: the same {same} as a larger choice")
                continue
            choices.insert(0, _plain(mult))
            sizes.insert(0, kept)
        if choices[-1] != 1:
            raise SpaceError(f"space: {name}={list(choices)}: must include 1, the network as it is")
        kind = "growth_mult" if name.endswith("growth_mult") else "width_mult"
        variable = self._add(name, kind, "stage", choices) if len(choices) > 1 else None
        for index, group in enumerate(groups):
            self.widths[group] = Width(group=group, variable=variable, sizes=tuple(kept[index] for kept in sizes))

    def _branches(self, places: Sequence[_Place]) -> None:
        """Channels that are neither a stage's stream nor inside one block: one multiplier for those of a stage."""
        everything = inner_groups(self.graph.nodes, (), self.axis_map, self.regions.carriers)
        inside = {g for place in places for g in (*place.inner.hidden, *place.inner.heads, *place.inner.values)}
        labels = self._labels()
        found: dict[tuple[str, bool], list[int]] = {}
        for group in everything.hidden:
            makers = [labels[name] for name in self.regions.carriers[group] if name in labels]
            if group not in self.widths and group not in inside and makers:
                found.setdefault((min(makers)[1], self._grows(group)), []).append(group)
        taken = {variable.name for variable in self.variables}
        for (label, grows), groups in found.items():
            name = f"{label}.growth_mult" if grows else f"{label}.width_mult"
            name = f"{label}.branch_width_mult" if name in taken else name
            self._width(name, *groups, units=everything.units)

    def _grows(self, group: int) -> bool:
        """Whether a group is added to ever longer concatenations, as in densely connected layers."""
        axes = {axis for name in self.regions.carriers[group] for axis in self.axis_map.axes[name]}
        lengths = {axis.size for axis in axes if isinstance(axis, Concat) and group in axis.groups}
        return len(lengths) > 2

    def _labels(self) -> dict[str, tuple[int, str]]:
        """Computed value -> position and name of the stage that it belongs to (the last that began before it)."""
        position = {node.name: i for i, node in enumerate(self.graph.nodes)}
        starts = [(position[stage.blocks[0].nodes[0].name], stage.name) for stage in self.regions.stages]
        starts = starts or self._resolution_changes()
        labels = {}
        for node in self.graph.nodes:
            before = [name for start, name in starts if start <= position[node.name]]
            labels.update(dict.fromkeys(node.outputs, (position[node.name], before[-1] if before else "stem")))
        return labels

    def _resolution_changes(self) -> list[tuple[int, str]]:
        """Where a network without blocks first has images of another size."""
        seen: list[object] = []
        starts = []
        for index, node in enumerate(self.graph.nodes):
            axes = self.axis_map.axes[node.outputs[0]]
            if len(axes) > 2 and axes[-1] not in seen and axes[-1].spatial:
                seen.append(axes[-1])
                starts.append((index, f"stage.{len(seen)}"))
        return starts

    def _reference(self, block: Block, value: str) -> Width | None:
        group = self._stream(value)
        if group is not None and group in self.widths:
            return self.widths[group]
        axes = self.axis_map.axes[value]
        readers = [node.inputs[0] for node in block.nodes if node.op in CHANNELS_LAST]
        last = any(self.axis_map.axes[one] == axes for one in readers)
        sizes = [axis.size for axis in (axes[-1:] if last else axes[1:2])]
        size = self.axis_map.groups[group] if group is not None else sizes[0] if sizes else None
        return Width(group=group, variable=None, sizes=(size,)) if size else None

    # -- inside blocks -----------------------------------------------------------------------------------------------

    def _inner(self, place: _Place) -> list[Expansion]:
        found = [self._expansion(place), self._heads(place), self._values(place), self._kernels(place)]
        return [expansion for expansion in found if expansion is not None]

    def _wished(self, place: _Place, attribute: str) -> tuple[str, Sequence[Choice] | None]:
        name = f"{place.prefix}.{attribute}"
        return name, self.wishes.choices(name, place.kinds(attribute), [node.name for node in place.block.nodes])

    def _chosen(
        self,
        place: _Place,
        name: str,
        choices: Sequence[Choice],
        groups: Sequence[int],
        reference: Width,
        sizes: Sequence[tuple[tuple[int, ...], ...]],
    ) -> Expansion | None:
        if len(choices) < 2:
            return None
        return Expansion(
            groups=tuple(groups),
            variable=self._add(name, name.rsplit(".", 1)[-1], "block", choices),
            reference=reference,
            sizes=tuple(sizes),
            depth=place.depth,
            skipped_by=place.skipped_by,
        )

    def _expansion(self, place: _Place) -> Expansion | None:
        groups, units = place.inner.hidden, place.inner.units
        groups = tuple(group for group in groups if group not in self.widths)
        if not groups:
            return None
        full = max(self.axis_map.groups[g] * units[g] for g in groups)
        reference = self._reference(place.block, place.block.entry)
        if reference is None or full <= reference.sizes[-1]:  # a bottleneck's ratio is of its output
            reference = self._reference(place.block, place.block.exit) or reference
        if reference is None:
            return None
        own = full / reference.sizes[-1]
        name, wished = self._wished(place, "expand_ratio")
        if wished is None:
            return None
        choices = self._expansion_choices(name, wished, own, full)
        tables = [self._expansion_sizes(choices, own, self.axis_map.groups[g], units[g], reference) for g in groups]
        return self._chosen(place, name, choices, groups, reference, tables)

    def _expansion_choices(self, name: str, wished: Sequence[Choice], own: float, full: int) -> tuple[Choice, ...]:
        if not wished:
            proposed: dict[int, Choice] = {}
            for share in RELATIVE_RATIOS:
                ratio = _plain(own) if share == 1 else round(own * share, 4)
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
        self, choices: Sequence[Choice], own: float, full: int, unit: int, reference: Width
    ) -> tuple[tuple[int, ...], ...]:
        """Elements by reference width choice and ratio choice. Hidden groups narrower than the widest keep their share."""
        largest = choices[-1]
        table = []
        for width in reference.sizes:
            share = width / reference.sizes[-1]
            row = tuple(
                full if ratio == largest and share == 1 else _kept(full * share * ratio / own, full, unit)
                for ratio in choices
            )
            table.append(row)
        return tuple(table)

    def _absolute(
        self, place: _Place, attribute: str, groups: Sequence[int], proposed: Sequence[int], scale: int = 1
    ) -> Expansion | None:
        """A variable whose choices are sizes themselves, divided by `scale`. All groups have one size."""
        full = self.axis_map.groups[groups[0]]
        name, wished = self._wished(place, attribute)
        if wished is None:
            return None
        choices = tuple(wished) or tuple(_plain(size / scale) for size in proposed)
        sizes = [round(choice * scale) for choice in choices]
        legal = [s for s in range(1, full + 1) if attribute != "kernel_size" or self._padded(groups, full - s)]
        for choice, size in zip(choices, sizes, strict=True):
            if size not in legal or abs(choice * scale - size) > 1e-6:
                allowed = ", ".join(str(_plain(round(size / scale, 4))) for size in legal[-12:])
                raise SpaceError(f"space: {name}={choice}; allowed: {allowed}")
        if full not in sizes:
            raise SpaceError(f"space: {name}={list(choices)}: must include the network's own, {_plain(full / scale)}")
        reference = Width(group=None, variable=None, sizes=(full,))
        return self._chosen(place, name, choices, groups, reference, [(tuple(sizes),) for _ in groups])

    def _same_size(self, groups: Sequence[int]) -> tuple[int, ...]:
        """The groups of the largest size; others stay as they are."""
        largest = max(self.axis_map.groups[g] for g in groups)
        return tuple(g for g in groups if self.axis_map.groups[g] == largest)

    def _heads(self, place: _Place) -> Expansion | None:
        if not place.inner.heads:
            return None
        groups = self._same_size(place.inner.heads)
        full = self.axis_map.groups[groups[0]]
        return self._absolute(place, "heads", groups, sorted({max(1, full // 2), -(-3 * full // 4), full}))

    def _values(self, place: _Place) -> Expansion | None:
        if not place.inner.values:
            return None
        groups = self._same_size(place.inner.values)
        full = self.axis_map.groups[groups[0]]
        proposed = sorted({_kept(share * full, full) for share in RELATIVE_RATIOS})
        return self._absolute(place, "v_scale", groups, proposed, scale=place.inner.key_size)

    def _padded(self, groups: Sequence[int], cropped: int) -> bool:
        """Whether kernels of these groups can lose so many positions: as much padding as that can be left out."""
        if cropped % 2:
            return False
        convolutions = [n for n in self.graph.nodes if n.op == "Conv" and n.inputs[1] in self.axis_map.axes]
        found = [n for n in convolutions if not groups_of(self.axis_map.axes[n.inputs[1]][2:]).isdisjoint(groups)]
        for node in found:
            rank = len(self.axis_map.axes[node.inputs[1]]) - 2
            dilations = node.ints("dilations", (1,) * rank)
            if any(p < dilations[i % rank] * cropped // 2 for i, p in enumerate(explicit_pads(node, rank))):
                return False
        return True

    def _kernels(self, place: _Place) -> Expansion | None:
        if not place.inner.kernels:
            return None
        groups = self._same_size(place.inner.kernels)
        full = self.axis_map.groups[groups[0]]
        return self._absolute(place, "kernel_size", groups, range(SMALLEST_KERNEL, full + 1, 2))


def propose(graph: Graph, axis_map: AxisMap, regions: Regions, wish: Wish | None) -> Space:
    """The space of a network: the user's, or (None) a proposed one."""
    return Proposal(graph, axis_map, regions, Wishes(wish)).build()
