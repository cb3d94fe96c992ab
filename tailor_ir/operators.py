"""The operators of SubNets, read off the axes: which variables each of them depends on, and all that any SubNet has.

An operator's shapes depend on few variables. Its axes are evaluated over all choices of these at once; a template
describes every different row of sizes once, and blocks that are alike share templates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush

import numpy as np

from tailor_ir.axes import Axis, Sizes
from tailor_ir.clusters import find_clusters
from tailor_ir.elastic import Elastic
from tailor_ir.features import OperatorFeature
from tailor_ir.grids import Grids, SkippedBy
from tailor_ir.space import Config, Space
from tailor_ir.templates import Context, Row, Template

SKIPPED = -1

Choices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChosenFeatures(Mapping[Choices, OperatorFeature | None]):
    """Choice indices of a term's variables -> its operator, None where the SubNet has skipped its block.

    `numbers` has one axis for each variable: positions in `operators`, or SKIPPED.
    """

    numbers: np.ndarray
    operators: Sequence[OperatorFeature]

    def __getitem__(self, choices: Choices) -> OperatorFeature | None:
        if len(choices) != self.numbers.ndim or any(
            not 0 <= c < n for c, n in zip(choices, self.numbers.shape, strict=True)
        ):
            raise KeyError(choices)
        number = int(self.numbers[tuple(choices)])
        return None if number == SKIPPED else self.operators[number]

    def __iter__(self) -> Iterator[Choices]:
        return iter(np.ndindex(self.numbers.shape))

    def __len__(self) -> int:
        return self.numbers.size


@dataclass(frozen=True, slots=True)
class OperatorTerm:
    """One operator of the largest network over all configs.

    `variables`: columns of choice-index rows that it depends on. `features`: choice indices of those -> the operator,
    None where the SubNet has skipped its block. The operators of a SubNet are the terms' features under its choices.
    """

    variables: tuple[int, ...]
    features: ChosenFeatures


@dataclass(frozen=True, slots=True)
class PlacedOperator:
    """An operator where it stands in one SubNet.

    `inputs`, `outputs`: values in the order of the feature's, by their names in the graph and in exported files. `names`:
    all nodes and values that it is made of.
    """

    feature: OperatorFeature
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class PlacedOperators:
    """A SubNet's operators from its inputs to its outputs, each after those that it reads from."""

    operators: tuple[PlacedOperator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _sorted(placed: Sequence[PlacedOperator]) -> tuple[PlacedOperator, ...]:
    """The operators in an order in which they can run, as near to the given one as that allows."""
    writer = {value: position for position, one in enumerate(placed) for value in one.outputs}
    sorter = TopologicalSorter({i: [writer[v] for v in one.inputs if v in writer] for i, one in enumerate(placed)})
    sorter.prepare()
    order: list[int] = []
    ready = list(sorter.get_ready())
    heapify(ready)
    while ready:
        order.append(heappop(ready))
        sorter.done(order[-1])
        for position in sorter.get_ready():
            heappush(ready, position)
    return tuple(placed[position] for position in order)


@dataclass(frozen=True, slots=True)
class UniqueOperators(Mapping[OperatorFeature, Config]):
    """Operator -> a canonical config that has it: the largest SubNet's but for the choices in `witnesses`."""

    space: Space
    witnesses: Mapping[OperatorFeature, tuple[tuple[int, ...], Choices]]

    def __getitem__(self, feature: OperatorFeature) -> Config:
        variables = self.space.variables
        config = self.space.max_config
        for index, choice in zip(*self.witnesses[feature], strict=True):
            config[variables[index].name] = variables[index].choices[choice]
        return config

    def __contains__(self, feature: object) -> bool:
        return feature in self.witnesses

    def __iter__(self) -> Iterator[OperatorFeature]:
        return iter(self.witnesses)

    def __len__(self) -> int:
        return len(self.witnesses)


@dataclass(frozen=True, slots=True)
class _Term:
    """A cluster's sizes over all choices. `numbers`: positions of its operators, one axis for each of `variables`."""

    variables: tuple[int, ...]
    numbers: np.ndarray
    depth: SkippedBy | None


class OperatorTable:
    """Reads operators off the axes of one SuperNet, for one batch size."""

    def __init__(self, elastic: Elastic, batch: int = 1) -> None:
        self.space = elastic.space
        self._batch = batch
        tensors = {name: elastic.tensor(name).detach().cpu() for name in elastic.graph.constants}
        blocks = enumerate(elastic.regions.blocks)
        self._block_of = {node.name: position for position, block in blocks for node in block.nodes}
        context = Context(elastic.graph, elastic.axis_map, tensors)
        clusters = find_clusters(elastic.graph, tensors, self._block_of)
        known: dict[tuple[object, ...], Template] = {}
        self._graph, self._regions = elastic.graph, elastic.regions
        self._own: list[Template] = []  # each cluster's own, with its names
        self.templates: list[tuple[Template, Sequence[Axis]]] = []  # of each cluster, and the cluster's own axes
        for cluster in clusters:
            template = Template(context, cluster)
            self.templates.append((known.setdefault(template.key, template), template.axes))
            self._own.append(template)
        self._blocks = [self._block_of.get(cluster[0].name) for cluster in clusters]
        self._grids = Grids(self.space, batch)

    # -- one SubNet --------------------------------------------------------------------------------------------------

    def operators(self, codes: np.ndarray) -> tuple[OperatorFeature, ...]:
        """The operators of one SubNet, in order."""
        sizes = Sizes(groups=self.space.group_sizes(codes), spatial=self.space.spatial(codes), batch=self._batch)
        skipped = self.space.skipped_blocks(codes)
        return tuple(
            template.feature(tuple([sizes(axis) for axis in axes]))
            for (template, axes), block in zip(self.templates, self._blocks, strict=True)
            if block not in skipped
        )

    def placed(self, codes: np.ndarray) -> PlacedOperators:
        """The same with the values that each reads and writes: behind skipped blocks, what these would have read."""
        skipped = self.space.skipped_blocks(codes)
        alias: dict[str, str] = {}
        for position in sorted(skipped):
            block = self._regions.blocks[position]
            alias[block.exit] = alias.get(block.entry, block.entry)
        left = [own for own, block in zip(self._own, self._blocks, strict=True) if block not in skipped]
        placed = tuple(
            PlacedOperator(
                feature,
                tuple(alias.get(name, name) for name in own.operands),
                own.results,
                frozenset(name for node in own.cluster for name in (node.name, *node.outputs)),
            )
            for feature, own in zip(self.operators(codes), left, strict=True)
        )
        outputs = tuple(alias.get(name, name) for name in self._graph.outputs)
        return PlacedOperators(_sorted(placed), self._graph.inputs, outputs)

    # -- all SubNets -------------------------------------------------------------------------------------------------

    def terms(self) -> Iterator[OperatorTerm]:
        """One term for each operator of the largest network."""
        terms, witnesses = self._enumerated
        operators = tuple(witnesses)
        for term in terms:
            variables, numbers = term.variables, term.numbers
            if term.depth is not None:
                depth, skips = term.depth
                position = sum(variable < depth for variable in variables)
                variables = (*variables[:position], depth, *variables[position:])
                shape = [1] * len(variables)
                shape[position] = len(skips)
                numbers = np.where(skips.reshape(shape), SKIPPED, np.expand_dims(numbers, position))
            yield OperatorTerm(variables, ChosenFeatures(numbers, operators))

    def unique(self) -> UniqueOperators:
        """Every operator that some SubNet has, each with a config that has it."""
        return UniqueOperators(self.space, self._enumerated[1])

    @cached_property
    def _enumerated(self) -> tuple[list[_Term], dict[OperatorFeature, tuple[tuple[int, ...], Choices]]]:
        """Terms, and each different operator with variables and choices that give it, all others at their largest."""
        numbers_of: dict[OperatorFeature, int] = {}
        witnesses: dict[OperatorFeature, tuple[tuple[int, ...], Choices]] = {}
        filled: dict[tuple[int, bytes], np.ndarray] = {}
        terms = []
        for (template, axes), block in zip(self.templates, self._blocks, strict=True):
            variables = self._grids.variables(axes)
            shape = self._grids.shape(variables)
            rows = self._grids.rows(axes, variables)
            key = id(template), rows.tobytes()
            if key not in filled:
                numbers = np.empty(len(rows), np.int32)
                seen: dict[Row, int] = {}
                # the largest choices first: a witness has the largest of choices that give the same sizes, as canonical
                # configs have
                for at, row in zip(range(len(rows) - 1, -1, -1), map(tuple, reversed(rows.tolist())), strict=True):
                    number = seen.get(row)
                    if number is None:
                        feature = template.feature(row)
                        number = seen[row] = numbers_of.setdefault(feature, len(numbers_of))
                        if number == len(witnesses):
                            witnesses[feature] = variables, tuple(int(i) for i in np.unravel_index(at, shape))
                    numbers[at] = number
                filled[key] = numbers
            terms.append(_Term(variables, filled[key].reshape(shape), self._grids.skipped_by(block)))
        return terms, witnesses
