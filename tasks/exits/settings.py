"""Settings of exits (their promise, number of SubNets), and exact p-values of the promise.

The hypothesis is "leaving early loses more than ε of accuracy", for any number of images; the number of images needed
follows. Per image the loss is +1 (the full answer is right, the early answer wrong: *lost*), −1 (the other way around:
*gained*) or 0. With probabilities p₊ of lost and p₋ of gained, accuracy falls by p₊ − p₋; (lost − gained) / n over n
images estimates it.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from pydantic import Field

from adaptive_runtime.exits import MEASURES, MeasureName
from tasks.base.errors import UserError
from tasks.base.schemas.stored import Strict

NUISANCE_SHARE = 0.05
"""Share of the level that is spent on bounding the probability that an image changes."""
UNSEEN = 1e-13
"""Probability beyond each end of the summed counts; it is added to the p-value."""


@lru_cache(maxsize=100_000)
def p_value(lost: int, gained: int, images: int, epsilon: float, level: float) -> float:
    """P-value of the hypothesis p₊ − p₋ > ε: if it is true, P(p_value ≤ level) ≤ level. The power is highest at `level`.

    The share of changed images, ψ = p₊ + p₋, is unknown. A share of the level pays for an upper bound of ψ (Clopper–Pearson).
    The p-value is this share plus the largest probability, over all ψ up to the bound, of a difference lost − gained at most
    as large as the observed one, s, when p₊ − p₋ = ε (Berger and Boos, JASA 1994). The maximum is at the bound: the derivative
    of the probability by ψ is n/2 · (P(S = s + 1) − P(S = s)), with S the difference of n − 1 images. For ψ ≤ ½ the polynomial
    p₋ + p₀z + p₊z² has real roots, so S is a shifted sum of independent yes–no trials; its probabilities rise up to less than
    one before its mean (Darroch, 1964), thus for s + 1 ≤ (n − 1)ε − 1. Otherwise the p-value is 1. If more than ε is lost at
    the same ψ, such a small difference is even less probable.
    """
    from scipy import stats  # takes a second

    spent = NUISANCE_SHARE * level
    changed, difference = lost + gained, lost - gained
    most = 1.0 if changed == images else float(stats.beta.isf(spent, changed + 1, images - changed))
    if most < epsilon:
        return spent  # more than epsilon lost would need more changes
    if most > 0.5 or difference > (images - 1) * epsilon - 2:
        return 1.0
    return min(1.0, spent + _at_most(difference, images, epsilon, most))


def _at_most(difference: int, images: int, epsilon: float, changing: float) -> float:
    """P(lost − gained ≤ difference), an upper bound within 2e-13, when p₊ − p₋ = ε and p₊ + p₋ = changing."""
    from scipy import stats

    count = stats.binom(images, changing)
    changed = np.arange(int(count.ppf(UNSEEN)), int(count.isf(UNSEEN)) + 1)
    lost_at_most = np.floor((changed + difference) / 2)
    lost_share = (1 + epsilon / changing) / 2
    return float(count.pmf(changed) @ stats.binom.cdf(lost_at_most, changed, lost_share)) + 2 * UNSEEN


def images_needed(epsilon: float, level: float) -> int:
    """Smallest number of tested images with which ε can be promised, if leaving early changes no answer."""
    enough = math.ceil(2 / epsilon)
    while p_value(0, 0, enough, epsilon, level) > level:
        enough *= 2
    return bisect_left(range(enough), True, 1, key=lambda images: p_value(0, 0, images, epsilon, level) <= level)


FEWEST_CHOOSING = 20
"""Smallest number of images on which a path is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseSettings:
    """The promise. epsilon: largest loss of accuracy (0.01: one point). confidence: probability that it holds.

    choosing_share: share of the holdout images that choose thresholds; the others test them.
    """

    epsilon: float = 0.01
    confidence: float = 0.95
    choosing_share: float = 0.4
    measures: Sequence[MeasureName] = tuple(MEASURES)

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("confidence", self.confidence)):
            if not 0 < value < 1:
                raise UserError(f"exits.{name}", f"{value:g}", allowed="between 0 and 1, as 0.01")

    @property
    def level(self) -> float:
        """Largest probability of a broken promise."""
        return 1 - self.confidence

    def choosing(self, images: int) -> int:
        """Number of holdout images that choose thresholds."""
        return int(images * self.choosing_share)

    def images_needed(self) -> int:
        """Smallest number of holdout images with which the promise can be given."""
        tested = images_needed(self.epsilon, self.level)
        images = tested
        while images - self.choosing(images) < tested or self.choosing(images) < FEWEST_CHOOSING:
            images += 1
        return images


class Settings(Strict):
    """Settings of thresholds for SubNets with all their exits, on each device."""

    epsilon: float = Field(0.01, gt=0, lt=1, description="accuracy that leaving early may lose; 0.01: one point")
    confidence: float = Field(0.95, gt=0, lt=1, description="probability with which that is kept")
    images: int | None = Field(None, ge=1, description="held-out images; null: all of the validation split")
    subnets: int = Field(3, ge=0, le=100, description="SubNets that get thresholds, at most; 0: none")
    pictures: int = Field(6, ge=0, le=50, description="images that leave first and last, as pictures of the report")
    by_expected: bool = Field(False, description="also the best SubNet of each budget by expected latency")
    seed: int = Field(0, ge=0, description="which held-out images choose, and which test")

    @property
    def promise(self) -> PromiseSettings:
        """The promise."""
        return PromiseSettings(epsilon=self.epsilon, confidence=self.confidence)
