"""Noise of nights: typical latencies from rounds, and p-values of worse numbers, by Holm's procedure over all.

Rounds of one night share its conditions, so they say less about the next night than their number suggests. Random
changes between nights have to stay within the tolerance (`tasks.operations.nightly.comparison`).

Other processes on a machine make single rounds slower, and none faster, so the slowest fifth is left out. Source: Yuen,
The two-sample trimmed t for unequal population variances, Biometrika 61, 1974.

Few rounds of one operator estimate their variance badly. All operators of a night together show how large variances
are, and how far they differ from operator to operator; they moderate each operator's. Source: Smyth, Linear models and
empirical Bayes methods, Statistical Applications in Genetics and Molecular Biology 3, 2004.

Legend: D draws, P points of a front, L levels of accuracy.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.tables import Values

LEAST_DEVIATION = 0.002
"""Least relative deviation of rounds: smaller measured deviations are due to chance."""
LEAST_ROUNDS = 3
LEAST_KNOWN = 5
"""Least number of operators from which a common variance is estimated."""
MOST_FREEDOM = 1000.0


def typical_ms(rounds_ms: Sequence[float]) -> float:
    """The geometric mean of at least one round [ms]; with `LEAST_ROUNDS` or more rounds, without the slowest fifth."""
    return math.exp(float(_logs(rounds_ms)[: _left(rounds_ms)].mean()))


@dataclass(frozen=True, slots=True)
class Trimmed:
    """At least `LEAST_ROUNDS` rounds without the slowest fifth, in logarithms: mean, a round's variance, number left."""

    mean: float
    variance: float
    count: int

    @classmethod
    def of(cls, rounds_ms: Sequence[float]) -> "Trimmed":
        """Statistics from latencies [ms]. For the variance, rounds of the slowest fifth count as the slowest of the others."""
        logs, count = _logs(rounds_ms), _left(rounds_ms)
        near = np.minimum(logs, logs[count - 1])
        variance = float(np.square(near - near.mean()).sum()) / (count - 1)
        return cls(float(logs[:count].mean()), max(variance, LEAST_DEVIATION**2), count)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return math.sqrt(self.variance / self.count)


@dataclass(frozen=True, slots=True)
class Scatter:
    """Variances of rounds in a night: about `variance`, which counts for each operator like `freedom` further rounds."""

    variance: float
    freedom: float

    @classmethod
    def fit(cls, rounds_ms: Iterable[Sequence[float]]) -> "Scatter":
        """Fit to the rounds of all operators [ms]. Variances are assumed to follow a scaled inverse χ² distribution."""
        from scipy.optimize import brentq  # takes a second
        from scipy.special import digamma, polygamma

        known = [Trimmed.of(one) for one in rounds_ms]
        if len(known) < LEAST_KNOWN:
            return cls(variance=0.0, freedom=0.0)
        halves = np.array([(one.count - 1) / 2 for one in known])
        logs = np.log([one.variance for one in known]) - digamma(halves) + np.log(halves)
        apart = float(logs.var(ddof=1) - polygamma(1, halves).mean())  # variance between operators
        half = MOST_FREEDOM / 2
        if apart > polygamma(1, half):
            half = float(brentq(lambda one: polygamma(1, one) - apart, 1e-3, half))
        return cls(float(np.exp(logs.mean() + digamma(half) - np.log(half))), 2 * half)

    def of(self, one: Trimmed) -> tuple[float, float]:
        """The variance of the mean of an operator's rounds, and its degrees of freedom."""
        freedom = one.count - 1 + self.freedom
        variance = ((one.count - 1) * one.variance + self.freedom * self.variance) / freedom
        return variance / one.count, freedom


def _logs(rounds_ms: Sequence[float]) -> Values:
    return np.sort(np.log(rounds_ms))


def _left(rounds_ms: Sequence[float]) -> int:
    """Number of rounds without the slowest fifth."""
    return len(rounds_ms) - (max(1, len(rounds_ms) // 5) if len(rounds_ms) >= LEAST_ROUNDS else 0)


UNKNOWN = (Scatter(variance=0.0, freedom=0.0),) * 2
"""Scatters for both nights if they are unknown: each operator's variance comes from its own rounds alone."""


DRAWS = 2000
SEED = 0
SAME = 1e-9
"""Accuracies that differ by less count as equal."""


def p_slower(
    before_ms: Sequence[float], now_ms: Sequence[float], tolerated: float, scatters: tuple[Scatter, Scatter] = UNKNOWN
) -> float:
    """P-value of "slower by at most the share `tolerated`": a t-test of trimmed rounds with unequal variances (Yuen 1974).

    scatters: of the rounds in both nights; they moderate the variances. The smaller of both nights' degrees of freedom is used:
    with Welch's combination of both, small p-values would be several times too small.
    """
    from scipy.stats import t  # takes a second

    before, now = Trimmed.of(before_ms), Trimmed.of(now_ms)
    described = [scatter.of(one) for scatter, one in zip(scatters, (before, now), strict=True)]
    error = math.sqrt(sum(variance for variance, _ in described))
    shift = now.mean - before.mean - math.log1p(tolerated)
    return float(t.sf(shift / error, min(freedom for _, freedom in described)))


def p_larger(before: Sequence[float], now: Sequence[float], tolerated: float) -> float:
    """P-value of "errors are larger by at most `tolerated`": Mann and Whitney's test; 1 if one side has no errors."""
    from scipy.stats import mannwhitneyu

    if not before or not now:
        return 1.0
    return float(mannwhitneyu(np.array(now) - tolerated, np.array(before), alternative="greater").pvalue)


def largest_of(changes: Sequence[float], level: float) -> float:
    """The value that a further change exceeds with probability `level`, estimated from earlier changes around 0."""
    from scipy.stats import t

    return float(t.isf(level, len(changes))) * math.sqrt(float(np.mean(np.square(changes))))


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Flags of the rejected hypotheses; the probability to reject any true one is at most `level`.
    This holds however the tests depend on each other (Holm, Scandinavian Journal of Statistics 6, 1979).
    """
    rejected = [False] * len(p_values)
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[place] > level / (len(p_values) - rank):
            break
        rejected[place] = True
    return rejected


@dataclass(frozen=True, slots=True)
class DrawnFront:
    """Random draws of a front's points, given the measurements. latency_DP [ms], accuracy_DP in [0, 1]; levels_P: measured."""

    latency_DP: NDArray[np.float64]
    accuracy_DP: NDArray[np.float64]
    levels_P: Values

    @classmethod
    def draw(cls, rounds_ms: Sequence[Sequence[float]], accuracy: Sequence[float], images: int | None) -> "DrawnFront":
        """Draw points from latencies of rounds, and accuracies on `images` images; None: the accuracies are exact.

        Latencies vary independently from point to point. Accuracies vary together, since they come from the same images.
        """
        rng = np.random.default_rng(SEED)
        means, errors = np.array([(one.mean, one.error) for one in map(Trimmed.of, rounds_ms)]).T
        levels = np.array(accuracy)
        latency = np.exp(means + errors * rng.standard_normal((DRAWS, len(means))))
        error = np.sqrt(levels * (1 - levels) / images) if images else np.zeros(len(levels))
        shared = np.random.default_rng(rng.integers(2**32)).standard_normal((DRAWS, 1))
        return cls(latency, levels + error * shared, levels)

    def areas(self, reference_ms: float) -> Values:
        """Mean accuracy over all budgets from 0 to the reference (D,); each budget counts its best point, or 0 if none fits."""
        order = np.argsort(self.latency_DP, axis=1)
        latency = np.minimum(np.take_along_axis(self.latency_DP, order, axis=1), reference_ms)
        best = np.maximum.accumulate(np.take_along_axis(self.accuracy_DP, order, axis=1), axis=1)
        until = np.column_stack([latency[:, 1:], np.full(len(latency), reference_ms)])
        areas: Values = ((until - latency) * best).sum(axis=1) / reference_ms
        return areas

    def fastest(self, levels_L: Values) -> NDArray[np.float64]:
        """Latency of the fastest point with at least each accuracy (D, L); infinite if no point reaches it."""
        reached = self.accuracy_DP[:, None, :] >= levels_L[None, :, None] - SAME
        found: NDArray[np.float64] = np.where(reached, self.latency_DP[:, None, :], np.inf).min(axis=2)
        return found


def p_smaller(before: Values, now: Values, tolerated: float) -> float:
    """P-value of "smaller by at most the share `tolerated`", for two columns of drawn areas (D,)."""
    from scipy.stats import norm

    kept = now - (1 - tolerated) * before
    deviation = max(float(kept.std()), LEAST_DEVIATION * float(before.mean()))
    return float(norm.cdf(float(kept.mean()) / deviation)) if deviation else 1.0


def ratio_at_equal_accuracy(before: DrawnFront, now: DrawnFront) -> tuple[float, float, float] | None:
    """Latency now over latency before, at the accuracies of the front before: median, 5 % and 95 % quantile of draws.
    Each draw is the geometric mean over the accuracies that both nights reach; None if there are none.
    """
    levels = before.levels_P
    ratios_DL = np.full((DRAWS, len(levels)), np.nan)
    first, second = before.fastest(levels), now.fastest(levels)
    known = np.isfinite(first) & np.isfinite(second)
    ratios_DL[known] = np.log(second[known] / first[known])
    some = known.any(axis=1)
    if not some.any():
        return None
    means = np.exp(np.nanmean(ratios_DL[some], axis=1))
    low, middle, high = (float(one) for one in np.quantile(means, (0.05, 0.5, 0.95)))
    return middle, low, high
