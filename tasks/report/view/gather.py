"""The content of a SuperNet's page, as plain data. Nothing is executed: sizes and costs follow from the axes.

Every number is of the largest or the smallest SubNet, batch 1.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from tailor_ir import Block, SuperNet, choice_text
from tailor_ir import axes as ax
from tailor_ir.graph import Node
from tailor_ir.summary import Describer, NodeCost, SubnetSummary, VariableInfo, axis_label, elements_of
from tasks.base.places import places

Shape = tuple[int, ...]
PLAIN = "Plain"  # the kind of blocks that no template names
MOST_OPERATORS = 3  # in the title of such a block


@dataclass(frozen=True, slots=True)
class Amounts:
    """A count in the largest and in the smallest SubNet."""

    largest: int
    smallest: int


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shape of one value for one sample, the batch left out, in the largest and in the smallest SubNet."""

    largest: Shape
    smallest: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorView:
    """One node in the largest SubNet. inputs: computed values; weights: stored tensors; axes: labels, without H and W."""

    name: str
    op: str
    inputs: tuple[Shape, ...]
    weights: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    axes: tuple[str, ...]
    parameters: int
    macs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockView:
    """One block. number: from 1, over the whole network. name: "" outside stages.

    skippable: entry and exit have the same axes, so it could be skipped. skipped_by: the choices that skip it, per variable.
    variables: those of this block. touched_by: all variables that resize it or skip it.
    """

    number: int
    name: str
    kind: str
    residual: bool
    skippable: bool
    skipped_by: tuple[str, ...]
    exit: Shapes
    parameters: Amounts
    macs: Amounts
    variables: tuple[VariableInfo, ...]
    touched_by: tuple[str, ...]
    operators: tuple[OperatorView, ...]

    @property
    def title(self) -> str:
        """The kind, if a template names it; else the operators."""
        if self.kind != PLAIN:
            return self.kind
        names = list(dict.fromkeys(operator.op for operator in self.operators))
        return ", ".join(names[:MOST_OPERATORS]) + (" …" if len(names) > MOST_OPERATORS else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionView:
    """Consecutive blocks: a stage, or (`stage` False) the blocks before, between and after stages."""

    name: str
    stage: bool
    variables: tuple[VariableInfo, ...]
    blocks: tuple[BlockView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisView:
    """A channel group (or another axis of its own): its size, its nodes, and the variables that cut it."""

    label: str
    sizes: Amounts
    nodes: int
    first_node: str
    last_node: str
    variables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenView:
    """A part that every SubNet has at full size, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SupernetView:
    """A whole SuperNet. `variables` are all of them; those in no block and no section are `elsewhere`, at the input."""

    title: str
    nodes: int
    inputs: tuple[Shapes, ...]
    parameters: Amounts
    macs: Amounts
    modifications: int
    codes: int
    distinct: int
    variables: tuple[VariableInfo, ...]
    elsewhere: tuple[VariableInfo, ...]
    sections: tuple[SectionView, ...]
    axes: tuple[AxisView, ...]
    frozen: tuple[FrozenView, ...]
    dropped: tuple[str, ...]

    @property
    def blocks(self) -> tuple[BlockView, ...]:
        """All blocks in order."""
        return tuple(block for section in self.sections for block in section.blocks)


def gather(net: SuperNet, title: str) -> SupernetView:
    """The view of a SuperNet."""
    return _Gatherer(net, title).view()


@dataclass(frozen=True)
class _Gatherer:
    net: SuperNet
    title: str

    @cached_property
    def _data(self) -> frozenset[str]:
        return self.net.structure.graph.data_values()

    @cached_property
    def describer(self) -> Describer:
        return Describer(self.net.structure)

    @cached_property
    def largest(self) -> SubnetSummary:
        return self.describer.summary(self.net.space.row(self.net.max_config))

    @cached_property
    def smallest(self) -> SubnetSummary:
        return self.describer.summary(self.net.space.row(self.net.min_config))

    @cached_property
    def variables(self) -> tuple[VariableInfo, ...]:
        return tuple(self.describer.variables())

    def view(self) -> SupernetView:
        space, graph = self.net.space, self.net.structure.graph
        sections = self._sections()
        placed = {v.name for s in sections for v in (*s.variables, *(v for b in s.blocks for v in b.variables))}
        return SupernetView(
            title=self.title,
            nodes=len(graph.nodes),
            inputs=tuple(map(self._shapes, graph.inputs)),
            parameters=Amounts(self.largest.parameters, self.smallest.parameters),
            macs=Amounts(self.largest.macs, self.smallest.macs),
            modifications=space.modifications,
            codes=space.codes,
            distinct=space.distinct,
            variables=self.variables,
            elsewhere=tuple(v for v in self.variables if v.name not in placed),
            sections=sections,
            axes=self._axes(),
            frozen=tuple(self._frozen()),
            dropped=space.dropped,
        )

    def _shapes(self, value: str) -> Shapes:
        skip = 1 if any(isinstance(axis, ax.BatchAxis) for axis in self.net.structure.axis_map.axes[value][:1]) else 0
        return Shapes(self.largest.shapes[value][skip:], self.smallest.shapes[value][skip:])

    # -- blocks and sections -----------------------------------------------------------------------------------------

    def _sections(self) -> tuple[SectionView, ...]:
        regions = self.net.structure.regions
        blocks = enumerate(zip(regions.blocks, places(regions), strict=True))
        runs = groupby(blocks, lambda item: (item[1][1].section, item[1][1].stage))
        return tuple(
            SectionView(
                name=name,
                stage=stage,
                variables=tuple(v for v in self.variables if v.name.rpartition(".")[0] == name),
                blocks=tuple(self._block(index, block, place.block) for index, (block, place) in run),
            )
            for (name, stage), run in runs
        )

    def _block(self, index: int, block: Block, name: str) -> BlockView:
        nodes = [*self._helpers[index], *block.nodes]
        names = {node.name for node in nodes}
        largest, smallest = _cost(self.largest, nodes), _cost(self.smallest, nodes)
        return BlockView(
            number=index + 1,
            name=name,
            kind=block.kind,
            residual=block.residual,
            skippable=block.skippable,
            skipped_by=self._skipping[index],
            exit=self._shapes(block.exit),
            parameters=Amounts(largest.parameters, smallest.parameters),
            macs=Amounts(largest.macs, smallest.macs),
            variables=tuple(v for v in self.variables if name and v.name.startswith(f"{name}.")),
            touched_by=tuple(v.name for v in self.variables if names & self._touched[v.name]),
            operators=tuple(self._operator(node) for node in nodes),
        )

    @cached_property
    def _touched(self) -> dict[str, frozenset[str]]:
        return {v.name: frozenset(v.nodes) for v in self.variables}

    @cached_property
    def _helpers(self) -> list[list[Node]]:
        """For each block, the nodes outside of all blocks that it is the first to need, or that only it feeds, in order.

        The first kind computes on weights alone, such as the look-up of a relative position bias; the others are alternatives
        to the block, or the head of an exit behind it.
        """
        graph, blocks = self.net.structure.graph, self.net.structure.regions.blocks
        home = {node.name: index for index, block in enumerate(blocks) for node in block.nodes}
        consumers, producers = graph.consumers(), graph.producers()
        for one in graph.alternatives:
            if one.kind == "block":
                consumers.setdefault(one.producer, []).append(producers[one.value])
        found: list[list[Node]] = [[] for _ in blocks]
        for node in reversed(graph.nodes):
            if node.name not in home:
                users = [home[u.name] for output in node.outputs for u in consumers.get(output, []) if u.name in home]
                if users or not self._data.issuperset(node.outputs):
                    home[node.name] = min(users, default=len(blocks) - 1)
                    found[home[node.name]].insert(0, node)
        for node in graph.nodes:
            if node.name not in home:
                before = [home[producers[name].name] for name in node.inputs if name in producers]
                home[node.name] = max(before, default=0)
                found[home[node.name]].append(node)
        return found

    @cached_property
    def _skipping(self) -> dict[int, tuple[str, ...]]:
        """Position of a block -> the choices that skip it: "stage.2.depth = -2, -1"."""
        space, presence = self.net.space, self.net.structure.presence
        found: dict[int, list[str]] = {index: [] for index in range(len(self.net.structure.regions.blocks))}
        for column in space.selecting:
            variable = space.variables[column]
            skipped_at: dict[int, list[str]] = {}
            for choice, value in enumerate(variable.choices):
                codes = space.cardinalities - 1
                codes[column] = choice
                codes = space.extended(codes[None])[0]
                for index, block in enumerate(self.net.structure.regions.blocks):
                    if not any(presence[node.name].at(codes) for node in block.nodes):
                        skipped_at.setdefault(index, []).append(choice_text(value))
            for index, values in skipped_at.items():
                found[index].append(f"{variable.name} = {', '.join(values)}")
        return {index: tuple(texts) for index, texts in found.items()}

    def _operator(self, node: Node) -> OperatorView:
        stored = self.net.structure.graph.initializers
        shapes, cost = self.largest.shapes, self._costs[node.name]
        return OperatorView(
            name=node.name,
            op=node.op,
            inputs=tuple(shapes[name] for name in node.inputs if name and name not in stored),
            weights=tuple(shapes[name] for name in node.inputs if name in stored),
            outputs=tuple(shapes[name] for name in node.outputs),
            axes=_labels(a for name in (*node.inputs, *node.outputs) if name for a in self._elements[name]),
            parameters=cost.parameters,
            macs=cost.macs,
        )

    @cached_property
    def _costs(self) -> dict[str, NodeCost]:
        """Cost per node in the largest SubNet; nodes absent there are taken from a SubNet that differs in one choice."""
        space, found = self.net.space, dict(self.largest.nodes)
        for column in space.selecting:
            for choice in range(len(space.variables[column].choices) - 1):
                if len(found) == len(self.net.structure.graph.nodes):
                    return found
                codes = space.cardinalities - 1
                codes[column] = choice
                found = {**self.describer.summary(codes).nodes, **found}
        return found

    # -- axes and frozen parts ---------------------------------------------------------------------------------------

    @cached_property
    def _elements(self) -> dict[str, tuple[ax.Axis, ...]]:
        """Value -> its elementary axes, without height and width."""
        known = self.net.structure.axis_map.axes.items()
        return {
            name: tuple(e for axis in axes for e in elements_of(axis) if not isinstance(e, ax.Spatial))
            for name, axes in known
        }

    @cached_property
    def _carriers(self) -> dict[ax.Axis, list[str]]:
        """Elementary axis -> names of the nodes that read or compute it, in order."""
        found: dict[ax.Axis, list[str]] = {}
        for node in self.net.structure.graph.nodes:
            names = [name for name in (*node.inputs, *node.outputs) if name]
            for element in dict.fromkeys(e for name in names for e in self._elements[name]):
                found.setdefault(element, []).append(node.name)
        return found

    def _axes(self) -> tuple[AxisView, ...]:
        rows = []
        selecting = {self.net.space.variables[column].name for column in self.net.space.selecting}
        for element, nodes in self._carriers.items():
            label = axis_label(element)
            rows.append(
                AxisView(
                    label=label,
                    sizes=Amounts(element.size, self.smallest.sizes(element)),
                    nodes=len(nodes),
                    first_node=nodes[0],
                    last_node=nodes[-1],
                    variables=tuple(v.name for v in self.variables if label in v.axes and v.name not in selecting),
                )
            )
        return tuple(sorted(rows, key=lambda row: (row.label[0], int(row.label[1:]))))

    def _frozen(self) -> Iterator[FrozenView]:
        reason = self.net.structure.axis_map.resolution_frozen
        if reason:
            yield FrozenView(what="the resolution", why=reason)
        for row in self._axes():
            if not row.variables:
                what = f"{row.label}, size {row.sizes.largest}, {row.first_node} … {row.last_node}"
                yield FrozenView(what=what, why="no variable cuts it")
        frozen = self.net.structure.axis_map.frozen
        for node in self.net.structure.graph.nodes:
            size = self._fixed_result(node)
            if size > 1:
                reasons = frozen[node.outputs[0]]
                why = next(filter(None, (reasons[1], *reasons)), "tied to a size that cannot change")
                yield FrozenView(what=f"{size} channels of {node.op} {node.name}", why=why)

    def _fixed_result(self, node: Node) -> int:
        """Number of channels of a convolution or linear map if no config changes them; 0 if one can, or for other nodes."""
        graph, axes = self.net.structure.graph, self.net.structure.axis_map.axes
        stored = (name for name in node.inputs if name and name not in self._data and name not in graph.constants)
        weights = [axes[name] for name in stored if len(axes[name]) > 1 and node.outputs[0] in self._data]
        result = axes[node.outputs[0]]
        if not weights or len(weights[0]) > len(result):
            return 0
        channels = result[1] if len(weights[0]) > 2 else result[-1]
        return 0 if any(True for _ in elements_of(channels)) else channels.size


def _cost(summary: SubnetSummary, nodes: Sequence[Node]) -> NodeCost:
    costs = [summary.nodes[node.name] for node in nodes if node.name in summary.nodes]
    return NodeCost(sum(cost.parameters for cost in costs), sum(cost.macs for cost in costs))


def _labels(axes: Iterable[ax.Axis]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(axis_label, axes)))
