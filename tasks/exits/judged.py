"""Thresholds judged on images that were not used for choosing them: exit rates, accuracies and costs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.exits import MEASURES, Thresholds, exit_rates, predict, trace
from tasks.exits.held_out import HeldOut
from tasks.exits.policies import ClassLeaving, MeasuredExit, PolicyOutcome
from tasks.exits.timing import ExitTimes, Values


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
        full = thresholds.full_exit
        logits_NEK = images.logits_NEK[:, : full + 1]
        answers_NE, confidences_NE = trace(MEASURES[thresholds.measure], logits_NEK)
        answers_NE[:, full] = logits_NEK[:, full].argmax(1)
        leaves_NE = confidences_NE >= np.array([*thresholds.bars, -np.inf])
        taken_N = leaves_NE.argmax(1)
        rows = np.arange(len(images))
        answers_N = answers_NE[rows, taken_N]
        return cls(
            taken_N=taken_N,
            answers_N=answers_N,
            confidences_N=confidences_NE[rows, taken_N],
            right_N=answers_N == images.labels_N,
            full_right_N=answers_NE[:, full] == images.labels_N,
        )

    def rates(self, exits: int) -> Values:
        """Share of images that leave at each exit (E,)."""
        return exit_rates(self.taken_N, exits)

    def accuracy_at(self, exits: int) -> list[float | None]:
        """Accuracy of the images that leave at each exit; None if none leaves there."""
        there = [self.right_N[self.taken_N == place] for place in range(exits)]
        return [float(right.mean()) if len(right) else None for right in there]

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
    rates, right = leaving.rates(len(exits)).tolist(), leaving.accuracy_at(len(exits))
    bars = [*thresholds.thresholds, *[None] * (len(exits) - thresholds.full_exit)]
    columns = zip(exits, times.latency_ms_E.tolist(), bars, rates, right, strict=True)
    return tuple(
        row.model_copy(update={"latency_ms": until_ms, "threshold": bar, "share": share, "share_accuracy": accuracy})
        for row, until_ms, bar, share, accuracy in columns
    )


def outcome_of(leaving: Leaving, times: ExitTimes, alone_mj_E: Values | None) -> PolicyOutcome:
    """The results of thresholds. alone_mj_E: energy of the SubNet up to each exit [mJ]; None: unknown."""
    latency_ms_E = times.latency_ms_E
    rates_E = leaving.rates(len(latency_ms_E))
    found = predict(rates_E, latency_ms_E, None if alone_mj_E is None else times.segments_mj(alone_mj_E))
    return PolicyOutcome(
        images=len(leaving.taken_N),
        accuracy=float(leaving.right_N.mean()),
        full_accuracy=float(leaving.full_right_N.mean()),
        expected_ms=found.expected_ms,
        p50_ms=found.p50_ms,
        p90_ms=found.p90_ms,
        p99_ms=found.p99_ms,
        whole_ms=times.whole_ms,
        saved=1 - found.expected_ms / times.whole_ms,
        expected_mj=found.expected_mj,
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
