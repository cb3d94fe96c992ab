"""Variables, choices and configs of a SuperNet: counting, sampling, and canonical forms of equal SubNets."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from solvers.tables import Derived, with_derived
from tailor_ir.axes import Sizes
from tailor_ir.errors import ConfigError
from tailor_ir.spaces.canonical import Canonical, CanonicalChoices, effects_of, find_rules, relevance
from tailor_ir.spaces.counting import count
from tailor_ir.spaces.needs import DerivedColumns
from tailor_ir.spaces.presence import ALWAYS, Presence, Producers, Selection, Variables
from tailor_ir.spaces.sizing import Sizing
from tailor_ir.spaces.variables import Choice, Config, Variable, VariableInfo
from tailor_ir.structure.resolutions import sides_of


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
