"""Guards of a SubNet that adapts: drift detection, the source's view of images, verdicts that undo adaptation.

A SubNet adapts only while images drift, and only as long as this improves it. The source's view has its answers, and
how unusual features and confidence are. The parts without torch are in `adaptive_runtime.weights`, which the device
uses, too.

Legend: B batch, C channels of a layer, S the other axes of a layer's input, K classes, A labelled source images, D
statistics of an image, N images.
"""

import copy
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.weights import (
    AdaptedVerdict,
    AlignedView,
    AnchorGap,
    DriftDetector,
    DriftGuard,
    GuardEvent,
    GuardSettings,
    UsualFeatures,
)
from adaptive_runtime.weights.guard import FEWEST_LABELLED, judged
from adaptive_runtime.weights.statistics import SMALLEST_DEVIATION
from tailor_ir import InputAlignment
from tasks.adaptation.methods import AdaptationMethod, make_method
from tasks.adaptation.settings import GUARDED_METHOD, MethodSettings
from tasks.base.errors import UserError
from tasks.evaluation.adapted import AdaptiveSubnet


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
    accuracy on held-back images is corrected by it (`adaptive_runtime.weights.guard.judged`).
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


FEWEST = 32
"""Source images that a profile needs at least."""


class SourceProfile:
    """The source's usual features and confidence, from images like those of training on which it was not trained.

    Features are the mean and the logarithm of the deviation of each channel at the input of each normalisation layer; an
    image's statistics are those of `UsualFeatures`. One half of the images fits `UsualFeatures`; the other half is
    `calibration_ND`.
    """

    def __init__(self, source: AdaptiveSubnet, batches: Sequence[torch.Tensor]) -> None:
        """source: in the source's state, which stays unchanged. batches: (B, C, H, W), images in random order."""
        count = sum(map(len, batches))
        if count < FEWEST:
            raise UserError("source images", f"{count}", allowed=f"{FEWEST} or more", next_step="give more images")
        self._source = source
        seen = [self._look(x_BCHW) for x_BCHW in batches]
        features = [torch.cat(parts) for parts in zip(*(layers for _, layers in seen), strict=True)]
        half = count // 2
        self._usual = UsualFeatures.of([part[:half].numpy() for part in features])
        scores = [self._scores(logits_BK, layers) for logits_BK, layers in seen]
        self.calibration_ND = np.concatenate(scores)[half:]

    def look(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.float64]]:
        """The source's logits (B, K) and the statistics (B, D)."""
        logits_BK, layers = self._look(x_BCHW)
        return logits_BK, self._scores(logits_BK, layers)

    @torch.no_grad()
    def _look(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        found: list[torch.Tensor] = []
        hooks = [
            layer.register_forward_pre_hook(
                lambda module, inputs: found.append(_features(module, inputs[0], len(x_BCHW)))
            )
            for layer in self._source.norms.values()
        ]
        try:
            return self._source(x_BCHW), found
        finally:
            for hook in hooks:
                hook.remove()

    def _scores(self, logits_BK: torch.Tensor, layers: list[torch.Tensor]) -> NDArray[np.float64]:
        return self._usual.scores([layer.numpy() for layer in layers], logits_BK.numpy())


def _features(layer: nn.Module, x: torch.Tensor, images: int) -> torch.Tensor:
    """(B, F) of a layer's input (B, C, *S), or (B, *S, C) of LayerNorm, or (B·tokens, C)."""
    channels_last = isinstance(layer, nn.LayerNorm)
    if x.dim() == 2 and len(x) > images:
        x, channels_last = x.reshape(images, -1, x.shape[1]), True
    x_BCS = (x.movedim(-1, 1) if channels_last else x).flatten(2)
    if x_BCS.dim() < 3 or x_BCS.shape[2] == 1:
        return x_BCS.flatten(1)
    deviation, mean = torch.std_mean(x_BCS, 2)
    return torch.cat([mean, deviation.clamp(min=SMALLEST_DEVIATION).log()], 1)


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
