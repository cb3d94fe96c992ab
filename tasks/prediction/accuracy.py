"""Accuracy of any SubNet predicted from sensitivities of modifications (AutoTailor) and interactions of pairs.

A sensitivity is the accuracy of the largest SubNet with one variable set to another choice, minus the accuracy of the
largest SubNet, both on the validation split with their own recalibrated BatchNorm statistics. A SubNet's predicted
accuracy is the largest SubNet's plus the sensitivities of its modifications, plus the interactions of measured pairs
(`tasks.prediction.sensitivity`). On a small validation split accuracy moves in coarse steps, so the mean cross-entropy
loss is measured and added up in the same way: it only orders SubNets whose predicted accuracies are equal.

An interaction of two modifications is their joint effect minus the sum of their single effects. One pair of choices of
two variables is measured. Other choices of these variables get a share of its interaction, in proportion to their own
effects: two choices with half the measured effects each get a quarter of it.
"""

from collections.abc import Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from solvers.tables import Codes, Table, Values
from tailor_ir import Config
from tasks.base.artifacts import SubNetLines
from tasks.base.progress import Progress
from tasks.base.schemas.predictions import (
    AccuracyErrors,
    Interaction,
    MeasuredAccuracy,
    PredictedAccuracy,
    Sensitivities,
    Sensitivity,
)
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracies
from tasks.evaluation.subnets.record import graded
from tasks.evaluation.uncertainty import errors_in_points, kendall_tau, standard_error
from tasks.prediction.sums import Sums

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


class Checked(NamedTuple):
    """The errors of predictions, with prediction and measurement of each SubNet."""

    errors: AccuracyErrors
    rows: list[PredictedAccuracy]


def modifications(space: Any) -> list[Config]:
    """The largest SubNet's config, then every config that sets one variable to another choice."""
    default = {variable.name: variable.default for variable in space.variables}
    changed = [
        {**default, variable.name: choice}
        for variable in space.variables
        for choice in variable.choices
        if choice != variable.default
    ]
    return [default, *changed]


def measure_sensitivities(
    net: Any, data: EvaluationData, file: Path | SubNetLines, progress: Progress
) -> Sensitivities:
    """Evaluate every modification; each is a JSON line of `file`, and a second call continues there."""
    return sensitivities(net.space, accuracies(net, modifications(net.space), data, file, progress, "sensitivities"))


def sensitivities(space: Any, measured: Sequence[Accuracy]) -> Sensitivities:
    """Sensitivities from the accuracies of `modifications(space)`, in that order."""
    largest, *rest = (MeasuredAccuracy(accuracy=found.share, loss=found.loss) for found in measured)
    following = iter(rest)
    rows = []
    for variable in space.variables:
        choices = tuple(variable.choices)
        per_choice = tuple(largest if choice == variable.default else next(following) for choice in choices)
        rows.append(Sensitivity(variable=variable.name, choices=choices, measured=per_choice))
    spread = graded(*(found.each for found in measured if found.scores))
    return Sensitivities(samples=measured[0].total, largest=largest, variables=tuple(rows), **spread)


class AccuracyPredictor:
    """Tables of sensitivities over choices, one for each variable and interaction; a prediction adds up their entries."""

    def __init__(self, table: Sensitivities, unchanged: Set[str] = frozenset()) -> None:
        """unchanged: variables that no best SubNet changes: any other choice costs more than all modifications together."""
        self.table = table
        self.pairs = [_pair(table, each) for each in table.interactions]
        accuracy, loss = _effects(table, "accuracy"), _effects(table, "loss")
        together = list(zip(self.pairs, (each.measured for each in table.interactions), strict=True))
        largest = table.largest
        self.residuals = np.array([pair.residual(accuracy, one.accuracy - largest.accuracy) for pair, one in together])
        lost = [pair.residual(loss, one.loss - largest.loss) for pair, one in together]
        errors = (each.standard_error for each in table.interactions)
        self.kept = np.array([kept(found, error) for found, error in zip(self.residuals, errors, strict=True)])
        self._weights = [share * pair.shares(accuracy) for pair, share in zip(self.pairs, self.kept, strict=True)]
        of_pairs = [found * weight for found, weight in zip(self.residuals, self._weights, strict=True)]
        for row, values in zip(table.variables, accuracy, strict=True):
            if row.variable in unchanged:
                values[:-1] -= 1 + len(accuracy) + len(of_pairs)
        lost_by_pairs = [found * pair.shares(loss) for pair, found in zip(self.pairs, lost, strict=True)]
        self._accuracy, self._loss = self._sums(accuracy, of_pairs), self._sums(loss, lost_by_pairs)
        spread = sum(float(np.ptp(values)) for _, values in self._loss.tables)
        self._tie_weight = 0.25 / table.samples / spread if spread > 0 else 0.0

    def _sums(self, effects: Sequence[Values], of_pairs: Sequence[Values]) -> Sums:
        singles = [Table((column,), values) for column, values in enumerate(effects)]
        pairs = [Table(pair.columns, values) for pair, values in zip(self.pairs, of_pairs, strict=True)]
        return Sums([len(row.choices) for row in self.table.variables], [*singles, *pairs])

    def predict(self, codes: Codes) -> Values:
        """Accuracy (n,), a fraction, of canonical codes (n, V)."""
        return np.clip(self._accuracy.predict(codes) + self.table.largest.accuracy, 0.0, 1.0)

    def predict_loss(self, codes: Codes) -> Values:
        """Mean cross-entropy loss (n,) of canonical codes (n, V)."""
        return self._loss.predict(codes) + self.table.largest.loss

    def score(self, codes: Codes) -> Values:
        """The score (n,) that a search maximises: the sum of accuracies; the predicted loss orders equal sums.

        The loss moves it by at most a quarter of one sample's worth of accuracy. Sums are not clipped at 0.
        """
        return self._score.predict(codes) + self.table.largest.accuracy

    @cached_property
    def _score(self) -> Sums:
        return Sums(self._accuracy.cardinalities, self.tables)

    @property
    def tables(self) -> list[Table]:
        """The terms of the score beyond the largest SubNet's: one for each variable, then one for each interaction."""
        both = zip(self._accuracy.tables, self._loss.tables, strict=True)
        return [Table(columns, accuracy - self._tie_weight * loss) for (columns, accuracy), (_, loss) in both]

    def standard_error(self, codes: Codes) -> Values:
        """Standard error (n,) of the prediction that comes from the sample size alone.

        Binomial, with measurements taken as independent; they share their samples, so it is an upper estimate. A prediction is
        a weighted sum of measurements: a modification has weight 1 minus the weights of its interactions, an interaction its
        own weight, and the largest SubNet the rest to 1.
        """
        rows = np.arange(len(codes))
        width = max((len(row.choices) for row in self.table.variables), default=1)
        of_modifications = np.zeros((len(codes), codes.shape[1], width))
        for column, row in enumerate(self.table.variables):
            of_modifications[rows, column, codes[:, column]] = codes[:, column] < len(row.choices) - 1
        modified = of_modifications.sum(axis=(1, 2))
        variance, of_pairs = np.zeros(len(codes)), np.zeros(len(codes))
        for pair, weights, each in zip(self.pairs, self._weights, self.table.interactions, strict=True):
            weight = weights[tuple(codes[:, pair.columns].T)]
            for column, choice in zip(*pair, strict=True):
                of_modifications[:, column, choice] -= weight
            of_pairs += weight
            variance += (weight * self._error(each.measured)) ** 2
        for column, row in enumerate(self.table.variables):
            for choice, measured in enumerate(row.measured[:-1]):
                variance += (of_modifications[:, column, choice] * self._error(measured)) ** 2
        return np.sqrt(variance + ((1 - modified + of_pairs) * self._error(self.table.largest)) ** 2)

    def _error(self, measured: MeasuredAccuracy) -> float:
        return standard_error(measured.accuracy, self.table.samples, self.table.spread)

    def save(self, path: Path) -> None:
        """Write the sensitivities as JSON."""
        self.table.write(path)

    @classmethod
    def load(cls, path: Path) -> "AccuracyPredictor":
        """Read a predictor that `save` wrote. UserError for any other file."""
        return cls(Sensitivities.read(path))


def _effects(table: Sensitivities, quantity: Literal["accuracy", "loss"]) -> list[Values]:
    """For each variable the changes of a quantity with its choices."""
    largest = getattr(table.largest, quantity)
    return [np.array([getattr(found, quantity) for found in row.measured]) - largest for row in table.variables]


def _pair(table: Sensitivities, interaction: Interaction) -> Pair:
    names = [row.variable for row in table.variables]
    first, second = (names.index(name) for name in interaction.variables)
    chosen = zip((first, second), interaction.choices, strict=True)
    i, j = (table.variables[column].choices.index(choice) for column, choice in chosen)
    return Pair((first, second), (i, j))


def validate(predictor: AccuracyPredictor, codes: Codes, measured: Sequence[Accuracy]) -> Checked:
    """Predicted against measured accuracy of held-out SubNets (n, V): errors in points, Kendall's tau."""
    accuracy = np.array([found.share for found in measured])
    predicted, samples = predictor.predict(codes), predictor.table.samples
    spread = graded(*(found.each for found in measured if found.scores))
    errors = AccuracyErrors(
        samples=samples,
        standard_error_points=100 * float(np.mean([standard_error(a, samples, **spread) for a in accuracy])),
        **spread,
        **errors_in_points(predicted, accuracy),
        kendall_tau=kendall_tau(predictor.score(codes), accuracy),
    )
    columns = zip(predicted, predictor.predict_loss(codes), predictor.standard_error(codes), measured, strict=True)
    rows = [
        PredictedAccuracy(
            predicted_accuracy=float(p),
            accuracy=found.share,
            predicted_loss=float(q),
            loss=found.loss,
            standard_error=float(s),
        )
        for p, q, s, found in columns
    ]
    return Checked(errors, rows)
