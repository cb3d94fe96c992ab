"""What two modifications do together beyond the sum of what each does alone, for all choices of their two variables.

One pair of choices is measured. Other choices of the same variables get the share of it that their own effects have of the
measured ones: half of an effect meets half of another in a quarter of the interaction.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Effects = Sequence[Values]
"""For each variable the change that each choice makes on its own, 0 for the last, which is the largest SubNet's."""


class Pair(NamedTuple):
    """Two variables (columns of codes), and the choice of each that was measured with the other's."""

    columns: tuple[int, int]
    choices: tuple[int, int]

    def residual(self, effects: Effects, together: float) -> float:
        """What is left of the change `together` when both effects are taken off."""
        return together - sum(float(effects[v][k]) for v, k in zip(self.columns, self.choices, strict=True))

    def shares(self, effects: Effects) -> Values:
        """Share of the residual at each two choices, in [0, 1]: 1 where it was measured, 0 where either is the largest's."""
        first, second = (_shares(effects[v], k) for v, k in zip(self.columns, self.choices, strict=True))
        return np.outer(first, second)


def _shares(effect: Values, choice: int) -> Values:
    measured = effect[choice]
    shares = np.clip(effect / measured, 0.0, 1.0) if measured else np.zeros(len(effect))
    shares[choice] = 1.0
    return shares


def kept(residual: float, standard_error: float) -> float:
    """How much of a residual to count, in [0, 1]: none that is within its standard error, nearly all of a large one.

    Source: Breiman, *Better subset regression using the nonnegative garrote*, Technometrics 37, 1995.
    """
    return max(0.0, 1 - (standard_error / residual) ** 2) if residual else 0.0
