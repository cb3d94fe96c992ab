"""Exact p-values of "leaving early loses more than ε of accuracy" for any number of images, and the number of images needed.

Per image the loss is +1 (the full answer is right, the early one wrong: *lost*), −1 (the other way around: *gained*) or 0.
With probabilities p₊ of lost and p₋ of gained, accuracy falls by p₊ − p₋; (lost − gained) / n over n images estimates it.
"""

import math
from functools import lru_cache

import numpy as np

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
    too_few = 0
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if p_value(0, 0, middle, epsilon, level) <= level:
            enough = middle
        else:
            too_few = middle
    return enough
