"""A randomisation test that may look again and again, with an error probability that holds over all looks together.

Legend: R roll-outs, B divisions of the devices (the first one is the real one), N devices.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

_Scores = NDArray[np.float64]


def drawn_divisions(
    kind_N: NDArray[np.int64], treated_N: NDArray[np.bool_], draws: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """(B, N) with 1 for devices that have the bundle: the real division, then `draws` others with as many of each kind."""
    found_BN = np.zeros((draws + 1, len(kind_N)), dtype=np.float32)
    found_BN[0] = treated_N
    for kind in np.unique(kind_N):
        places = np.flatnonzero(kind_N == kind)
        count = int(treated_N[places].sum())
        if 0 < count < len(places):
            keys = rng.random((draws, len(places)), dtype=np.float32)
            chosen = places[np.argpartition(keys, count - 1, axis=1)[:, :count]]
            found_BN[np.arange(1, draws + 1)[:, None], chosen] = 1
    return found_BN


def rank_scores(values_RN: _Scores, kind_N: NDArray[np.int64]) -> _Scores:
    """Ranks within each kind, centred, over the kind's size + 1 (R, N): between −½ and ½; 0 if a value is unknown.

    Their sum over treated devices is the statistic of van Elteren, Bulletin of the ISI 37 (1960): ranks of Wilcoxon in strata.
    However wrong the telemetry of one device is, it counts as one rank.
    """
    scores_RN = np.zeros(values_RN.shape)
    for kind in np.unique(kind_N):
        places = np.flatnonzero(kind_N == kind)
        values = values_RN[:, places]
        known = ~np.isnan(values)
        count = known.sum(1, keepdims=True)
        ranks = rankdata(np.where(known, values, np.inf), axis=1)
        scores_RN[:, places] = np.where(known, (ranks - (count + 1) / 2) / (count + 1), 0.0)
    return scores_RN


def spent(share: float) -> float:
    """Share of the level that is spent when a share of the looks is over. Source: Lan and DeMets, Biometrika 70 (1983), the
    spending function that is near to Pocock's boundary.
    """
    return math.log1p((math.e - 1) * min(share, 1.0))


class RandomisationTest:
    """Whether scores of treated devices are larger than chance makes them, at any of several looks.

    Devices were drawn at random within their kinds. If the bundle changes nothing, telemetry would have been the same for any
    division, so the real division is one of B exchangeable ones (Fisher, The Design of Experiments, 1935, §21). Each look
    removes the divisions with the largest statistics from those that earlier looks have left, as many as the spending function
    allows. The test rejects when it removes the real division. At most level · B are removed over all looks, so P(rejected) ≤
    level, however windows depend on each other, for any distribution, and for any number of drawn divisions B (as in Phipson
    and Smyth, Statistical Applications in Genetics and Molecular Biology 9, 2010). Ties at the edge are not removed.

    The statistic is the sum of scores. By kinds it is the largest of the standardised sums of all devices and of each kind, so
    that a fault on one kind alone is detected, too (as in Westfall and Young, Resampling-Based Multiple Testing, 1993).
    """

    def __init__(
        self,
        divisions_BN: NDArray[np.float32],
        kind_N: NDArray[np.int64],
        level: float,
        *,
        looks: int,
        rollouts: int,
        by_kind: bool,
    ) -> None:
        """looks: their largest number. rollouts: number of roll-outs that are tested side by side, on the same divisions."""
        places = [np.flatnonzero(kind_N == kind) for kind in np.unique(kind_N)]
        self._kinds = [(at, np.ascontiguousarray(divisions_BN[:, at].T)) for at in places]
        self._treated = [int(divisions_BN[0, at].sum()) for at in places]
        self._level = level
        self._looks = looks
        self._by_kind = by_kind
        self._left_RB = np.ones((rollouts, len(divisions_BN)), dtype=bool)
        self._number = 0

    def look(self, scores_RN: _Scores) -> NDArray[np.bool_]:
        """Whether each roll-out's test rejects at this look, the next one in order (R,)."""
        self._number += 1
        rollouts, divisions = self._left_RB.shape
        allowed = int(self._level * spent(self._number / self._looks) * divisions + 1e-9)
        budget_R = allowed - (divisions - self._left_RB.sum(1))
        found_RB = np.where(self._left_RB, self._statistics(scores_RN.astype(np.float32)), -np.inf)
        first = divisions - 1 - allowed
        largest_RA = -np.sort(-np.partition(found_RB, first, axis=1)[:, first:], axis=1)
        edge_R = largest_RA[np.arange(rollouts), budget_R]
        removed_RB = found_RB > edge_R[:, None]
        self._left_RB &= ~removed_RB
        return removed_RB[:, 0]

    def keep(self, kept_R: NDArray[np.bool_]) -> None:
        """Go on with these roll-outs alone."""
        self._left_RB = self._left_RB[kept_R]

    def _statistics(self, scores_RN: NDArray[np.float32]) -> NDArray[np.float32]:
        """The statistic of each division (R, B)."""
        sums = [scores_RN[:, at] @ divided_NB for at, divided_NB in self._kinds]
        total_RB = np.sum(sums, axis=0)
        if not self._by_kind:
            return total_RB
        variances = [
            _variance(scores_RN[:, at], count) for (at, _), count in zip(self._kinds, self._treated, strict=True)
        ]
        largest_RB = total_RB / _deviation(np.sum(variances, axis=0))
        for sum_RB, variance_R in zip(sums, variances, strict=True):
            np.maximum(largest_RB, sum_RB / _deviation(variance_R), out=largest_RB)
        return largest_RB


def _variance(scores_RN: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Variance of the sum of `count` scores that are drawn without replacement (R,); their mean is 0."""
    size = scores_RN.shape[1]
    share = count * (size - count) / (size * (size - 1)) if size > 1 else 0.0
    return np.float32(share) * (scores_RN**2).sum(1)


def _deviation(variance_R: NDArray[np.float32]) -> NDArray[np.float32]:
    """Deviations as a column to divide by; infinite if all sums are equal."""
    return np.sqrt(np.where(variance_R > 0, variance_R, np.inf))[:, None]
