"""Whether one engine is faster than another, from times in pairs.

Both engines run a SubNet within seconds of each other, so that whatever slows the device slows both; the ratio of their times
is a pair. Of each SubNet the median over the rounds counts, of all SubNets the geometric mean. The interval is that of a
bootstrap within each SubNet (Efron and Tibshirani 1993, chapter 13): the SubNets are those that were chosen to be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.tables import Values

DRAWS = 1000
INTERVAL = (0.025, 0.975)
LEAST_ROUNDS = 3
"""Fewer tell nothing of the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """ratio: time with a choice over time without it, the geometric mean over the SubNets. pairs: how many were timed.

    low, high: its 95 % interval; None while there are too few rounds. largest: the ratio of the largest SubNet alone.
    """

    ratio: float
    low: float | None
    high: float | None
    largest: float
    pairs: int

    def slower(self, share: float) -> bool:
        """Whether the choice costs more than this share of the time, so far as the interval tells."""
        return (self.ratio if self.low is None else self.low) > 1 + share

    def gains_at_most(self, share: float) -> bool:
        """Whether the interval excludes that the choice saves this share of the time."""
        return self.low is not None and self.low > 1 - share

    def rejection(self, share: float) -> str | None:
        """Why the choice is not kept, in words; None: it saves this share of the time, and that is more than noise.

        A choice that costs the largest SubNet more than this share is not kept either.
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
    """From logarithms of ratios: for each SubNet, the largest first, one for each round."""
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
