"""What SubNets that were measured teach about others like them: a Gaussian process over the sensitivities of their choices.

Sensitivities are those of the largest SubNet, and add up badly far from it: two modifications cost more together than one after
the other, or less. A Gaussian process (Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006; Matérn kernel,
ν = 5/2) takes SubNets to be as alike as their choices cost alike: its coordinates are what each choice costs in loss, so that
variables that matter count, and three hyperparameters are enough for any number of variables. It knows how sure it is.

Accuracies of SubNets that were not evaluated are learned so, and latencies are smoothed: of hundreds of measurements the
smallest are lucky ones, and SubNets like it tell.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from tasks.evaluate import Accuracy
from tasks.predict.accuracy import AccuracyPredictor, Measured
from tasks.search.problem import Codes, SearchSpace, Values, row_keys

FEWEST = 8
"""Different SubNets to learn from."""
MOST = 1000
"""To learn from: the effort grows with the cube of their number."""
AT_ONCE = 1 << 12


class Guess(NamedTuple):
    """Accuracies (n,), fractions, and the standard deviation of what they may be wrong by."""

    accuracy: Values
    deviation: Values


class _Surface:
    """Values over SubNets, at canonical codes (n, V) and between them."""

    def __init__(self, coordinates: Sequence[Values], codes: Codes, values: Values, noise: float) -> None:
        """coordinates: of each choice of each variable. noise: of the values' variance, to begin with."""
        self._coordinates = coordinates
        self._mean, self._spread = float(values.mean()), float(values.std()) or 1.0
        white = WhiteKernel(noise, (1e-6, 1e1))
        self._process = GaussianProcessRegressor(
            ConstantKernel(1.0, (1e-3, 1e3)) * Matern(1.0, (1e-2, 1e2), nu=2.5) + white
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a bound that is reached: as good as any
            self._process.fit(self._placed(codes), (values - self._mean) / self._spread)

    def guess(self, codes: Codes) -> tuple[Values, Values]:
        """Of few: values (n,), and the standard deviation of what they may be wrong by."""
        value, deviation = self._process.predict(self._placed(codes), return_std=True)
        return self._mean + self._spread * value, self._spread * deviation

    def at(self, codes: Codes) -> Values:
        """Values (n,), of many."""
        parts = [self._process.predict(self._placed(codes[at : at + AT_ONCE])) for at in range(0, len(codes), AT_ONCE)]
        return self._mean + self._spread * np.concatenate([np.zeros(0), *parts])

    def _placed(self, codes: Codes) -> Values:
        return np.stack([one[column] for one, column in zip(self._coordinates, codes.T, strict=True)], axis=1)


def _coordinates(predictor: AccuracyPredictor) -> list[Values] | None:
    """What each choice costs in loss, relative to the one that costs most; None where none costs anything."""
    table = predictor.table
    lost = [np.array([found.loss for found in row.measured]) - table.largest.loss for row in table.variables]
    spread = max((float(np.abs(one).max()) for one in lost), default=0.0)
    return [one / spread for one in lost] if spread else None


class LearnedAccuracy:
    """An `AccuracyModel`: what was evaluated, and between it what is likely."""

    def __init__(self, coordinates: Sequence[Values], codes: Codes, accuracies: Values) -> None:
        """coordinates: of each choice of each variable. Learns from canonical codes (n, V) and their accuracies (n,)."""
        self._surface = _Surface(coordinates, codes, accuracies, noise=1e-3)

    @classmethod
    def of(
        cls, space: SearchSpace, predictor: AccuracyPredictor, codes: Codes, measured: Sequence[Accuracy]
    ) -> Self | None:
        """From what the predictor is made of, and what was measured for canonical codes (n, V), the last of these at most.

        None where that is too little to learn from.
        """
        coordinates = _coordinates(predictor)
        first, of_first = _modified(predictor)
        every = np.concatenate([space.canonical_codes(first), codes])
        accuracies = np.array([*(found.accuracy for found in of_first), *(found.share for found in measured)])
        rows = list({key: row for row, key in enumerate(row_keys(every))}.values())[-MOST:]
        if coordinates is None or len(rows) < FEWEST:
            return None
        return cls(coordinates, every[rows], accuracies[rows])

    def guess(self, codes: Codes) -> Guess:
        """Of canonical codes (n, V), few of them."""
        return Guess(*self._surface.guess(codes))

    def predict(self, codes: Codes) -> Values:
        """Accuracy (n,), a fraction, of canonical codes (n, V)."""
        return np.clip(self.score(codes), 0.0, 1.0)

    def score(self, codes: Codes) -> Values:
        """What a search maximises (n,): accuracies, which are not clipped."""
        return self._surface.at(codes)


def smoothed_ms(predictor: AccuracyPredictor, codes: Codes, predicted_ms: Values, measured_ms: Values) -> Values:
    """Latencies [ms] of canonical codes (n, V), of each as all measurements (n,) tell it; these, where there are too few.

    What is smoothed is measured over predicted latency.
    """
    coordinates = _coordinates(predictor)
    if coordinates is None or len(codes) < FEWEST:
        return measured_ms
    rows = np.linspace(0, len(codes) - 1, min(len(codes), MOST)).astype(np.int64)
    ratios = np.log(measured_ms / predicted_ms)
    return predicted_ms * np.exp(_Surface(coordinates, codes[rows], ratios[rows], noise=0.1).at(codes))


def _modified(predictor: AccuracyPredictor) -> tuple[Codes, list[Measured]]:
    """The SubNets that sensitivities and interactions were measured with: their codes (n, V) and what was measured."""
    table = predictor.table
    single = [
        ((column,), (choice,), measured)
        for column, row in enumerate(table.variables)
        for choice, measured in enumerate(row.measured[:-1])
    ]
    both = [(*pair, each.measured) for pair, each in zip(predictor.pairs, table.interactions, strict=True)]
    changes = [*single, *both]
    codes = np.tile([len(row.choices) - 1 for row in table.variables], (1 + len(changes), 1))
    for code, (columns, choices, _) in zip(codes[1:], changes, strict=True):
        code[list(columns)] = choices
    return codes, [table.largest, *(measured for *_, measured in changes)]
