"""The judgement whether what a SubNet adapted is kept. Legend: B batch, K classes, A labelled source images."""

from typing import NamedTuple

import torch

from tasks.adaptation.settings import GuardSettings
from tasks.adaptation.subnet import AdaptiveSubnet
from tasks.errors import UserError

MOST_ONE_SIDED = 0.25
"""By how much the largest class share of adapted answers may exceed that of the source's answers."""
FEWEST = 32
"""Labelled source images that a judge needs."""


class Anchor(NamedTuple):
    """Labelled images like those of training, on which the source is right so often as it usually is.

    x_ACHW: normalised; y_A: labels.
    """

    x_ACHW: torch.Tensor
    y_A: torch.Tensor


class AdaptedVerdict(NamedTuple):
    """kept: whether the adapted SubNet goes on; reason: why, for people. Expected accuracies are shares of held-back images."""

    kept: bool
    reason: str
    expected_of_source: float
    expected_of_adapted: float


class _Gap(NamedTuple):
    """On the anchor: accuracy, and by how much it is above the mean confidence; in [0, 1]."""

    accuracy: float
    above: float


class AnchorJudge:
    """Compares adapted weights with the source: on the anchor with labels, on held-back images without.

    On the anchor, both normalise by the anchor's own statistics, so that weights alone are judged: entropy that collapses
    breaks them here first. On held-back images accuracy is expected to be the mean confidence plus what accuracy is above
    confidence on the anchor (difference of confidences; Guillory et al., ICCV 2021, §3). By how much adapted weights are more
    overconfident than the source's shows on the anchor, too, and is taken off. Adapted answers may not be much more one-sided
    than the source's, either.
    """

    def __init__(self, source: AdaptiveSubnet, anchor: Anchor, settings: GuardSettings) -> None:
        if len(anchor.y_A) < FEWEST:
            raise UserError(
                "labelled source images",
                f"{len(anchor.y_A)}",
                allowed=f"{FEWEST} or more",
                next_step="give more images",
            )
        self._anchor, self._settings = anchor, settings
        with torch.no_grad():
            self._usual = self._gap(source(anchor.x_ACHW))
            self._usual_by_own = self._gap(self._by_own_statistics(source))

    def _by_own_statistics(self, subnet: AdaptiveSubnet) -> torch.Tensor:
        with subnet.by_batch(0.0, 1.0, keeps=False):
            return subnet(self._anchor.x_ACHW)

    def _gap(self, logits_AK: torch.Tensor) -> _Gap:
        accuracy = (logits_AK.argmax(1) == self._anchor.y_A).double().mean().item()
        return _Gap(accuracy, accuracy - _confidence(logits_AK))

    @torch.no_grad()
    def verdict(self, adapted: AdaptiveSubnet, x_BCHW: torch.Tensor, source_BK: torch.Tensor) -> AdaptedVerdict:
        """x_BCHW: held-back images; source_BK: the source's logits for them, as they are or aligned."""
        by_own = self._gap(self._by_own_statistics(adapted))
        adapted_BK = adapted(x_BCHW)
        of_source = _confidence(source_BK) + self._usual.above
        of_adapted = _confidence(adapted_BK) + self._usual.above + by_own.above - self._usual_by_own.above
        lost_points = 100 * (self._usual_by_own.accuracy - by_own.accuracy)
        wider = _largest_share(adapted_BK) - _largest_share(source_BK)
        if lost_points > self._settings.anchor_points:
            reason = f"adapted weights lose {lost_points:.1f} points on source images"
        elif wider > MOST_ONE_SIDED:
            reason = f"one class has {100 * wider:.0f} points more of the answers than of the source's"
        elif of_adapted < of_source:
            reason = f"fewer right answers are expected, {100 * of_adapted:.0f} % instead of {100 * of_source:.0f} %"
        else:
            reason = f"{100 * of_adapted:.0f} % right answers are expected, {100 * of_source:.0f} % of the source"
            return AdaptedVerdict(True, reason, of_source, of_adapted)
        return AdaptedVerdict(False, reason, of_source, of_adapted)


def _confidence(logits_BK: torch.Tensor) -> float:
    """Mean probability of the answers."""
    return logits_BK.softmax(1).amax(1).double().mean().item()


def _largest_share(logits_BK: torch.Tensor) -> float:
    return torch.bincount(logits_BK.argmax(1)).max().item() / len(logits_BK)
