"""Estimates for SubNets from measurements of similar SubNets: a Gaussian process over the sensitivities of their choices.

The accuracy predictor adds sensitivities of the largest SubNet. Far from the largest SubNet the sum is wrong, since two
modifications together cost more than their sum, or less. A Gaussian process (Rasmussen and Williams, *Gaussian Processes for
Machine Learning*, 2006; Matérn kernel, ν = 5/2) learns the accuracies of SubNets that were not evaluated. The coordinates of a
SubNet are the losses that its choices cost. SubNets with similar losses are therefore similar, variables without effect do not
count, and three hyperparameters are enough for any number of variables. Each estimate comes with its standard deviation.

The same process smooths latencies: the smallest of hundreds of measured latencies are small by luck, and the latencies of
similar SubNets correct them.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from tasks.evaluation.subnets import Accuracy
from tasks.prediction.accuracy import AccuracyPredictor, MeasuredAccuracy
from tasks.search.problem import Codes, SearchSpace, Values, row_keys

FEWEST = 8
"""Least number of different SubNets to learn from."""
MOST = 1000
"""Largest number of SubNets to learn from: the effort grows with its cube."""
AT_ONCE = 1 << 12


class Guess(NamedTuple):
    """Accuracies (n,), fractions, and the standard deviations (n,) of their errors."""

    accuracy: Values
    deviation: Values


class _Surface:
    """Values over SubNets, at canonical codes (n, V) and between them."""

    def __init__(self, coordinates: Sequence[Values], codes: Codes, values: Values, noise: float) -> None:
        """coordinates: of each choice of each variable. noise: share of the values' variance, where fitting begins."""
        from sklearn.exceptions import ConvergenceWarning  # sklearn takes a second or two
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        self._coordinates = coordinates
        self._mean, self._spread = float(values.mean()), float(values.std()) or 1.0
        white = WhiteKernel(noise, (1e-6, 1e1))
        self._process = GaussianProcessRegressor(
            ConstantKernel(1.0, (1e-3, 1e3)) * Matern(1.0, (1e-2, 1e2), nu=2.5) + white
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a bound that is reached is as good as any value
            self._process.fit(self._placed(codes), (values - self._mean) / self._spread)

    def guess(self, codes: Codes) -> tuple[Values, Values]:
        """For few codes: values (n,), and the standard deviations (n,) of their errors."""
        value, deviation = self._process.predict(self._placed(codes), return_std=True)
        return self._mean + self._spread * value, self._spread * deviation

    def at(self, codes: Codes) -> Values:
        """For many codes: values (n,)."""
        parts = [self._process.predict(self._placed(codes[at : at + AT_ONCE])) for at in range(0, len(codes), AT_ONCE)]
        return self._mean + self._spread * np.concatenate([np.zeros(0), *parts])

    def _placed(self, codes: Codes) -> Values:
        return np.stack([one[column] for one, column in zip(self._coordinates, codes.T, strict=True)], axis=1)


def _coordinates(predictor: AccuracyPredictor) -> list[Values] | None:
    """The loss that each choice costs, relative to the costliest choice; None if no choice costs anything."""
    table = predictor.table
    lost = [np.array([found.loss for found in row.measured]) - table.largest.loss for row in table.variables]
    spread = max((float(np.abs(one).max()) for one in lost), default=0.0)
    return [one / spread for one in lost] if spread else None


class LearnedAccuracy:
    """An `AccuracyModel`: accuracies of evaluated SubNets, and estimates between them."""

    def __init__(self, coordinates: Sequence[Values], codes: Codes, accuracies: Values) -> None:
        """Learns from canonical codes (n, V) and their accuracies (n,). coordinates: of each choice of each variable."""
        self._surface = _Surface(coordinates, codes, accuracies, noise=1e-3)

    @classmethod
    def of(
        cls, space: SearchSpace, predictor: AccuracyPredictor, codes: Codes, measured: Sequence[Accuracy]
    ) -> Self | None:
        """Learns from the predictor's measurements and from accuracies of canonical codes (n, V), only the last ones if there
        are many.
        None if there are too few accuracies to learn from.
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
        """Accuracies and their standard deviations for canonical codes (n, V); n must be small."""
        return Guess(*self._surface.guess(codes))

    def predict(self, codes: Codes) -> Values:
        """Accuracy (n,), a fraction, of canonical codes (n, V)."""
        return np.clip(self.score(codes), 0.0, 1.0)

    def score(self, codes: Codes) -> Values:
        """The values (n,) that a search maximises: accuracies, which are not clipped."""
        return self._surface.at(codes)


def smoothed_ms(predictor: AccuracyPredictor, codes: Codes, predicted_ms: Values, measured_ms: Values) -> Values:
    """Latencies (n,) [ms] of canonical codes (n, V), each smoothed by all measurements (n,); unchanged if these are too few.
    The ratio of measured to predicted latency is smoothed.
    """
    coordinates = _coordinates(predictor)
    if coordinates is None or len(codes) < FEWEST:
        return measured_ms
    rows = np.linspace(0, len(codes) - 1, min(len(codes), MOST)).astype(np.int64)
    ratios = np.log(measured_ms / predicted_ms)
    return predicted_ms * np.exp(_Surface(coordinates, codes[rows], ratios[rows], noise=0.1).at(codes))


def _modified(predictor: AccuracyPredictor) -> tuple[Codes, list[MeasuredAccuracy]]:
    """The SubNets with which sensitivities and interactions were measured: their codes (n, V), and their accuracies."""
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
