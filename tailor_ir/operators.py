"""The operators of SubNets, read off the axes: which variables each of them depends on, and all that any SubNet has.

An operator's shapes depend on few variables. Its axes are evaluated over all choices of these at once; a template
describes every different row of sizes once, and blocks that are alike share templates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from tailor_ir.axes import Axis, Sizes, groups_of, spatial_in
from tailor_ir.clusters import find_clusters
from tailor_ir.elastic import Elastic
from tailor_ir.features import OperatorFeature
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
    depth: tuple[int, np.ndarray] | None  # variable, and for each of its choices whether the cluster is skipped


class OperatorTable:
    """Reads operators off the axes of one SuperNet."""

    def __init__(self, elastic: Elastic) -> None:
        self.space = elastic.space
        tensors = {name: elastic.tensor(name).detach().cpu() for name in elastic.graph.constants}
        blocks = enumerate(elastic.regions.blocks)
        self._block_of = {node.name: position for position, block in blocks for node in block.nodes}
        context = Context(elastic.graph, elastic.axis_map, tensors)
        clusters = find_clusters(elastic.graph, tensors, self._block_of)
        known: dict[tuple[object, ...], Template] = {}
        self.templates: list[tuple[Template, Sequence[Axis]]] = []  # of each cluster, and the cluster's own axes
        for cluster in clusters:
            template = Template(context, cluster)
            self.templates.append((known.setdefault(template.key, template), template.axes))
        self._blocks = [self._block_of.get(cluster[0].name) for cluster in clusters]
        self._tables = _group_tables(self.space)

    # -- one SubNet --------------------------------------------------------------------------------------------------

    def operators(self, codes: np.ndarray) -> tuple[OperatorFeature, ...]:
        """The operators of one SubNet, in order."""
        sizes = Sizes(groups=self.space.group_sizes(codes), spatial=self.space.spatial(codes), batch=1)
        skipped = self.space.skipped_blocks(codes)
        return tuple(
            template.feature(tuple([sizes(axis) for axis in axes]))
            for (template, axes), block in zip(self.templates, self._blocks, strict=True)
            if block not in skipped
        )

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
        grids: dict[tuple[int, ...], Sizes] = {}
        terms = []
        for (template, axes), block in zip(self.templates, self._blocks, strict=True):
            variables = self._variables(axes)
            shape = tuple(len(self.space.variables[v].choices) for v in variables)
            if variables not in grids:
                grids[variables] = self._grid(variables)
            rows = _rows(axes, grids[variables], shape)
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
            terms.append(_Term(variables, filled[key].reshape(shape), self._skipped(block)))
        return terms, witnesses

    def _variables(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        """The variables that sizes depend on."""
        found = {v for group in groups_of(axes) if group in self._tables for v in self._tables[group][0]}
        if self.space.resolution is not None and spatial_in(axes):
            found.add(self.space.resolution)
        return tuple(sorted(found))

    def _grid(self, variables: tuple[int, ...]) -> Sizes:
        """Sizes of axes as arrays with one axis for each variable."""
        groups = {g: _spread(*table, variables) for g, table in self._tables.items() if set(table[0]) <= set(variables)}
        spatial: Sequence[int | np.ndarray] = self.space.base_spatial
        if self.space.resolution in variables:
            choices = self.space.variables[self.space.resolution].choices
            side = _spread((self.space.resolution,), np.asarray(choices, np.int64), variables)
            spatial = (side,) * len(spatial)
        # arithmetic on arrays is that on numbers
        return Sizes(groups=cast("Mapping[int, int]", groups), spatial=cast("tuple[int, ...]", spatial), batch=1)

    def _skipped(self, block: int | None) -> tuple[int, np.ndarray] | None:
        for depth in self.space.depths:
            if block in depth.blocks:
                left = len(depth.blocks) - depth.blocks.index(block)  # blocks from this one to the end
                choices = self.space.variables[depth.variable].choices
                return depth.variable, np.asarray([-int(choice) >= left for choice in choices])
        return None


_Table = tuple[tuple[int, ...], np.ndarray]  # variables, and sizes with one axis for each


def _group_tables(space: Space) -> dict[int, _Table]:
    """Channel group -> the variables that its size depends on, and its sizes; as `Space.group_sizes`."""
    tables: dict[int, _Table] = {}
    for width in space.widths:
        if width.group is not None and width.variable is not None:
            tables[width.group] = (width.variable,), np.asarray(width.sizes, np.int64)
    for e in space.expansions:
        for group, sizes in zip(e.groups, e.sizes, strict=True):
            table = np.asarray(sizes, np.int64)
            if e.reference.variable is None:
                tables[group] = (e.variable,), table[0]
            else:
                tables[group] = (e.reference.variable, e.variable), table
    return tables


def _spread(own: tuple[int, ...], table: np.ndarray, variables: tuple[int, ...]) -> np.ndarray:
    """A table over its own variables as one that broadcasts over `variables`, which ascend."""
    order = sorted(range(len(own)), key=lambda axis: own[axis])
    ascending = iter(table.transpose(order).shape)
    shape = [next(ascending) if variable in own else 1 for variable in variables]
    return table.transpose(order).reshape(shape)


def _rows(axes: Sequence[Axis], sizes: Sizes, shape: tuple[int, ...]) -> np.ndarray:
    """(product of `shape`, axes): the size of every axis for every combination of choices."""
    rows = np.empty((*shape, len(axes)), np.int64)
    for position, axis in enumerate(axes):
        rows[..., position] = sizes(axis)
    return rows.reshape(-1, len(axes))
