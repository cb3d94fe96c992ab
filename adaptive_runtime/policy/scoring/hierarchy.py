"""Weights of criteria from preferences of pairs: an analytic hierarchy process.

Legend: N criteria, M matrices.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.scoring.weights import CRITERIA, Criterion, CriterionWeights

RANDOM_INDEX = {2: 0.0, 3: 0.58, 4: 0.90}
"""Mean consistency index of random matrices of this size. Source: Saaty, The Analytic Hierarchy Process (1980)."""
MOST_RATIO = 0.1
MOST_PREFERENCE = 9
SCALE = tuple(1 / value for value in range(MOST_PREFERENCE, 1, -1)) + tuple(map(float, range(1, MOST_PREFERENCE + 1)))
WHERE = "preferences"
Matrices = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PairwisePreferences:
    """How many times more important one criterion is than another, from 1/9 to 9.

    upper: for the pairs in the order of `combinations(criteria, 2)`, the upper triangle of the reciprocal matrix. AdaptiveError
    for a value outside the scale, for other pairs than those of the criteria, or for preferences that contradict each other
    (consistency ratio above 0.1).
    """

    criteria: tuple[Criterion, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        criteria = ", ".join(self.criteria)
        known = set(self.criteria) <= set(CRITERIA) and len(set(self.criteria)) == len(self.criteria)
        if not known or len(self.criteria) not in RANDOM_INDEX:
            raise AdaptiveError(WHERE, f"of '{criteria}'", allowed=f"2 to 4 of {', '.join(CRITERIA)}, each once")
        if len(self.upper) != len(self.pairs):
            got = f"{len(self.upper)} values for the {len(self.pairs)} pairs of {criteria}"
            raise AdaptiveError(WHERE, got, next_step="give one for each pair")
        for (one, other), value in zip(self.pairs, self.upper, strict=True):
            if not 1 / MOST_PREFERENCE - 1e-9 <= value <= MOST_PREFERENCE + 1e-9:
                raise AdaptiveError(f"{WHERE}, {one}:{other}", f"{value:g}", allowed="1/9 to 9")
        if self.consistency_ratio > MOST_RATIO:
            self._refuse()

    @property
    def pairs(self) -> tuple[tuple[Criterion, Criterion], ...]:
        """All pairs of criteria, in the order of `upper`."""
        return tuple(combinations(self.criteria, 2))

    @property
    def consistency_ratio(self) -> float:
        """0 if all preferences follow from one set of weights; about 1 for random ones."""
        return float(_ratios_M(self._matrix[None])[0])

    @property
    def weights(self) -> CriterionWeights:
        """The principal eigenvector, scaled to sum 1; 0 for criteria that are not compared."""
        values, vectors = np.linalg.eig(self._matrix)
        weights_N = np.abs(vectors[:, values.real.argmax()].real)
        shares_N = (weights_N / weights_N.sum()).tolist()
        return CriterionWeights(**dict(zip(self.criteria, shares_N, strict=True)))

    @property
    def _matrix(self) -> Matrices:
        return _reciprocal(len(self.criteria), self.upper)

    def _refuse(self) -> None:
        """Raise AdaptiveError with the pair, and its value on the scale, that would make the preferences most consistent."""
        changed = [
            (place, value, (*self.upper[:place], value, *self.upper[place + 1 :]))
            for place in range(len(self.upper))
            for value in SCALE
        ]
        count = len(self.criteria)
        ratio_M = _ratios_M(np.stack([_reciprocal(count, upper) for _, _, upper in changed]))
        best = int(ratio_M.argmin())
        place, value, _ = changed[best]
        one, other = self.pairs[place]
        got = f"{one}:{other} = {told(self.upper[place])} contradicts the other pairs (consistency ratio "
        got += f"{self.consistency_ratio:.2f})"
        fits = f"{one}:{other} = {told(value)} would fit best ({ratio_M[best]:.2f})"
        raise AdaptiveError(WHERE, got, allowed=f"a ratio up to {MOST_RATIO:g}", next_step=fits)


def told(value: float) -> str:
    """A preference as people write it: 3, or 1/3."""
    return f"1/{1 / value:.3g}" if value < 1 else f"{value:.3g}"


def _reciprocal(count: int, upper: tuple[float, ...]) -> Matrices:
    matrix = np.ones((count, count))
    rows, columns = np.triu_indices(count, 1)
    matrix[rows, columns] = upper
    matrix[columns, rows] = 1 / np.array(upper)
    return matrix


def _ratios_M(matrices_MNN: Matrices) -> NDArray[np.float64]:
    """Consistency ratios (M,): (largest eigenvalue - N) / (N - 1), over that of random matrices."""
    count = matrices_MNN.shape[-1]
    if not RANDOM_INDEX[count]:
        return np.zeros(len(matrices_MNN))
    largest_M = np.linalg.eigvals(matrices_MNN).real.max(-1)
    ratio_M: NDArray[np.float64] = np.maximum(0.0, largest_M - count) / (count - 1) / RANDOM_INDEX[count]
    return ratio_M
