"""Whether one engine is faster than another, from times in pairs.

Both engines run a SubNet within seconds of each other, so that disturbances of the device slow both; the ratio of their times
is a pair. The result is the geometric mean over SubNets of the median over rounds. The interval comes from a bootstrap within
each SubNet (Efron and Tibshirani 1993, chapter 13), because the set of compared SubNets is fixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.tables import Values

DRAWS = 1000
INTERVAL = (0.025, 0.975)
LEAST_ROUNDS = 3
"""Smallest number of rounds from which the noise can be estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """ratio: time with a choice over time without it, the geometric mean over the SubNets. pairs: number of timed pairs.

    low, high: the ratio's 95 % interval; None with too few rounds. largest: the ratio of the largest SubNet.
    """

    ratio: float
    low: float | None
    high: float | None
    largest: float
    pairs: int

    def slower(self, share: float) -> bool:
        """Whether the choice costs more than this share of the time, judged by the interval's lower end if it is known."""
        return (self.ratio if self.low is None else self.low) > 1 + share

    def gains_at_most(self, share: float) -> bool:
        """Whether the interval excludes that the choice saves this share of the time."""
        return self.low is not None and self.low > 1 - share

    def rejection(self, share: float) -> str | None:
        """The reason why the choice is not kept; None if it saves this share of the time and the gain exceeds the noise.

        A choice that slows the largest SubNet by more than this share is not kept either.
        """
        if self.high is None:
            return "timed too few times to tell"
        if self.ratio > 1 - share:
            if self.ratio > 1:
                return f"takes {self.ratio - 1:.1%} more time; needed: {share:.0%} less"
            return f"saves {1 - self.ratio:.1%} of the time; needed: {share:.0%}"
        if self.high >= 1:
            return "its gain is within the noise"
        if self.largest > 1 + share:
            return f"slows the largest SubNet by {self.largest - 1:.1%}"
        return None


def compare(log_ratios: Sequence[Values], seed: int) -> Comparison:
    """The comparison from logarithms of ratios: one sequence per SubNet, the largest first, with one value per round."""
    rng = np.random.default_rng(seed)
    medians = np.array([np.median(one) for one in log_ratios])
    low = high = None
    if min(map(len, log_ratios)) >= LEAST_ROUNDS:
        drawn = [np.median(rng.choice(one, (DRAWS, len(one))), axis=1) for one in log_ratios]
        low, high = (float(np.exp(value)) for value in np.quantile(np.mean(drawn, axis=0), INTERVAL))
    return Comparison(
        ratio=float(np.exp(medians.mean())),
        low=low,
        high=high,
        largest=float(np.exp(medians[0])),
        pairs=sum(map(len, log_ratios)),
    )
