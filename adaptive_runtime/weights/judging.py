"""The verdict whether an adaptation is kept, from answers alone.

Legend: B holdout images, A labelled source images, K classes.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.exits.measures import TopProbability

MOST_ONE_SIDED = 0.25
"""Allowed increase of the largest class share from the source's answers to the adapted ones."""
FEWEST_LABELLED = 32
"""Minimum number of labelled source images for a judge."""
Logits = NDArray[np.float32]


class AdaptedVerdict(NamedTuple):
    """kept: whether the adapted network is kept; reason: for people. Expected accuracies on holdout images, 0 to 1."""

    kept: bool
    reason: str
    expected_of_source: float
    expected_of_adapted: float


class AnchorGap(NamedTuple):
    """Accuracy on labelled source images, and its excess over the mean confidence; in [0, 1]."""

    accuracy: float
    above: float

    @classmethod
    def of(cls, logits_AK: Logits, label_A: NDArray[np.int64]) -> Self:
        """From logits and labels."""
        accuracy = float((logits_AK.argmax(1) == label_A).mean())
        return cls(accuracy, accuracy - confidence(logits_AK))


def judged(
    source_BK: Logits, source_above: float, adapted_BK: Logits, adapted_above: float, lost_points: float = 0.0
) -> AdaptedVerdict:
    """The verdict from answers for holdout images.

    Their expected accuracy is the mean confidence plus the excess of accuracy over confidence on labelled images,
    `source_above` and `adapted_above` (difference of confidences; Guillory et al., ICCV 2021, §3). Adapted answers may not be
    much more one-sided. lost_points: lost accuracy on source images beyond the allowed loss; 0: within the allowed loss.
    """
    of_source, of_adapted = confidence(source_BK) + source_above, confidence(adapted_BK) + adapted_above
    wider = _largest_share(adapted_BK) - _largest_share(source_BK)
    if lost_points > 0:
        reason = f"adapted weights lose {lost_points:.1f} points on source images"
    elif wider > MOST_ONE_SIDED:
        reason = f"one class has {100 * wider:.0f} points more of the answers than of the source's"
    elif not of_adapted >= of_source:
        reason = f"fewer right answers are expected, {_percent(of_adapted)} instead of {_percent(of_source)}"
    else:
        reason = f"{_percent(of_adapted)} right answers are expected, {_percent(of_source)} of the source"
        return AdaptedVerdict(True, reason, of_source, of_adapted)
    return AdaptedVerdict(False, reason, of_source, of_adapted)


def _percent(expected: float) -> str:
    """For people; clipped, since confidence plus the excess of accuracy may exceed 100 % or fall below 0 %."""
    return f"{100 * min(max(expected, 0.0), 1.0):.0f} %"


def confidence(logits_BK: Logits) -> float:
    """Mean probability of the answers."""
    return float(TopProbability().step(logits_BK, ())[1].mean())


def _largest_share(logits_BK: Logits) -> float:
    return float(np.bincount(logits_BK.argmax(1)).max() / len(logits_BK))
