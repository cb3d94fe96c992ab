"""Variables, choices and configs of a SuperNet: counting, sampling, and telling equal SubNets apart from different ones."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tailor_ir.canonical import CanonicalChoices, canonical, in_groups
from tailor_ir.errors import ConfigError

if TYPE_CHECKING:
    from tailor_ir.describe import VariableInfo

Choice = int | float
Config = dict[str, Choice]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One thing that can be chosen. `choices` ascend; the last is the network as it was given."""

    name: str
    kind: str  # resolution, depth, width_mult, growth_mult, expand_ratio, heads, v_scale or kernel_size
    scope: str  # "global" | "stage" | "block"
    choices: tuple[Choice, ...]

    @property
    def default(self) -> Choice:
        """The choice of the largest SubNet."""
        return self.choices[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """A channel group whose size is chosen: `sizes[i]` channels for choice i. `variable` None: always the one size."""

    group: int | None
    variable: int | None
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """Hidden groups of one block: `sizes[g][w][e]` channels of `groups[g]` for reference width choice w and ratio choice e.

    `depth` is the depth variable of the block's stage and `skipped_by` the smallest number of skipped blocks that
    includes this one; both None for blocks that are always there.
    """

    groups: tuple[int, ...]
    variable: int
    reference: Width
    sizes: tuple[tuple[tuple[int, ...], ...], ...]
    depth: int | None
    skipped_by: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The blocks that a depth variable may skip: choice -k skips the last k of `blocks` (positions in Regions.blocks)."""

    variable: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """All SubNets of one SuperNet. Configs map variable names to choices; a missing name means its default."""

    variables: tuple[Variable, ...]
    resolution: int | None
    base_spatial: tuple[int, ...]
    widths: tuple[Width, ...]
    expansions: tuple[Expansion, ...]
    depths: tuple[Depth, ...]
    dropped: tuple[str, ...] = ()
    describe: "Callable[[], tuple[VariableInfo, ...]] | None" = field(default=None, compare=False, repr=False)

    @cached_property
    def info(self) -> "tuple[VariableInfo, ...]":
        """For each variable: the nodes and axes that it touches, and the parameters and MACs that it can save."""
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
        """Exact number of different SubNets.

        Expansions depend on at most one width and one depth each. Variables are grouped into components that share
        such a width or depth; within one, widths and depths are enumerated and expansions multiply.
        """
        total = 1
        hubs = {e.reference.variable for e in self.expansions} | {e.depth for e in self.expansions}
        leaves = {e.variable for e in self.expansions}
        for index, variable in enumerate(self.variables):
            if index not in leaves and index not in hubs:
                total *= len(variable.choices)
        for component in self._components():
            total *= self._count_component(component)
        return total

    def _components(self) -> list[list[Expansion]]:
        components: list[tuple[set[int], list[Expansion]]] = []
        for expansion in self.expansions:
            keys = {k for k in (expansion.reference.variable, expansion.depth) if k is not None}
            joined = [c for c in components if c[0] & keys]
            merged = (keys.union(*(c[0] for c in joined)), [e for c in joined for e in c[1]] + [expansion])
            components = [c for c in components if not any(c is j for j in joined)] + [merged]
        return [members for _, members in components]

    def _count_component(self, members: list[Expansion]) -> int:
        hubs = sorted({k for e in members for k in (e.reference.variable, e.depth) if k is not None})
        total = 0
        for choice in product(*(range(len(self.variables[h].choices)) for h in hubs)):
            at = dict(zip(hubs, choice, strict=True))
            count = 1
            for e in members:
                if e.depth is None or not self._skips(e, at[e.depth]):
                    width = at.get(e.reference.variable, 0) if e.reference.variable is not None else 0
                    count *= len(set(zip(*(s[width] for s in e.sizes), strict=True)))
            total += count
        return total

    def _skips(self, expansion: Expansion, depth_choice: int) -> bool:
        assert expansion.depth is not None
        assert expansion.skipped_by is not None
        return -int(self.variables[expansion.depth].choices[depth_choice]) >= expansion.skipped_by

    # -- configs and codes -------------------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> dict[str, int]:
        return {variable.name: i for i, variable in enumerate(self.variables)}

    @property
    def cardinalities(self) -> np.ndarray:
        """Number of choices of each variable, (V,)."""
        return np.asarray([len(v.choices) for v in self.variables], dtype=np.int64)

    @property
    def max_config(self) -> Config:
        """The network as it was given."""
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
        """The config of one row of choice indices, canonical."""
        codes = self.canonical_codes(np.asarray(row)[None])[0]
        skipped = self._irrelevant(codes)
        return {v.name: v.choices[int(codes[i])] for i, v in enumerate(self.variables) if i not in skipped}

    def canonical(self, config: Mapping[str, Choice]) -> Config:
        """Without the variables of skipped blocks; of choices that give the same sizes, the largest."""
        return self.decode(self.row(config))

    def _irrelevant(self, codes: np.ndarray) -> set[int]:
        return {e.variable for e in self.expansions if e.depth is not None and self._skips(e, int(codes[e.depth]))}

    def canonical_codes(self, codes: np.ndarray) -> np.ndarray:
        """Rows (n, V) in which equal SubNets are equal: skipped blocks at their default, equal sizes at the largest choice."""
        return canonical(codes, self._canonical_choices)

    @cached_property
    def _canonical_choices(self) -> tuple[CanonicalChoices, ...]:
        def skips(expansion: Expansion) -> list[bool]:
            if expansion.depth is None:
                return [False]
            return [self._skips(expansion, depth) for depth in range(len(self.variables[expansion.depth].choices))]

        return tuple(CanonicalChoices.of(group, skips) for group in in_groups(self.expansions))

    def random_codes(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Rows (count, V), each variable uniform over its choices, canonical."""
        return self.canonical_codes(rng.integers(0, self.cardinalities, size=(count, len(self.variables))))

    def sample(self, rng: np.random.Generator) -> Config:
        """One canonical config, each variable uniform over its choices."""
        return self.decode(self.random_codes(1, rng)[0])

    def digest(self, config: Mapping[str, Choice]) -> str:
        """Name of a SubNet: equal for equal SubNets."""
        text = json.dumps(self.canonical(config), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # -- what a config means -----------------------------------------------------------------------------------------

    def group_sizes(self, codes: np.ndarray) -> dict[int, int]:
        """Channel group -> channels kept, for the groups that are elastic."""
        sizes: dict[int, int] = {}
        for width in self.widths:
            if width.group is not None and width.variable is not None:
                sizes[width.group] = width.sizes[int(codes[width.variable])]
        for e in self.expansions:
            at = int(codes[e.reference.variable]) if e.reference.variable is not None else 0
            for group, table in zip(e.groups, e.sizes, strict=True):
                sizes[group] = table[at][int(codes[e.variable])]
        return sizes

    def spatial(self, codes: np.ndarray) -> tuple[int, ...]:
        """Input height and width."""
        if self.resolution is None:
            return self.base_spatial
        size = int(self.variables[self.resolution].choices[int(codes[self.resolution])])
        return (size,) * len(self.base_spatial)

    def skipped_blocks(self, codes: np.ndarray) -> frozenset[int]:
        """Positions (in Regions.blocks) of the blocks that are left out."""
        skipped: set[int] = set()
        for depth in self.depths:
            count = -int(self.variables[depth.variable].choices[int(codes[depth.variable])])
            if count:
                skipped.update(depth.blocks[-count:])
        return frozenset(skipped)
