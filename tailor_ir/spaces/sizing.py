"""The size of a channel group or a kernel: a table over the choices of few variables."""

from dataclasses import dataclass

import numpy as np

from tailor_ir.spaces.presence import ALWAYS, Presence, Variables


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizing:
    """The sizes of one group: `sizes` has one axis for each of `variables` (columns of choice indices, ascending).

    presence: the SubNets in which a node has the group.
    """

    group: int
    variables: Variables
    sizes: np.ndarray
    presence: Presence = ALWAYS

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sizing):
            return NotImplemented
        same = (self.group, self.variables, self.presence) == (other.group, other.variables, other.presence)
        return same and np.array_equal(self.sizes, other.sizes)

    __hash__ = None  # type: ignore[assignment]
