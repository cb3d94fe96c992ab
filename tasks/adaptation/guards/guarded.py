"""A SubNet that adapts only while images drift, and only as long as this improves it. Legend: B batch, K classes."""

import copy
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_runtime.weights import AdaptedVerdict, AlignedView, DriftDetector, DriftGuard, GuardEvent, GuardSettings
from adaptive_runtime.weights.guard import Array
from tasks.adaptation.guards.judging import Anchor, AnchorJudge
from tasks.adaptation.guards.profile import SourceProfile
from tasks.adaptation.methods import AdaptationMethod, make_method
from tasks.adaptation.settings import GUARDED_METHOD, MethodSettings
from tasks.evaluation.adapted.subnet import AdaptiveSubnet

FEWEST_IMAGES = 2
"""Images that one step needs at least."""


class GuardedAnswer(NamedTuple):
    """Logits, and the weights that computed them; if drift ended within the batch, `by` holds for its last image."""

    logits_BK: torch.Tensor
    by: Literal["source", "aligned", "adapted"]


class _MethodWeights:
    """A copy of the source that a method adapts, with the interface that `DriftGuard` expects."""

    fewest = FEWEST_IMAGES

    def __init__(self, method: AdaptationMethod, judge: AnchorJudge) -> None:
        self.method, self._judge = method, judge
        self.alignment = method.subnet.alignment

    @property
    def steps(self) -> int:
        return self.method.subnet.rule.steps

    def answers(self, x_BCHW: Array) -> Array:
        found: Array = self.method.subnet(torch.from_numpy(x_BCHW)).numpy()
        return found

    @torch.enable_grad()
    def adapt(self, x_BCHW: Array) -> None:
        self.method.adapt(torch.from_numpy(x_BCHW))

    def verdict(self, x_BCHW: Array, source_BK: Array) -> AdaptedVerdict:
        return self._judge.verdict(self.method.subnet, torch.from_numpy(x_BCHW), torch.from_numpy(source_BK))

    def reset(self, *, aligns: bool) -> None:
        self.method.reset()
        self.method.subnet.alignment = self.alignment if aligns else None


class GuardedSubnet:
    """Answers with the source until drift is detected, then with the best of three: source, aligned source, adapted copy.

    `DriftGuard` decides when images are aligned (`InputAlignment`), when and to which images the copy adapts, and whether it
    answers. Held-back images and labelled source images judge it against the source; both get the same images (`AnchorJudge`).
    The copy normalises by its running statistics, so one image is enough.
    """

    def __init__(
        self,
        source: AdaptiveSubnet,
        anchor: Anchor,
        profile_batches: Sequence[torch.Tensor],
        settings: GuardSettings | None = None,
        method: MethodSettings = GUARDED_METHOD,
    ) -> None:
        """anchor, profile_batches: images like those of training on which the network was not trained."""
        self.settings = settings or GuardSettings()
        self.source = source
        self.profile = SourceProfile(source, profile_batches)
        judge = AnchorJudge(source, anchor, self.settings)
        self._weights = _MethodWeights(make_method(copy.deepcopy(source), method, profile_batches), judge)
        alignment = self._weights.alignment
        view = None if alignment is None else AlignedView(self._look_aligned, lambda: judge.lost_by(alignment))
        self._guard = DriftGuard(self._weights, self.profile.calibration_ND, self.settings, view)

    @property
    def adapted(self) -> AdaptiveSubnet:
        """The copy that adapts; it equals the source while nothing drifts."""
        return self._weights.method.subnet

    @property
    def answering(self) -> AdaptiveSubnet:
        """The SubNet that answers now: the copy, the source with aligned images, or the source itself."""
        if self._guard.kept:
            return self.adapted
        if not self._guard.aligns:
            return self.source
        aligned = copy.deepcopy(self.source)
        aligned.alignment = self._weights.alignment
        return aligned

    @property
    def drifting(self) -> bool:
        """Whether the last alarm still counts."""
        return self._guard.drifting

    @property
    def detector(self) -> DriftDetector:
        """The test that compares images with the calibration images."""
        return self._guard.detector

    @property
    def events(self) -> deque[GuardEvent]:
        """The latest events: the image at which each happened, and why."""
        return self._guard.events

    @property
    def images(self) -> int:
        """Number of images so far."""
        return self._guard.images

    @torch.no_grad()
    def answer(self, x_BCHW: torch.Tensor) -> GuardedAnswer:
        """Answers for a batch. While images drift, the copy first adapts to the batch and is judged.
        If drift ends within the batch, the images before its end are answered like the previous batch.
        """
        source_BK, score_BD = self.profile.look(x_BCHW)
        before = self._now(x_BCHW, source_BK) if self.drifting else GuardedAnswer(source_BK, "source")
        ended = self._guard.observe(x_BCHW.numpy(), score_BD, source_BK.numpy())
        now = self._now(x_BCHW, source_BK)
        if not ended:
            return now
        return GuardedAnswer(torch.cat([before.logits_BK[:ended], now.logits_BK[ended:]]), now.by)

    def _now(self, x_BCHW: torch.Tensor, source_BK: torch.Tensor) -> GuardedAnswer:
        """The answer of the SubNet that answers now."""
        if self._guard.kept:
            return GuardedAnswer(self.adapted(x_BCHW), "adapted")
        if self._guard.aligns and self._weights.alignment is not None:
            return GuardedAnswer(self.source(self._weights.alignment(x_BCHW)), "aligned")
        return GuardedAnswer(source_BK, "source")

    def _look_aligned(self, x_BCHW: Array) -> tuple[Array, NDArray[np.float64]]:
        """The source's logits and the statistics of aligned images."""
        assert self._weights.alignment is not None
        logits_BK, score_BD = self.profile.look(self._weights.alignment(torch.from_numpy(x_BCHW)))
        return logits_BK.numpy(), score_BD
