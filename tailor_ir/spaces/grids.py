"""Sizes of axes as arrays over the choices of few variables: each array has one axis for each variable."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import cast

import numpy as np

from solvers.tables import spread
from tailor_ir.axes import Axis, Sizes, groups_of, spatial_in
from tailor_ir.spaces.presence import Variables
from tailor_ir.spaces.space import Space
from tailor_ir.structure.resolutions import sides_of


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
