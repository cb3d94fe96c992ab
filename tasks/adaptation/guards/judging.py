"""The decision whether adapted weights are kept. Legend: B batch, K classes, A labelled source images."""

from typing import NamedTuple

import torch

from adaptive_runtime.weights import AdaptedVerdict, AnchorGap, GuardSettings
from adaptive_runtime.weights.judging import FEWEST_LABELLED, judged
from tailor_ir import InputAlignment
from tasks.base.errors import UserError
from tasks.evaluation.adapted.subnet import AdaptiveSubnet


class Anchor(NamedTuple):
    """Labelled images like those of training, on which the source's accuracy is as usual.
    x_ACHW: normalised; y_A: labels.
    """

    x_ACHW: torch.Tensor
    y_A: torch.Tensor


class AnchorJudge:
    """Compares adapted weights with the source: on the anchor with labels, on held-back images without.

    On the anchor, both normalise by the anchor's own statistics so that only the weights are judged: collapsing entropy shows
    here first. The anchor also shows how much more overconfident the adapted weights are than the source's; the expected
    accuracy on held-back images is corrected by it (`adaptive_runtime.weights.judging.judged`).
    """

    def __init__(self, source: AdaptiveSubnet, anchor: Anchor, settings: GuardSettings) -> None:
        if len(anchor.y_A) < FEWEST_LABELLED:
            raise UserError(
                "labelled source images",
                f"{len(anchor.y_A)}",
                allowed=f"{FEWEST_LABELLED} or more",
                next_step="give more images",
            )
        self._anchor, self._settings = anchor, settings
        self._source = source
        with torch.no_grad():
            self._usual = self._gap(source(anchor.x_ACHW))
            self._usual_by_own = self._gap(self._by_own_statistics(source))

    def _by_own_statistics(self, subnet: AdaptiveSubnet) -> torch.Tensor:
        with subnet.by_batch(0.0, 1.0, keeps=False):
            return subnet(self._anchor.x_ACHW)

    def _gap(self, logits_AK: torch.Tensor) -> AnchorGap:
        return AnchorGap.of(logits_AK.numpy(), self._anchor.y_A.numpy())

    @torch.no_grad()
    def lost_by(self, alignment: InputAlignment) -> float:
        """Accuracy [percentage points] that the source loses on the anchor once its images are aligned."""
        aligned = self._gap(self._source.network(alignment(self._anchor.x_ACHW)))
        return 100 * (self._usual.accuracy - aligned.accuracy)

    @torch.no_grad()
    def verdict(self, adapted: AdaptiveSubnet, x_BCHW: torch.Tensor, source_BK: torch.Tensor) -> AdaptedVerdict:
        """x_BCHW: held-back images; source_BK: the source's logits for them, aligned or not."""
        by_own = self._gap(self._by_own_statistics(adapted))
        lost_points = 100 * (self._usual_by_own.accuracy - by_own.accuracy)
        return judged(
            source_BK.numpy(),
            self._usual.above,
            adapted(x_BCHW).numpy(),
            self._usual.above - (self._usual_by_own.above - by_own.above),
            lost_points if lost_points > self._settings.anchor_points else 0.0,
        )
