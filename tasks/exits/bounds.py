"""P-values of "leaving early loses more than ε of accuracy", exact for any number of images, and how many images they take.

Per image the loss is +1 (the full answer is right, the early one wrong: *lost*), −1 (the other way around: *gained*) or 0.
With probabilities p₊ of lost and p₋ of gained, accuracy falls by p₊ − p₋, which (lost − gained) / n of n images estimates.
"""

import math
from functools import lru_cache

import numpy as np

NUISANCE_SHARE = 0.05
"""Of the level, what is spent on bounding how many images change at all."""
UNSEEN = 1e-13
"""Probability beyond each end of the counts that are summed over; it is added to the p-value."""


@lru_cache(maxsize=100_000)
def p_value(lost: int, gained: int, images: int, epsilon: float, level: float) -> float:
    """P-value of p₊ − p₋ > ε: P(p_value ≤ level) ≤ level wherever that is true. At `level` it has most power.

    How many images change, ψ = p₊ + p₋, is not known. A share of the level goes into an upper bound of it (Clopper–Pearson).
    The p-value is that share plus the largest probability, over all ψ up to the bound, of a difference lost − gained as
    small as the one at hand, s, when p₊ − p₋ = ε (Berger and Boos, JASA 1994). The largest is at the bound itself: by ψ, the
    probability has the derivative n/2 · (P(S = s + 1) − P(S = s)), S the difference of n − 1 images. For ψ ≤ ½ the polynomial
    p₋ + p₀z + p₊z² has real roots, so S is a shifted sum of independent yes–no trials; its probabilities rise up to less than
    one before its mean (Darroch, 1964), so where s + 1 ≤ (n − 1)ε − 1. Elsewhere the p-value is 1. When more than ε is lost
    and ψ is the same, so small a difference is less probable still.
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
    """Fewest tested images with which ε can be promised at all: when leaving early changes no answer."""
    enough = math.ceil(2 / epsilon)
    while p_value(0, 0, enough, epsilon, level) > level:
        enough *= 2
    too_few = 0
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if p_value(0, 0, middle, epsilon, level) <= level:
            enough = middle
        else:
            too_few = middle
    return enough
