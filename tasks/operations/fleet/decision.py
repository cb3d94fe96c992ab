"""The decisions of a roll-out, as pure functions of telemetry: the next devices; wait, go on, halt, or ask.

For each measure, a stage asks two questions: is the bundle worse than tolerated, and is it surely not harmful? A
randomisation test may look again and again, with an error probability that holds over all looks together. The devices
that get the bundle next are drawn at random within each kind, so that they differ from the others by chance alone.
Telemetry of requests is sums, and each device is compared with itself.

Legend: R roll-outs, B divisions of the devices (the first one is the real one), N devices that a stage compares, F
devices of the fleet, K kinds, M measures, W windows.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from tasks.operations.fleet.settings import MeasureName, RolloutSettings

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
    """Share of the level that is spent when a share of the looks is over, as by Pocock (Lan and DeMets, Biometrika, 1983)."""
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


class StagePlan(NamedTuple):
    """A stage, by its number from 0 on. added: places in the fleet of the devices that get the bundle now. compared_N: places
    of the devices that the test looks at. treated_N: whether each is among `added`. kind_N: their kinds, as numbers.
    """

    stage: int
    added: NDArray[np.int64]
    compared_N: NDArray[np.int64]
    treated_N: NDArray[np.bool_]
    kind_N: NDArray[np.int64]


def draw_stage(
    kinds: Sequence[str], taken_F: NDArray[np.bool_], stage: int, settings: RolloutSettings, rng: np.random.Generator
) -> StagePlan:
    """The next stage of a fleet. kinds: of all devices of the roll-out. taken_F: devices that already have the bundle.

    Kinds get shares in proportion to their sizes, rounded by largest remainders. Devices of earlier stages are not compared
    again: given the past, the devices of this stage are a random part of the remaining ones, no matter why the stage began.
    """
    names, kind_F = np.unique(np.asarray(kinds), return_inverse=True)
    sizes_K = np.bincount(kind_F, minlength=len(names))
    least, taken = settings.least_devices, int(taken_F.sum())
    total = max(math.ceil(settings.stages[stage] * len(kind_F)), taken + least)
    left = least * (len(settings.stages) - stage)  # for later stages, and as the comparison group
    total = max(min(total, len(kind_F) - left), taken)
    wanted_K = rounded_shares(sizes_K, total)
    added: list[int] = []
    for kind, wanted in enumerate(wanted_K):
        free = np.flatnonzero((kind_F == kind) & ~taken_F)
        missing = wanted - (sizes_K[kind] - len(free))
        if missing > 0:
            added += rng.choice(free, size=missing, replace=False).tolist()
    places = np.array(sorted(added), dtype=np.int64)
    compared_N = _compared(kind_F, taken_F, places, settings.most_compared, rng)
    return StagePlan(stage, places, compared_N, np.isin(compared_N, places), kind_F[compared_N])


def rounded_shares(sizes_K: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Integers with sum `total`, nearest to its shares by sizes (method of largest remainders)."""
    exact_K = total * sizes_K / sizes_K.sum()
    found_K = np.floor(exact_K).astype(np.int64)
    order = np.argsort(-(exact_K - found_K), kind="stable")
    found_K[order[: total - int(found_K.sum())]] += 1
    return found_K


def _compared(
    kind_F: NDArray[np.int64], taken_F: NDArray[np.bool_], added: NDArray[np.int64], most: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """All devices without the bundle, in the order of their kinds; at most `most`, drawn at random from both halves."""
    others = np.setdiff1d(np.flatnonzero(~taken_F), added)
    treated = rng.permutation(added)[: most // 2]
    others = rng.permutation(others)[: most - len(treated)]
    places = np.sort(np.concatenate([treated, others]))
    return places[np.argsort(kind_F[places], kind="stable")]


_Sums = NDArray[np.float64]


class TelemetrySums(NamedTuple):
    """Sums over windows, (R, N) each: no data of a single request, and no input.

    requests; log_latency: sum of ln(latency in ms); in_time: requests within their budget; confidence: sum of confidences;
    labelled: requests whose right answer, or the answer of the largest SubNet, is known; agreed: labelled requests with the
    same answer; heard: windows in which the device reported.
    """

    requests: _Sums
    log_latency: _Sums
    in_time: _Sums
    confidence: _Sums
    labelled: _Sums
    agreed: _Sums
    heard: _Sums

    @classmethod
    def nothing(cls, rollouts: int, devices: int) -> Self:
        """Sums before the first window."""
        return cls(*(np.zeros((rollouts, devices)) for _ in cls._fields))

    def plus(self, other: "TelemetrySums") -> "TelemetrySums":
        """Sums over the windows of both."""
        return TelemetrySums(*(one + another for one, another in zip(self, other, strict=True)))


def losses(
    before: TelemetrySums, since: TelemetrySums, windows: tuple[int, int], device_requests: int
) -> Mapping[MeasureName, _Sums]:
    """How much worse each device is since a moment than before (R, N); NaN: too little telemetry.

    Latency: ln of the ratio of geometric means. Others: differences of shares, of requests or, for `heard`, of windows.
    windows: how many there were before and since. device_requests: least number of requests for a value.
    """

    def worse(name: str, count: str, sign: float) -> _Sums:
        rates = []
        for sums in (before, since):
            counted = getattr(sums, count)
            known = counted >= device_requests
            rates.append(np.divide(getattr(sums, name), counted, out=np.full(counted.shape, np.nan), where=known))
        return sign * (rates[1] - rates[0])

    return {
        "latency": worse("log_latency", "requests", 1.0),
        "in_time": worse("in_time", "requests", -1.0),
        "confidence": worse("confidence", "requests", -1.0),
        "agreement": worse("agreed", "labelled", -1.0),
        "heard": before.heard / windows[0] - since.heard / windows[1],
    }


def shift_of(measure: MeasureName, share: float) -> float:
    """A limit in the unit of `losses`."""
    return float(np.log1p(share)) if measure == "latency" else share


class StageOutcome(NamedTuple):
    """The outcome after a look (R, M): measures worse than tolerated, and harmless measures; neither is ever revoked."""

    worse_RM: NDArray[np.bool_]
    safe_RM: NDArray[np.bool_]


class StageTest:
    """Looks at a stage's losses after each window. Both questions are tests of sums of ranks, after a supposed loss is
    subtracted from the devices that have the bundle: `tolerated` for the first question, which is also asked of each kind;
    `harmful` for the second, which is asked of all devices together.

    If all devices lose `tolerated`, a measure is found worse with a probability of at most `RolloutSettings.measure_level`; if
    all lose `harmful`, it is found safe with at most the stage's probability in `missed`. Sums of ranks grow with losses.
    """

    def __init__(self, settings: RolloutSettings, plan: StagePlan, rng: np.random.Generator, rollouts: int = 1) -> None:
        """rollouts: number of roll-outs that are tested side by side; they have drawn devices at the same places."""
        self._settings = settings
        self._plan = plan
        divisions_BN = drawn_divisions(plan.kind_N, plan.treated_N, settings.draws, rng)

        test = partial(RandomisationTest, divisions_BN, plan.kind_N, looks=settings.most_windows, rollouts=rollouts)
        level, missed = settings.measure_level, settings.missed[plan.stage]
        self._worse = {name: test(level=level, by_kind=True) for name in settings.measures}
        self._safe = {name: test(level=missed, by_kind=False) for name in settings.measures}
        nothing = np.zeros((rollouts, len(settings.measures)), dtype=bool)
        self._outcome = StageOutcome(nothing, nothing.copy())

    def look(self, losses: Mapping[MeasureName, NDArray[np.float64]]) -> StageOutcome:
        """The outcome after one more window. losses: of the compared devices since the stage began (R, N)."""
        for place, name in enumerate(self._settings.measures):
            limits = self._settings.limits[name]
            worse_RN = self._scores(losses[name], shift_of(name, limits.tolerated))
            safe_RN = -self._scores(losses[name], shift_of(name, limits.harmful))
            self._outcome.worse_RM[:, place] |= self._worse[name].look(worse_RN)
            self._outcome.safe_RM[:, place] |= self._safe[name].look(safe_RN)
        return self._outcome

    def keep(self, kept_R: NDArray[np.bool_]) -> None:
        """Go on with these roll-outs alone."""
        self._outcome = StageOutcome(*(one_RM[kept_R] for one_RM in self._outcome))
        for test in (*self._worse.values(), *self._safe.values()):
            test.keep(kept_R)

    def _scores(self, losses_RN: NDArray[np.float64], supposed: float) -> NDArray[np.float64]:
        return rank_scores(losses_RN - supposed * self._plan.treated_N, self._plan.kind_N)


class StageRecord(NamedTuple):
    """Telemetry of a stage. before: sums of the windows before it (1, N). windows: sums of each whole window since (1, N).
    bundle_N: requests that each device answered by the new bundle.
    """

    plan: StagePlan
    before: TelemetrySums
    windows: Sequence[TelemetrySums]
    bundle_N: NDArray[np.float64]


class RolloutDecision(NamedTuple):
    """The action, and its reason in one line for people. measure: the first one that is worse than tolerated."""

    action: Literal["wait", "go on", "halt", "ask"]
    reason: str
    measure: MeasureName | None = None


def decide(settings: RolloutSettings, record: StageRecord, rng: np.random.Generator) -> RolloutDecision:
    """The decision from the record alone: the same record and `rng` give the same decision, also after a restart."""
    test = StageTest(settings, record.plan, rng)
    since = TelemetrySums.nothing(1, len(record.plan.compared_N))
    outcome = None
    for number, window in enumerate(record.windows[: settings.most_windows], 1):
        since = since.plus(window)
        found = losses(record.before, since, (settings.windows_before, number), settings.device_requests)
        outcome = test.look(found)
        for name, worse in zip(settings.measures, outcome.worse_RM[0], strict=True):
            if worse:
                limit = settings.limits[name].tolerated
                reason = f"{name} is worse than tolerated ({limit:g}), seen in window {number}"
                return RolloutDecision("halt", reason, name)
    if outcome is None:
        return RolloutDecision("wait", "no whole window yet")
    return _without_alarm(settings, record, outcome)


def needed(settings: RolloutSettings, plan: StagePlan, before: TelemetrySums) -> NDArray[np.bool_]:
    """Measures that have to be shown safe (M,). Agreement is among them if enough devices of the stage know answers."""
    labelled = int((before.labelled[0, plan.treated_N] >= settings.device_requests).sum())
    return np.array([name != "agreement" or labelled >= settings.least_devices for name in settings.measures])


def _without_alarm(settings: RolloutSettings, record: StageRecord, outcome: StageOutcome) -> RolloutDecision:
    by_bundle_N = record.bundle_N[record.plan.treated_N]
    running_N, requests, number = by_bundle_N > 0, int(by_bundle_N.sum()), len(record.windows)
    unsafe = needed(settings, record.plan, record.before) & ~outcome.safe_RM[0]
    missing = ""
    if number < settings.least_windows:
        missing = f"{number} of {settings.least_windows} windows"
    elif running_N.mean() < settings.least_running:
        missing = f"{running_N.sum()} of {len(running_N)} devices run the bundle"
    elif requests < settings.least_requests:
        missing = f"{requests} of {settings.least_requests} requests"
    elif unsafe.any():
        names = [name for name, open_ in zip(settings.measures, unsafe, strict=True) if open_]
        missing = f"not yet shown to be harmless: {', '.join(names)}"
    if not missing:
        return RolloutDecision("go on", f"harmless in all measures after {number} windows")
    if number >= settings.most_windows:
        return RolloutDecision("ask", f"{missing}, after the most windows ({settings.most_windows})")
    return RolloutDecision("wait", missing)
