"""Accuracy of any SubNet predicted from the sensitivity of each modification (AutoTailor).

A sensitivity is the accuracy of the largest SubNet with one variable set to another choice, minus that of
the largest SubNet, both on the validation split with their own recalibrated BatchNorm statistics. A SubNet's
predicted accuracy is the largest SubNet's plus the sensitivities of its modifications. On a small validation
split accuracy moves in coarse steps, so the mean cross-entropy loss is measured and added up in the same way:
it only orders SubNets whose predicted accuracies are equal.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.stats import kendalltau

from tasks.artifacts import write_json
from tasks.errors import UserError
from tasks.evaluate import Accuracy, EvaluationData, accuracies
from tasks.progress import Progress

Config = dict[str, Any]
Codes = NDArray[np.int64]
Values = NDArray[np.float64]


class Frozen(BaseModel):
    """Strict, immutable record."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Measured(Frozen):
    """Accuracy (fraction) and mean cross-entropy loss of one SubNet on the validation split."""

    accuracy: float = Field(ge=0, le=1)
    loss: float = Field(allow_inf_nan=False)


class Sensitivity(Frozen):
    """One variable: what was measured for each of its choices, the last of which is the largest SubNet's."""

    variable: str
    choices: tuple[float, ...]
    measured: tuple[Measured, ...]


class Sensitivities(Frozen):
    """Everything the predictor is made of; `samples` is the size of the validation split."""

    samples: int = Field(gt=0)
    largest: Measured
    variables: tuple[Sensitivity, ...]


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


def measure_sensitivities(net: Any, data: EvaluationData, file: Path, progress: Progress) -> Sensitivities:
    """Evaluate every modification; each is a JSON line of `file`, and a second call goes on from there."""
    return sensitivities(net.space, accuracies(net, modifications(net.space), data, file, progress, "sensitivities"))


def sensitivities(space: Any, measured: Sequence[Accuracy]) -> Sensitivities:
    """Sensitivities from what was measured for `modifications(space)`, in that order."""
    largest, *rest = (Measured(accuracy=found.share, loss=found.loss) for found in measured)
    following = iter(rest)
    rows = []
    for variable in space.variables:
        choices = tuple(variable.choices)
        per_choice = tuple(largest if choice == variable.default else next(following) for choice in choices)
        rows.append(Sensitivity(variable=variable.name, choices=choices, measured=per_choice))
    return Sensitivities(samples=measured[0].total, largest=largest, variables=tuple(rows))


class AccuracyPredictor:
    """Sensitivities as arrays: one row per variable, one column per choice; predicting gathers and sums."""

    def __init__(self, table: Sensitivities) -> None:
        self.table = table
        width = max((len(row.choices) for row in table.variables), default=1)
        shape = (len(table.variables), width)
        self._accuracy, self._loss, self._variance = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for v, row in enumerate(table.variables):
            for k, measured in enumerate(row.measured):
                self._accuracy[v, k] = measured.accuracy - table.largest.accuracy
                self._loss[v, k] = measured.loss - table.largest.loss
                if k < len(row.measured) - 1:
                    self._variance[v, k] = standard_error(measured.accuracy, table.samples) ** 2
        spread = np.ptp(self._loss, axis=1).sum()
        self._tie_weight = 0.25 / table.samples / spread if spread > 0 else 0.0

    def predict(self, codes: Codes) -> Values:
        """Accuracy (n,), a fraction, of canonical codes (n, V)."""
        return np.clip(self._sum(self._accuracy, codes) + self.table.largest.accuracy, 0.0, 1.0)

    def predict_loss(self, codes: Codes) -> Values:
        """Mean cross-entropy loss (n,) of canonical codes (n, V)."""
        return self._sum(self._loss, codes) + self.table.largest.loss

    def score(self, codes: Codes) -> Values:
        """What a search maximises (n,): the sum of accuracies, equal sums ordered by predicted loss.

        The loss moves it by at most a quarter of one sample's worth of accuracy. Sums are not clipped at 0.
        """
        accuracy = self._sum(self._accuracy, codes) + self.table.largest.accuracy
        return accuracy - self._tie_weight * self._sum(self._loss, codes)

    @property
    def per_choice(self) -> Values:
        """What each choice of each variable adds to the largest SubNet's score (V, choices)."""
        found: Values = self._accuracy - self._tie_weight * self._loss
        return found

    def standard_error(self, codes: Codes) -> Values:
        """Standard error (n,) of the prediction that comes from the sample size alone.

        Binomial, measurements taken as independent; they share their samples, so it is an upper estimate.
        The largest SubNet enters once per sensitivity, hence its weight 1 - (number of modifications).
        """
        modified = np.count_nonzero(self._gather(self._variance, codes), axis=1)
        base = standard_error(self.table.largest.accuracy, self.table.samples)
        return np.sqrt(self._sum(self._variance, codes) + ((1 - modified) * base) ** 2)

    @staticmethod
    def _gather(table: Values, codes: Codes) -> Values:
        return table[np.arange(len(table)), codes]

    def _sum(self, table: Values, codes: Codes) -> Values:
        total: Values = self._gather(table, codes).sum(axis=1)
        return total

    def save(self, path: Path) -> None:
        """Write the sensitivities as JSON."""
        write_json(path, self.table.model_dump(mode="json"))

    @classmethod
    def load(cls, path: Path) -> "AccuracyPredictor":
        """Read what `save` wrote. UserError when the file is not that."""
        try:
            return cls(Sensitivities.model_validate_json(path.read_bytes()))
        except (ValidationError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"sensitivities '{path.name}'", reason, next_step="run the predict stage again") from error


def standard_error(accuracy: float, samples: int) -> float:
    """Binomial standard error of an accuracy; Agresti-Coull's, so that 0 and 1 do not look certain."""
    share = (accuracy * samples + 2) / (samples + 4)
    return float(np.sqrt(share * (1 - share) / (samples + 4)))


def validate(predictor: AccuracyPredictor, codes: Codes, measured: Sequence[Accuracy]) -> dict[str, Any]:
    """Predicted against measured accuracy of held-out SubNets (n, V): errors in points, Kendall's tau."""
    accuracy = np.array([found.share for found in measured])
    predicted = predictor.predict(codes)
    points = 100 * np.abs(predicted - accuracy)
    tau = kendalltau(predictor.score(codes), accuracy).statistic
    return {
        "samples": predictor.table.samples,
        "standard_error_points": 100 * float(np.mean([standard_error(a, predictor.table.samples) for a in accuracy])),
        "mean_error_points": float(points.mean()),
        "max_error_points": float(points.max()),
        "kendall_tau": float(tau) if np.isfinite(tau) else None,
        "rows": [
            {
                "predicted_accuracy": float(p),
                "accuracy": found.share,
                "predicted_loss": float(q),
                "loss": found.loss,
                "standard_error": float(s),
            }
            for p, q, s, found in zip(
                predicted,
                predictor.predict_loss(codes),
                predictor.standard_error(codes),
                measured,
                strict=True,
            )
        ],
    }
