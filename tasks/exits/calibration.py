"""Thresholds that minimise the expected measured latency, with a promise about the accuracy loss.

Holdout images are split. One part chooses the exit that gives the full answer (the most accurate exit), the confidence measure,
and a path of thresholds for it. The other part tests the path's steps in order, each by an exact p-value; the last step before
the first failure is taken: *Learn then Test* with fixed-sequence testing (Angelopoulos et al., 2021). The promise therefore
holds with the stated confidence for any network, any data and any number of images, as long as the images are independent draws
from the distribution in use.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.exits import (
    MEASURES,
    ExitPrediction,
    MeasureName,
    Promise,
    Thresholds,
    exit_rates,
    predict,
)
from tasks.base.errors import UserError
from tasks.exits.bounds import p_value
from tasks.exits.held_out import HeldOut, check_exits
from tasks.exits.path import ExitAnswers, Values, find_path
from tasks.exits.settings import PromiseSettings


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
    check_exits(held_out)
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
