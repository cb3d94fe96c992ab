"""Uncertainty of accuracies and predictions: standard errors by the number of samples, and agreement with measurements.

Agreement is the error of predictions, and how well they order the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.base.pages.text import percent
from tasks.base.schemas.predictions import Uncertainty

if TYPE_CHECKING:
    from tasks.base.schemas.winners import Winner
    from tasks.evaluation.subnets import Accuracy


def kendall_tau(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float | None:
    """Kendall's tau of two columns (n,); None if there is no order: fewer than two values, or all equal."""
    if len(measured) < 2:
        return None
    from scipy.stats import kendalltau  # takes a second

    tau = float(kendalltau(predicted, measured).statistic)
    return tau if math.isfinite(tau) else None


def errors_in_points(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> dict[str, float]:
    """Mean and largest absolute difference of two columns of accuracies (n,), given as fractions, in points."""
    points = 100 * np.abs(predicted - measured)
    return {"mean_error_points": float(points.mean()), "max_error_points": float(points.max())}


SMALL = 0.02
"""A split is small if its standard error is at least this."""


class Change(NamedTuple):
    """The difference of two networks on the same samples, and its standard error; both in [-1, 1]."""

    share: float
    error: float

    @property
    def is_loss(self) -> bool:
        """Whether the second network is worse by more than the standard error."""
        return self.share < -self.error


def standard_error(accuracy: float, samples: int, spread: float = 1.0) -> float:
    """Binomial standard error of an accuracy, by Agresti and Coull, so that 0 and 1 do not look certain.

    spread: of graded scores (`tasks.evaluation.subnets.record.graded`).
    """
    share = (accuracy * samples + 2) / (samples + 4)
    return spread * float(np.sqrt(share * (1 - share) / (samples + 4)))


def uncertain(share: float | None, samples: int | None, spread: float = 1.0) -> str:
    """An accuracy in percent, with its standard error if the number of samples is known: 91.2 ± 0.8 %."""
    if share is None or not samples:
        return percent(share)
    return f"{100 * share:.1f} ± {100 * standard_error(share, samples, spread):.1f} %"


def limit_of(split: str, samples: int, error: float) -> str:
    """A line: how far the number of inputs limits what can be said of scores. error: the largest standard error of them."""
    least = f"{math.sqrt(2) * 100 * error:.2g} points"
    return f"{samples} {split} inputs: scores are within ± {100 * error:.2g} points, a difference below {least} cannot be told"


def predicted(share: float | None, known: Uncertainty) -> str:
    """A predicted accuracy in percent, with the error of the predictor, or else of the validation split, if one is known."""
    if share is None or known.predictor_points is None:
        return uncertain(share, known.samples, known.spread)
    return f"{100 * share:.1f} ± {known.predictor_points:.1f} %"


def ranked_by(winner: Winner, known: Uncertainty) -> str:
    """The accuracy by which a winner was ranked, in percent, with its error."""
    if winner.measured_accuracy is None:
        return predicted(winner.predicted_accuracy, known)
    return uncertain(winner.measured_accuracy, known.samples, known.spread)


def too_small(split: str, samples: int | None, shares: Sequence[float], spread: float = 1.0) -> str | None:
    """A line if a split is too small to distinguish networks next to each other in `shares`; else None."""
    if not samples or len(shares) < 2:
        return None
    error = max(standard_error(share, samples, spread) for share in shares)
    pairs = list(pairwise(shares))
    close = sum(abs(one - other) < math.sqrt(2) * error for one, other in pairs)
    if error < SMALL or not close:
        return None
    return (
        f"{samples} {split} samples are too few to tell winners apart: accuracies are within ± {100 * error:.1f} points, "
        f"and {close} of {len(pairs)} neighbours differ by less than that allows"
    )


def indistinct(winners: Sequence[Winner], known: Uncertainty) -> str | None:
    """The line of `too_small` for the winners of a search, each once; else None."""
    shares = list({row.digest: row.accuracy for row in winners}.values())
    return too_small("validation", known.samples, shares, known.spread)


def change(before: Accuracy, after: Accuracy) -> Change:
    """The gain of `after` over `before` on the same samples; the error is that of their differences, sample by sample.

    An extra sample in each direction is added, so that networks that differ in hardly any sample do not look certain.
    """
    differences = np.append(after.each - before.each, (1.0, -1.0))
    return Change(after.share - before.share, float(differences.std() / np.sqrt(len(differences))))
