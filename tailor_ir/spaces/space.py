"""The space of a SuperNet: variables, choices, configs and structure, with counting, sampling, and canonical forms.

The structure is all facts about a network except its weights: graph, axes, regions, space, presence of each node. Sizes
of axes are arrays over the choices of few variables: each array has one axis for each variable. Codes may have given
values in some columns, including derived columns; not all combinations of values are reachable.
"""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import cast

import numpy as np

from solvers.chain import Chain
from solvers.tables import Derived, Table, spread, with_derived
from tailor_ir.axes import Axis, Sizes, groups_of, spatial_in
from tailor_ir.errors import ConfigError
from tailor_ir.graph import Graph, Node
from tailor_ir.spaces.canonical import Canonical, CanonicalChoices, count, effects_of, find_rules, relevance
from tailor_ir.spaces.presence import ALWAYS, DerivedColumns, Presence, Producers, Roster, Selection, Sizing, Variables
from tailor_ir.spaces.selectors import Choice, Config, Variable, VariableInfo
from tailor_ir.structure.propagation import AxisMap, sides_of
from tailor_ir.structure.regions import Regions


@dataclass(frozen=True)
class Space:
    """All SubNets of one SuperNet. Configs map variable names to choices; a missing name means its default.

    resolution: column of the variable that sets the input's height and width. sizings: the sizes of elastic groups. selections:
    the values with several producers. dropped: proposals that were dropped, with the reasons. derived: the derived columns of
    presences (`tailor_ir.spaces.presence`).
    """

    variables: tuple[Variable, ...]
    resolution: int | None
    base_spatial: tuple[int, ...]
    sizings: tuple[Sizing, ...]
    selections: tuple[Selection, ...]
    derived: tuple[Derived, ...] = ()
    dropped: tuple[str, ...] = ()
    describe: Callable[[], tuple[VariableInfo, ...]] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def info(self) -> tuple[VariableInfo, ...]:
        """For each variable: the nodes and axes that it affects, and the parameters and MACs that it can save."""
        return self.describe() if self.describe is not None else ()

    # -- counting ----------------------------------------------------------------------------------------------------

    @property
    def modifications(self) -> int:
        """Number of (variable, choice) pairs."""
        return sum(len(v.choices) for v in self.variables)

    @property
    def codes(self) -> int:
        """Number of combinations of choices; different codes may be the same SubNet."""
        return prod(len(v.choices) for v in self.variables)

    @cached_property
    def distinct(self) -> int:
        """Exact number of different SubNets."""
        return count(self.cardinalities.tolist(), self.rules, self.derived)

    # -- configs and codes -------------------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> dict[str, int]:
        return {variable.name: i for i, variable in enumerate(self.variables)}

    @property
    def cardinalities(self) -> np.ndarray:
        """Number of choices of each variable, (V,)."""
        return np.asarray([len(v.choices) for v in self.variables], dtype=np.int64)

    @property
    def all_cardinalities(self) -> np.ndarray:
        """Number of values of each column of extended codes, (V + D,)."""
        return np.append(self.cardinalities, np.full(len(self.derived), 2))

    def extended(self, codes: np.ndarray) -> np.ndarray:
        """Codes (n, V) with the derived columns after them (n, V + D), to which presences refer."""
        return with_derived(codes, self.derived)

    @property
    def max_config(self) -> Config:
        """The config of the original network."""
        return {v.name: v.default for v in self.variables}

    @property
    def min_config(self) -> Config:
        """The smallest choice everywhere, canonical."""
        return self.canonical({v.name: v.choices[0] for v in self.variables})

    def row(self, config: Mapping[str, Choice]) -> np.ndarray:
        """Choice indices (V,) of a config. ConfigError for unknown names or choices."""
        codes = self.cardinalities - 1
        for name, choice in config.items():
            if name not in self._index:
                raise ConfigError(f"config: no variable '{name}'; allowed: {', '.join(self._index)}")
            variable = self.variables[self._index[name]]
            if choice not in variable.choices:
                raise ConfigError(f"config: {name}={choice}; allowed: {', '.join(str(c) for c in variable.choices)}")
            codes[self._index[name]] = variable.choices.index(choice)
        return codes

    def encode(self, configs: Iterable[Mapping[str, Choice]]) -> np.ndarray:
        """Choice indices (n, V) of configs."""
        rows = [self.row(config) for config in configs]
        return np.stack(rows) if rows else np.zeros((0, len(self.variables)), np.int64)

    def decode(self, row: np.ndarray) -> Config:
        """The canonical config of one row of choice indices: without the variables that act on nothing."""
        codes = self.canonical_codes(np.asarray(row)[None])[0]
        extended = self.extended(codes[None])[0]
        pairs = zip(self.variables, self.relevance, codes.tolist(), strict=True)
        return {
            variable.name: variable.choices[at]
            for variable, where, at in pairs
            if any(each.at(extended) for each in where)
        }

    def canonical(self, config: Mapping[str, Choice]) -> Config:
        """The config without variables that act on nothing, as in skipped blocks; among equal choices, the largest."""
        return self.decode(self.row(config))

    @cached_property
    def relevance(self) -> tuple[tuple[Presence, ...], ...]:
        """For each variable, the presences of everything that it acts on: it matters in SubNets with at least one of them."""
        columns = self._derived_columns
        return tuple(
            (ALWAYS,) if column == self.resolution else relevance(column, self.sizings, self.selections, columns)
            for column in range(len(self.variables))
        )

    @cached_property
    def _derived_columns(self) -> DerivedColumns:
        return DerivedColumns.of(len(self.variables), self.derived)

    @cached_property
    def rules(self) -> tuple[CanonicalChoices, ...]:
        """The rules of the variables that have choices with equal SubNets."""
        effects = effects_of(self.sizings, self.selections)
        return find_rules(self.all_cardinalities.tolist(), effects, self._derived_columns)

    @cached_property
    def canonical_codes(self) -> Canonical:
        """Rows (n, V) -> rows in which equal SubNets are equal: among choices that act alike, the largest."""
        return Canonical(self.rules, self.derived)

    def random_codes(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Rows (count, V), each variable uniform over its choices, canonical."""
        return self.canonical_codes(rng.integers(0, self.cardinalities, size=(count, len(self.variables))))

    def sample(self, rng: np.random.Generator) -> Config:
        """One canonical config, each variable uniform over its choices."""
        return self.decode(self.random_codes(1, rng)[0])

    def digest(self, config: Mapping[str, Choice]) -> str:
        """Name of a SubNet; equal SubNets have equal names."""
        text = json.dumps(self.canonical(config), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # -- what a config means -----------------------------------------------------------------------------------------

    def group_sizes(self, codes: np.ndarray) -> dict[int, int]:
        """Channel group -> number of kept channels, for elastic groups."""
        row = codes.tolist()
        return {each.group: int(each.sizes[tuple([row[column] for column in each.variables])]) for each in self.sizings}

    def spatial(self, codes: np.ndarray) -> tuple[int, ...]:
        """Input height and width; the resolution is the height, and the width keeps its ratio to it."""
        if self.resolution is None:
            return self.base_spatial
        size = int(self.variables[self.resolution].choices[int(codes[self.resolution])])
        return sides_of(size, self.base_spatial)

    def sizes(self, codes: np.ndarray, batch: int = 1) -> Sizes:
        """The size of every axis under one row of choice indices."""
        return Sizes(groups=self.group_sizes(codes), spatial=self.spatial(codes), batch=batch)

    @cached_property
    def sources(self) -> Producers:
        """The producers of values, by the selections of the space."""
        return Producers(self.selections)

    @cached_property
    def selecting(self) -> Variables:
        """The columns of all variables that decide producers, ascending."""
        return tuple(sorted({column for selection in self.selections for column in selection.variables}))


@dataclass(frozen=True, slots=True)
class Subnet:
    """One config applied to the graph: the nodes that are present, reading the chosen producers, and all sizes."""

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    sizes: Sizes


@dataclass(frozen=True, kw_only=True, eq=False)
class Structure:
    """A network with all its SubNets, without weights. presence: node name -> the SubNets that have the node."""

    graph: Graph
    axis_map: AxisMap
    regions: Regions
    space: Space
    presence: Mapping[str, Presence]

    @cached_property
    def _roster(self) -> Roster:
        return Roster([self.presence[node.name] for node in self.graph.nodes])

    def nodes(self, codes: np.ndarray) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        """The nodes of one SubNet, reading the chosen producers, and the names of its outputs."""
        source = self.space.sources.under(codes)
        outputs = tuple(source.get(name, name) for name in self.graph.outputs)
        nodes = []
        extended = self.space.extended(codes[None])[0]
        for node, there in zip(self.graph.nodes, self._roster.at(extended), strict=True):
            if there:
                if not source.keys().isdisjoint(node.inputs):
                    node = replace(node, inputs=tuple(source.get(name, name) for name in node.inputs))
                nodes.append(node)
        return tuple(nodes), outputs

    def unit_of(self) -> dict[str, Hashable]:
        """Node name -> its unit. Nodes of one unit are in one block, and present in the same SubNets."""
        block_of = {node.name: at for at, block in enumerate(self.regions.blocks) for node in block.nodes}
        return {name: (block_of.get(name), where) for name, where in self.presence.items()}

    def subnet(self, codes: np.ndarray, batch: int = 1) -> Subnet:
        """The SubNet of one row of choice indices (V,)."""
        nodes, outputs = self.nodes(codes)
        return Subnet(nodes, outputs, self.space.sizes(codes, batch))


class Grids:
    """Sizes of axes as arrays over the choices of the variables that they depend on, for one batch size."""

    def __init__(self, space: Space, batch: int = 1) -> None:
        self.space = space
        self._batch = batch
        self._groups = {sizing.group: sizing for sizing in space.sizings}
        self._known: dict[Variables, Sizes] = {}

    def variables(self, axes: Sequence[Axis]) -> Variables:
        """The variables on which the sizes of axes depend, ascending."""
        found = {v for group in groups_of(axes) if group in self._groups for v in self._groups[group].variables}
        if self.space.resolution is not None and spatial_in(axes):
            found.add(self.space.resolution)
        return tuple(sorted(found))

    def shape(self, variables: Variables) -> tuple[int, ...]:
        """Number of choices of each variable."""
        cardinalities = self.space.all_cardinalities
        return tuple(int(cardinalities[v]) for v in variables)

    def sizes(self, variables: Variables) -> Sizes:
        """Sizes of axes as arrays that broadcast to `shape(variables)`."""
        if variables not in self._known:
            self._known[variables] = self._sizes(variables)
        return self._known[variables]

    def rows(self, axes: Sequence[Axis], variables: Variables) -> np.ndarray:
        """Size of every axis for every combination of choices: (product of `shape(variables)`, axes)."""
        shape, sizes = self.shape(variables), self.sizes(variables)
        rows = np.empty((*shape, len(axes)), np.int64)
        for position, axis in enumerate(axes):
            rows[..., position] = sizes(axis)
        return rows.reshape(prod(shape), len(axes))  # explicit sizes, since a value without dimensions has rows, too

    def _sizes(self, variables: Variables) -> Sizes:
        groups = {
            group: spread(sizing.variables, sizing.sizes, variables)
            for group, sizing in self._groups.items()
            if set(sizing.variables) <= set(variables)
        }
        spatial: Sequence[int | np.ndarray] = self.space.base_spatial
        if self.space.resolution in variables:
            choices = self.space.variables[self.space.resolution].choices
            sides = zip(*(sides_of(int(choice), self.space.base_spatial) for choice in choices), strict=True)
            spatial = [spread((self.space.resolution,), np.asarray(side, np.int64), variables) for side in sides]
        # the formulas for numbers also work on arrays
        return Sizes(
            groups=cast("Mapping[int, int]", groups), spatial=cast("tuple[int, ...]", spatial), batch=self._batch
        )


RANDOM_CODES = 512


class Reach:
    """Finds codes of one space: first among those near the largest SubNet and random ones, then among all."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._count = len(space.variables)
        self._codes = np.unique(np.concatenate([*self._near(), self._random()]), axis=0)[::-1]  # the largest one first
        self._extended = space.extended(self._codes)
        self._known: dict[tuple[Variables, bytes], np.ndarray | None] = {}

    def deciders(self, columns: Variables) -> Variables:
        """The given columns that are derived, or from which derived columns among them follow."""
        found, waiting = set[int](), [column for column in columns if column >= self._count]
        while waiting:
            column = waiting.pop()
            if column not in found:
                found.add(column)
                if column >= self._count:
                    waiting += self._space.derived[column - self._count].columns
        return tuple(column for column in columns if column in found)

    def code(self, columns: Variables, values: np.ndarray) -> np.ndarray | None:
        """A code (V,) with these values (K,) in columns (K,); None if no SubNet has them."""
        key = columns, values.tobytes()
        if key not in self._known:
            same = np.flatnonzero((self._extended[:, list(columns)] == values).all(axis=1))
            self._known[key] = self._codes[same[0]] if len(same) else self._sought(columns, values)
        return self._known[key]

    def _near(self) -> Iterator[np.ndarray]:
        """The largest SubNet, and the SubNets that differ from it in one variable."""
        largest = self._space.cardinalities - 1
        yield largest[None]
        for column, cardinality in enumerate(self._space.cardinalities):
            codes = np.tile(largest, (cardinality, 1))
            codes[:, column] = np.arange(cardinality)
            yield codes

    def _random(self) -> np.ndarray:
        rng = np.random.default_rng(0)
        return rng.integers(0, self._space.cardinalities, size=(RANDOM_CODES, self._count))

    def _sought(self, columns: Variables, values: np.ndarray) -> np.ndarray | None:
        """A code that matches all of the values, found by maximising the number of matches; None if none does."""
        cardinalities = self._space.cardinalities.tolist()
        sizes = self._space.all_cardinalities
        gain = [
            Table((column,), np.where(np.arange(sizes[column]) == value, 1.0, 0.0))
            for column, value in zip(columns, values.tolist(), strict=True)
        ]
        code = Chain(cardinalities, gain, (), self._space.derived).best(np.zeros(0))[0]
        has = self._space.extended(code[None])[0][list(columns)] == values
        return code if has.all() else None
