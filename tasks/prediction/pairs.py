"""Interactions of two modifications: their joint effect minus the sum of their single effects.

One pair of choices of two variables is measured. Other choices of these variables get a share of its interaction, in proportion
to their own effects: two choices with half the measured effects each get a quarter of it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from solvers.tables import Values

Effects = Sequence[Values]
"""For each variable, the effect of each choice alone. The last choice is the largest SubNet's; its effect is 0."""


class Pair(NamedTuple):
    """Two variables (columns of codes), and the choice of each in the measured pair."""

    columns: tuple[int, int]
    choices: tuple[int, int]

    def residual(self, effects: Effects, together: float) -> float:
        """The interaction: the effect `together`, minus the effects of both choices alone."""
        return together - sum(float(effects[v][k]) for v, k in zip(self.columns, self.choices, strict=True))

    def shares(self, effects: Effects) -> Values:
        """Share of the residual for each pair of choices, in [0, 1]: 1 for the measured pair, 0 with a largest choice."""
        first, second = (_shares(effects[v], k) for v, k in zip(self.columns, self.choices, strict=True))
        return np.outer(first, second)


def _shares(effect: Values, choice: int) -> Values:
    measured = effect[choice]
    shares = np.clip(effect / measured, 0.0, 1.0) if measured else np.zeros(len(effect))
    shares[choice] = 1.0
    return shares


def kept(residual: float, standard_error: float) -> float:
    """The share of a residual that counts, in [0, 1]: 0 within its standard error, nearly 1 for a large residual.

    Source: Breiman, *Better subset regression using the nonnegative garrote*, Technometrics 37, 1995.
    """
    return max(0.0, 1 - (standard_error / residual) ** 2) if residual else 0.0
