"""A path of thresholds that begins with "no image leaves early"; latency falls from step to step.

For a price μ of a lost answer [ms], coordinate descent finds thresholds that minimise the mean of latency + μ · loss: with all
other thresholds fixed, the best threshold of an exit is a cut in the order of its confidences, at the maximum of the cumulative
saving by leaving. Prices fall from step to step; cuts only move further, so the path is nested: at a later step, an image
leaves no later. Between prices, cuts move in small steps.

Legend: N images, E exits up to the full answer, F of them before it, S steps of the path.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.exits import exits_taken

Values = NDArray[np.float64]
Counts = NDArray[np.int64]
PRICES = 48
DEAREST, CHEAPEST = 2e3, 0.05
"""Prices of one lost answer, in units of the full answer's latency."""
SWEEPS = 8
"""Largest number of sweeps of one descent; later sweeps change little."""
STRIDE = 0.01
"""Share of images by which a cut moves between two steps, at most."""


@dataclass(frozen=True, slots=True)
class ExitAnswers:
    """Confidences by one measure, and losses, of all exits up to the exit of the full answer, which is the last column.

    losses_NE: loss against the full answer: +1 lost, −1 gained, or a value between them by probabilities.
    """

    confidences_NE: Values
    losses_NE: NDArray[np.int64] | Values

    def __len__(self) -> int:
        return len(self.losses_NE)

    def rows(self, chosen: NDArray[np.int64]) -> "ExitAnswers":
        """The same data for some of the images."""
        return ExitAnswers(self.confidences_NE[chosen], self.losses_NE[chosen])

    def leave(self, bars: Values) -> tuple[NDArray[np.int64], NDArray[np.int64] | Values]:
        """The exits (N,) that images take with thresholds (F,), and their losses (N,) there."""
        taken_N = exits_taken(self.confidences_NE, bars.tolist())
        return taken_N, self.losses_NE[np.arange(len(self)), taken_N]


def find_path(answers: ExitAnswers, latency_ms_E: Values) -> Values:
    """Thresholds (S, F), falling or equal from step to step; the first row is infinite: no image leaves early."""
    before = len(latency_ms_E) - 1
    order_NF = np.argsort(-answers.confidences_NE[:, :before], 0, kind="stable")
    sorted_NF = np.take_along_axis(answers.confidences_NE[:, :before], order_NF, 0)
    cuts_F = np.zeros(before, np.int64)
    rows = [cuts_F]
    for price in np.geomspace(DEAREST, CHEAPEST, PRICES) * latency_ms_E[-1]:
        costs_NE = latency_ms_E + price * answers.losses_NE
        further_F = np.maximum(_descend(costs_NE, sorted_NF, order_NF, cuts_F), cuts_F)
        rows.extend(_between(cuts_F, further_F, max(1, round(STRIDE * len(answers)))))
        cuts_F = further_F
    return _bars(np.array(rows), sorted_NF)


def _descend(costs_NE: Values, sorted_NF: Values, order_NF: Counts, cuts_F: Counts) -> Counts:
    """Cuts (F,), found by descent from given cuts until no change of a single cut is cheaper, in at most `SWEEPS` sweeps."""
    images, before = sorted_NF.shape
    rank_NF = np.empty_like(order_NF)
    np.put_along_axis(rank_NF, order_NF, np.arange(images)[:, None], 0)
    ends_NF = np.ones((images, before), bool)  # a cut never divides equal confidences
    ends_NF[:-1] = sorted_NF[1:] != sorted_NF[:-1]
    cuts_F = cuts_F.copy()
    for _ in range(SWEEPS):
        start_F = cuts_F.copy()
        for place in reversed(range(before)):
            onward_N = costs_NE[:, before]
            for later in reversed(range(place + 1, before)):
                onward_N = np.where(rank_NF[:, later] < cuts_F[later], costs_NE[:, later], onward_N)
            arrives_N = (rank_NF[:, :place] >= cuts_F[:place]).all(1)
            saved_N = np.where(arrives_N, onward_N - costs_NE[:, place], 0.0)[order_NF[:, place]]
            totals = np.where(ends_NF[:, place], np.cumsum(saved_N), -np.inf)
            best = int(totals.argmax())
            cuts_F[place] = best + 1 if totals[best] > 0 else 0
        if (cuts_F == start_F).all():
            break
    return cuts_F


def _between(cuts_F: Counts, further_F: Counts, stride: int) -> list[Counts]:
    """Cuts on the way from `cuts_F` to `further_F`, each at most one stride from the one before."""
    steps = -(-int((further_F - cuts_F).max(initial=0)) // stride)
    return [cuts_F + (further_F - cuts_F) * step // steps for step in range(1, steps + 1)]


def _bars(cuts_SF: Counts, sorted_NF: Values) -> Values:
    """Thresholds half way between the confidences on both sides of each cut; infinite if no image leaves."""
    images, before = sorted_NF.shape
    last = np.take_along_axis(sorted_NF, np.maximum(cuts_SF - 1, 0), 0)
    first_out = np.take_along_axis(sorted_NF, np.minimum(cuts_SF, images - 1), 0)
    bars_SF = np.where(cuts_SF == 0, np.inf, last + (first_out - last) / 2)
    return np.minimum.accumulate(bars_SF, 0) if len(bars_SF) else np.empty((0, before))
