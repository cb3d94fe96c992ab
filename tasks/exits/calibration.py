"""Thresholds of exits that minimise the expected measured latency, with a promise about the accuracy loss.

The data are logits of all exits on holdout images, and the latency of each exit. Holdout images are split. One part
chooses the exit that gives the full answer (the most accurate exit), the confidence measure, and a path of thresholds
for it. The other part tests the path's steps in order, each by an exact p-value; the last step before the first failure
is taken: *Learn then Test* with fixed-sequence testing (Angelopoulos et al., 2021). The promise therefore holds with
the stated confidence for any network, any data and any number of images, as long as the images are independent draws
from the distribution in use. Exit rates, accuracies and costs are judged on images that were not used for choosing
thresholds.

The path begins with "no image leaves early"; latency falls from step to step. For a price μ of a lost answer [ms],
coordinate descent finds thresholds that minimise the mean of latency + μ · loss: with all other thresholds fixed, the
best threshold of an exit is a cut in the order of its confidences, at the maximum of the cumulative saving by leaving.
Prices fall from step to step; cuts only move further, so the path is nested: at a later step, an image leaves no later.
Between prices, cuts move in small steps.

Legend: N images, E exits up to the full answer, F of them before it, S steps of the path.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Integers, Values
from adaptive_runtime.exits import (
    MEASURES,
    ConfidenceMeasure,
    ExitPrediction,
    MeasureName,
    Promise,
    Thresholds,
    exit_rates,
    exits_taken,
    predict,
    trace,
)
from tasks.base.errors import UserError
from tasks.exits.latency import ExitTimes
from tasks.exits.policies import ClassLeaving, MeasuredExit, PolicyOutcome
from tasks.exits.settings import PromiseSettings, p_value

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


def _descend(costs_NE: Values, sorted_NF: Values, order_NF: Integers, cuts_F: Integers) -> Integers:
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


def _between(cuts_F: Integers, further_F: Integers, stride: int) -> list[Integers]:
    """Cuts on the way from `cuts_F` to `further_F`, each at most one stride from the one before."""
    steps = -(-int((further_F - cuts_F).max(initial=0)) // stride)
    return [cuts_F + (further_F - cuts_F) * step // steps for step in range(1, steps + 1)]


def _bars(cuts_SF: Integers, sorted_NF: Values) -> Values:
    """Thresholds half way between the confidences on both sides of each cut; infinite if no image leaves."""
    images, before = sorted_NF.shape
    last = np.take_along_axis(sorted_NF, np.maximum(cuts_SF - 1, 0), 0)
    first_out = np.take_along_axis(sorted_NF, np.minimum(cuts_SF, images - 1), 0)
    bars_SF = np.where(cuts_SF == 0, np.inf, last + (first_out - last) / 2)
    return np.minimum.accumulate(bars_SF, 0) if len(bars_SF) else np.empty((0, before))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeldOut:
    """Logits, labels and latencies for N images, E exits, K classes. UserError: shapes or values do not fit.

    latency_ms_E: measured from the input to each exit's answer. names: names of the exits for error messages; numbers if empty.
    """

    logits_NEK: NDArray[Any]
    labels_N: NDArray[np.int64]
    latency_ms_E: NDArray[np.float64]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape, labels_N, latency_ms_E = self.logits_NEK.shape, self.labels_N, self.latency_ms_E
        if len(shape) != 3 or not shape[0] or not shape[1]:
            raise UserError("exits", f"logits of shape {shape}", allowed="(images, exits, classes)")
        if shape[2] < 2:
            raise UserError("exits", f"{shape[2]} class of answers", allowed="classifiers with two or more")
        wanted = {"labels": (labels_N.shape, shape[:1]), "latency_ms": (latency_ms_E.shape, shape[1:2])}
        for name, (got, expected) in wanted.items():
            if got != expected:
                allowed = f"{expected}, as the logits of shape {shape}"
                raise UserError("exits", f"{name} of shape {got}", allowed=allowed)
        if labels_N.min() < 0 or labels_N.max() >= shape[2]:
            labels = f"labels from {labels_N.min()} to {labels_N.max()}"
            next_step = "take held-out images of the data that the network was trained for"
            raise UserError("exits", labels, allowed=f"0 to {shape[2] - 1}, the network's classes", next_step=next_step)
        if not np.isfinite(self.logits_NEK).all():
            raise UserError("exits", "logits that are no numbers", next_step="train the exits again")
        if not (np.isfinite(latency_ms_E) & (latency_ms_E > 0)).all():
            raise UserError("exits", f"latencies {latency_ms_E.tolist()}", allowed="positive numbers [ms]")

    def __len__(self) -> int:
        return len(self.labels_N)

    def rows(self, chosen: NDArray[np.int64]) -> "HeldOut":
        """The same data for some of the images."""
        return replace(self, logits_NEK=self.logits_NEK[chosen], labels_N=self.labels_N[chosen])

    @property
    def right_NE(self) -> NDArray[np.int64]:
        """1 if the exit's own answer is the label, else 0."""
        return (self.logits_NEK.argmax(2) == self.labels_N[:, None]).astype(np.int64)

    def traced(self, measure: ConfidenceMeasure, full_exit: int) -> tuple[NDArray[np.int64], Values]:
        """Answers and confidences (N, E) by a measure, up to the exit that gives the full answer."""
        answers_NE, confidences_NE = trace(measure, self.logits_NEK[:, : full_exit + 1])
        answers_NE[:, full_exit] = self.logits_NEK[:, full_exit].argmax(1)
        return answers_NE, confidences_NE

    def answers(self, measure: ConfidenceMeasure, full_exit: int) -> ExitAnswers:
        """Confidences by a measure, and losses against the full answer, up to the exit that gives it."""
        answers_NE, confidences_NE = self.traced(measure, full_exit)
        right_NE = (answers_NE == self.labels_N[:, None]).astype(np.int64)
        return ExitAnswers(confidences_NE, right_NE[:, full_exit:] - right_NE)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Leaving:
    """N images: the exits that they take, the answers there, their confidences, and whether they are right."""

    taken_N: NDArray[np.int64]
    answers_N: NDArray[np.int64]
    confidences_N: Values
    right_N: NDArray[np.bool_]
    full_right_N: NDArray[np.bool_]

    @classmethod
    def of(cls, thresholds: Thresholds, images: HeldOut) -> "Leaving":
        """The exits that images take by thresholds, decided as on a device."""
        answers_NE, confidences_NE = images.traced(MEASURES[thresholds.measure], thresholds.full_exit)
        taken_N = (confidences_NE >= np.array([*thresholds.bars, -np.inf])).argmax(1)
        rows = np.arange(len(images))
        answers_N = answers_NE[rows, taken_N]
        return cls(
            taken_N=taken_N,
            answers_N=answers_N,
            confidences_N=confidences_NE[rows, taken_N],
            right_N=answers_N == images.labels_N,
            full_right_N=answers_NE[:, thresholds.full_exit] == images.labels_N,
        )

    def rates(self, exits: int) -> Values:
        """Share of images that leave at each exit (E,)."""
        return exit_rates(self.taken_N, exits)

    def earliest(self, count: int) -> list[int]:
        """Images that leave first, by falling confidence."""
        return np.lexsort((-self.confidences_N, self.taken_N))[:count].tolist()

    def latest(self, count: int) -> list[int]:
        """Images that leave last, by rising confidence."""
        return np.lexsort((self.confidences_N, -self.taken_N))[:count].tolist()


def exits_left(
    exits: Sequence[MeasuredExit], thresholds: Thresholds, leaving: Leaving, times: ExitTimes
) -> tuple[MeasuredExit, ...]:
    """The exits of a SubNet with thresholds: rate, accuracy, and latency in the chain (`times`) at each exit."""
    bars = [*thresholds.thresholds, *[None] * (len(exits) - thresholds.full_exit)]
    columns = zip(exits, times.latency_ms_E.tolist(), bars, leaving.rates(len(exits)).tolist(), strict=True)
    rows = []
    for place, (row, until_ms, bar, share) in enumerate(columns):
        right = leaving.right_N[leaving.taken_N == place]
        accuracy = float(right.mean()) if len(right) else None
        changed = {"latency_ms": until_ms, "threshold": bar, "share": share, "share_accuracy": accuracy}
        rows.append(row.model_copy(update=changed))
    return tuple(rows)


def outcome_of(leaving: Leaving, times: ExitTimes, alone_mj_E: Values | None) -> PolicyOutcome:
    """The results of thresholds. alone_mj_E: energy of the SubNet up to each exit [mJ]; None: unknown."""
    latency_ms_E = times.latency_ms_E
    rates_E = leaving.rates(len(latency_ms_E))
    found = predict(rates_E, latency_ms_E, None if alone_mj_E is None else times.segments_mj(alone_mj_E))
    return PolicyOutcome(
        **{name: getattr(found, name) for name in ("expected_ms", "p50_ms", "p90_ms", "p99_ms", "expected_mj")},
        images=len(leaving.taken_N),
        accuracy=float(leaving.right_N.mean()),
        full_accuracy=float(leaving.full_right_N.mean()),
        whole_ms=times.whole_ms,
        saved=1 - found.expected_ms / times.whole_ms,
        whole_mj=None if alone_mj_E is None else float(alone_mj_E[-1]),
    )


def classes_leaving(
    leaving: Leaving, labels_N: NDArray[np.int64], names: Sequence[str], full_exit: int, latency_ms_E: Values
) -> tuple[ClassLeaving, ...]:
    """The classes with their share of images that leave before the full answer, by rising expected latency."""
    rows = []
    for label, name in enumerate(names):
        taken = leaving.taken_N[labels_N == label]
        if len(taken):
            early, expected_ms = float((taken < full_exit).mean()), float(latency_ms_E[taken].mean())
            rows.append(ClassLeaving(name=name, images=len(taken), early=early, expected_ms=expected_ms))
    return tuple(sorted(rows, key=lambda row: row.expected_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedExits:
    """Thresholds and their results on the testing images.

    accuracy, full_accuracy: with and without early exits, on the testing images. by_measure: expected latency [ms] by each
    confidence measure on the choosing images.
    """

    thresholds: Thresholds
    prediction: ExitPrediction
    accuracy: float
    full_accuracy: float
    full_ms: float
    by_measure: dict[MeasureName, float]

    @property
    def saved(self) -> float:
        """Saved share of the full answer's latency."""
        return 1 - self.prediction.expected_ms / self.full_ms


def calibrate(held_out: HeldOut, settings: PromiseSettings, rng: np.random.Generator) -> CalibratedExits:
    """Thresholds with a promise. UserError: too few images for the promise, or an exit that always gives the same answer."""
    answers_NE = held_out.logits_NEK.argmax(2)
    always_E = np.flatnonzero((answers_NE == answers_NE[0]).all(0))
    if len(np.unique(held_out.labels_N)) > 1 and len(always_E):
        place = int(always_E[0])
        where = f"exit {held_out.names[place] if held_out.names else place}"
        got = f"answers class {answers_NE[0, place]} to all {len(held_out)} images"
        raise UserError(where, got, next_step="train it longer, or leave it out")
    needed = settings.images_needed()
    if len(held_out) < needed:
        promised = f"at most {settings.epsilon:.2%} of accuracy lost, with {settings.confidence:.1%} confidence"
        raise UserError(
            "exits",
            f"{len(held_out)} held-out images are too few to promise {promised}",
            allowed=f"{needed} or more",
            next_step="hold out more images, or take a larger epsilon or a smaller confidence",
        )
    order = rng.permutation(len(held_out))
    count = settings.choosing(len(held_out))
    choosing, testing = held_out.rows(order[:count]), held_out.rows(order[count:])
    full_exit = int(choosing.right_NE.mean(0).argmax())
    latency_ms_E = held_out.latency_ms_E[: full_exit + 1]
    traced = {name: choosing.answers(MEASURES[name], full_exit) for name in settings.measures}
    halves = np.array_split(rng.permutation(count), 2)
    by_measure = {
        name: _expected_ms(answers, latency_ms_E, settings, len(testing), halves) for name, answers in traced.items()
    }
    measure = min(by_measure, key=by_measure.__getitem__)
    path_SF = find_path(traced[measure], latency_ms_E)
    tested = testing.answers(MEASURES[measure], full_exit)
    bars_F = path_SF[furthest(path_SF, tested, settings, len(testing))]
    return _result(measure, bars_F, tested, testing, settings, by_measure)


def furthest(path_SF: Values, answers: ExitAnswers, settings: PromiseSettings, images: int) -> int:
    """The last step of a path before the first failed test. Losses are scaled to a number of `images` of the same kind."""
    for step, bars_F in enumerate(path_SF):
        _, losses_N = answers.leave(bars_F)
        lost, gained = (round((losses_N == sign).sum() * images / len(answers)) for sign in (1, -1))
        if p_value(lost, gained, images, settings.epsilon, settings.level) > settings.level:
            return max(0, step - 1)
    return len(path_SF) - 1


def _expected_ms(
    answers: ExitAnswers, latency_ms_E: Values, settings: PromiseSettings, images: int, halves: list[NDArray[np.int64]]
) -> float:
    """Expected latency [ms] by a measure, cross-validated over two halves.

    The path of one half is tested on the other half, with counts scaled to the number of testing images.
    """
    found = []
    for finding, judging in (halves, halves[::-1]):
        path_SF = find_path(answers.rows(finding), latency_ms_E)
        judged = answers.rows(judging)
        taken_N, _ = judged.leave(path_SF[furthest(path_SF, judged, settings, images)])
        found.append(latency_ms_E[taken_N].mean())
    return float(np.mean(found))


def _result(
    measure: MeasureName,
    bars_F: Values,
    tested: ExitAnswers,
    testing: HeldOut,
    settings: PromiseSettings,
    by_measure: dict[MeasureName, float],
) -> CalibratedExits:
    full_exit = len(bars_F)
    taken_N, losses_N = tested.leave(bars_F)
    lost, gained = int((losses_N == 1).sum()), int((losses_N == -1).sum())
    promise = Promise(
        epsilon=settings.epsilon,
        confidence=settings.confidence,
        images=len(tested),
        lost=lost,
        gained=gained,
        p_value=p_value(lost, gained, len(tested), settings.epsilon, settings.level),
    )
    bars = tuple(float(bar) if np.isfinite(bar) else None for bar in bars_F)
    latency_ms_E = testing.latency_ms_E[: full_exit + 1]
    full_accuracy = float(testing.right_NE[:, full_exit].mean())
    return CalibratedExits(
        thresholds=Thresholds(measure=measure, thresholds=bars, promise=promise),
        prediction=predict(exit_rates(taken_N, full_exit + 1), latency_ms_E),
        accuracy=full_accuracy - float(losses_N.mean()),
        full_accuracy=full_accuracy,
        full_ms=float(latency_ms_E[-1]),
        by_measure=by_measure,
    )
