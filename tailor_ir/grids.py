"""Sizes of axes over all choices of the few variables that they depend on, as arrays with one axis for each variable."""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from tailor_ir.axes import Axis, Sizes, groups_of, spatial_in
from tailor_ir.space import Space

Variables = tuple[int, ...]
SkippedBy = tuple[int, np.ndarray]  # depth variable, and for each of its choices whether it leaves a block out


class Grids:
    """What the variables of one space do to axes and blocks, for one batch size."""

    def __init__(self, space: Space, batch: int = 1) -> None:
        self.space = space
        self._batch = batch
        self._groups = _group_tables(space)
        self._known: dict[Variables, Sizes] = {}

    def variables(self, axes: Sequence[Axis]) -> Variables:
        """The variables that sizes depend on, ascending."""
        found = {v for group in groups_of(axes) if group in self._groups for v in self._groups[group][0]}
        if self.space.resolution is not None and spatial_in(axes):
            found.add(self.space.resolution)
        return tuple(sorted(found))

    def shape(self, variables: Variables) -> tuple[int, ...]:
        """Number of choices of each variable."""
        return tuple(len(self.space.variables[v].choices) for v in variables)

    def sizes(self, variables: Variables) -> Sizes:
        """Sizes of axes as arrays that broadcast to `shape(variables)`."""
        if variables not in self._known:
            self._known[variables] = self._sizes(variables)
        return self._known[variables]

    def rows(self, axes: Sequence[Axis], variables: Variables) -> np.ndarray:
        """(product of `shape(variables)`, axes): the size of every axis for every combination of choices."""
        shape, sizes = self.shape(variables), self.sizes(variables)
        rows = np.empty((*shape, len(axes)), np.int64)
        for position, axis in enumerate(axes):
            rows[..., position] = sizes(axis)
        return rows.reshape(-1, len(axes))

    def skipped_by(self, block: int | None) -> SkippedBy | None:
        """What leaves a block out; None when it is always there."""
        for depth in self.space.depths:
            if block in depth.blocks:
                left = len(depth.blocks) - depth.blocks.index(block)  # blocks from this one to the end
                choices = self.space.variables[depth.variable].choices
                return depth.variable, np.asarray([-int(choice) >= left for choice in choices])
        return None

    def _sizes(self, variables: Variables) -> Sizes:
        groups = {g: _spread(*table, variables) for g, table in self._groups.items() if set(table[0]) <= set(variables)}
        spatial: Sequence[int | np.ndarray] = self.space.base_spatial
        if self.space.resolution in variables:
            choices = self.space.variables[self.space.resolution].choices
            side = _spread((self.space.resolution,), np.asarray(choices, np.int64), variables)
            spatial = (side,) * len(spatial)
        # arithmetic on arrays is that on numbers
        return Sizes(
            groups=cast("Mapping[int, int]", groups), spatial=cast("tuple[int, ...]", spatial), batch=self._batch
        )


_Table = tuple[Variables, np.ndarray]  # variables, and sizes with one axis for each


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


def _spread(own: Variables, table: np.ndarray, variables: Variables) -> np.ndarray:
    """A table over its own variables as one that broadcasts over `variables`, which ascend."""
    order = sorted(range(len(own)), key=lambda axis: own[axis])
    ascending = iter(table.transpose(order).shape)
    shape = [next(ascending) if variable in own else 1 for variable in variables]
    return table.transpose(order).reshape(shape)
