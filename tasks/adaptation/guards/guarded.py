"""A SubNet that adapts only while images drift, and only as long as it is better for it. Legend: B batch, K classes."""

import copy
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from adaptive_runtime.adapting_weights import AdaptedVerdict, DriftDetector, DriftGuard, GuardEvent, GuardSettings
from adaptive_runtime.adapting_weights.guard import Array
from tasks.adaptation.guards.judging import Anchor, AnchorJudge
from tasks.adaptation.guards.profile import SourceProfile
from tasks.adaptation.methods import AdaptationMethod, make_method
from tasks.adaptation.settings import MethodSettings
from tasks.adaptation.subnet import AdaptiveSubnet

GUARDED_METHOD = MethodSettings(method="roid", prior_images=16.0, newest_share=0.3)
"""The method that is guarded, unless another one is asked for."""
FEWEST_IMAGES = 2
"""Of a step."""


class GuardedAnswer(NamedTuple):
    """logits_BK, and whose they are."""

    logits_BK: torch.Tensor
    by: Literal["source", "adapted"]


class _MethodWeights:
    """A copy of the source that a method adapts, as `DriftGuard` asks for it."""

    fewest = FEWEST_IMAGES

    def __init__(self, method: AdaptationMethod, judge: AnchorJudge) -> None:
        self.method, self._judge = method, judge

    @property
    def steps(self) -> int:
        return self.method.subnet.rule.steps

    def adapt(self, x_BCHW: Array) -> None:
        self.method.adapt(torch.from_numpy(x_BCHW))

    def verdict(self, x_BCHW: Array, source_BK: Array) -> AdaptedVerdict:
        return self._judge.verdict(self.method.subnet, torch.from_numpy(x_BCHW), torch.from_numpy(source_BK))

    def reset(self) -> None:
        self.method.reset()


class GuardedSubnet:
    """Answers with the source until drift is detected, then with an adapted copy while judgements keep it.

    `DriftGuard` says when the copy adapts, to which images, and whether it answers; held-back images and labelled source images
    judge it (`AnchorJudge`). Answers of the copy normalise by statistics that are kept, so one image is enough.
    """

    def __init__(
        self,
        source: AdaptiveSubnet,
        anchor: Anchor,
        profile_batches: Sequence[torch.Tensor],
        settings: GuardSettings | None = None,
        method: MethodSettings = GUARDED_METHOD,
    ) -> None:
        """anchor, profile_batches: images like those of training, which the network has not been trained on."""
        self.settings = settings or GuardSettings()
        self.source = source
        self.profile = SourceProfile(source, profile_batches)
        judge = AnchorJudge(source, anchor, self.settings)
        self._weights = _MethodWeights(make_method(copy.deepcopy(source), method, profile_batches), judge)
        self._guard = DriftGuard(self._weights, self.profile.calibration_ND, self.settings)

    @property
    def adapted(self) -> AdaptiveSubnet:
        """The copy that adapts; bit-equal to the source while nothing drifts."""
        return self._weights.method.subnet

    @property
    def drifting(self) -> bool:
        """Whether the last alarm still counts."""
        return self._guard.drifting

    @property
    def detector(self) -> DriftDetector:
        """The test of images against those of calibration."""
        return self._guard.detector

    @property
    def events(self) -> deque[GuardEvent]:
        """What happened when, and why; the latest ones."""
        return self._guard.events

    @property
    def images(self) -> int:
        """Images so far."""
        return self._guard.images

    def answer(self, x_BCHW: torch.Tensor) -> GuardedAnswer:
        """Answers for a batch; the copy adapts to it afterwards, if images drift."""
        source_BK, score_BD = self.profile.look(x_BCHW)
        with torch.no_grad():
            adapted_BK = self.adapted(x_BCHW) if self.drifting else source_BK
        answer = GuardedAnswer(adapted_BK, "adapted") if self._guard.kept else GuardedAnswer(source_BK, "source")
        self._guard.observe(x_BCHW.numpy(), score_BD, source_BK.numpy(), adapted_BK.numpy())
        return answer
