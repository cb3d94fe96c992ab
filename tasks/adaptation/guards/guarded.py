"""A SubNet that adapts only while images drift, and only as long as it is better for it. Legend: B batch, K classes."""

import copy
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.adaptation.guards.detection import DriftDetector
from tasks.adaptation.guards.judging import Anchor, AnchorJudge
from tasks.adaptation.guards.memory import BalancedMemory
from tasks.adaptation.guards.profile import SourceProfile
from tasks.adaptation.losses import entropies, is_reliable
from tasks.adaptation.methods import make_method
from tasks.adaptation.settings import GUARDED_METHOD, GuardSettings, MethodSettings
from tasks.adaptation.subnet import AdaptiveSubnet

MOST_EVENTS = 1000
FEWEST_QUIET, TIMES_QUIET, ALARMS = 32, 4, 8
"""Drift is over without an alarm for so many images at least, and for so many times the longest time between the last ones."""
MORE_USUAL = 0.9
"""Images are aligned where their features are then at most so many times as unusual; until they are no better than without."""
GuardEventKind = Literal["drift", "aligned", "unaligned", "kept", "undone", "over"]
FEWEST_STEPS = 2
"""Steps before the first verdict: one step knows few images."""


class GuardEvent(NamedTuple):
    """What happened after so many images.

    drift: an alarm; over: none any more; aligned, unaligned: whether images are aligned; kept, undone: verdicts.
    """

    image: int
    kind: GuardEventKind
    reason: str


class GuardedAnswer(NamedTuple):
    """logits_BK, and whose they are; by the last image, where drift was over within the batch."""

    logits_BK: torch.Tensor
    by: Literal["source", "aligned", "adapted"]


class _Seen(NamedTuple):
    """An image, and how unusual its features are."""

    x_CHW: torch.Tensor
    unusual: float


class GuardedSubnet:
    """Answers with the source until drift is detected, then with the best of three: source, aligned source, adapted copy.

    After an alarm images are aligned (`InputAlignment`) while that makes their features more usual; the images just before
    the alarm tell it first. A copy adapts to recent, different, sure images, balanced by class, in steps that do not depend
    on the size of batches. Some images are held back; they and labelled source images judge the copy against the source, with
    the images as both get them (`AnchorJudge`). Until the first verdict, and after one against the copy, the source answers;
    the copy then begins anew. Alarms go on while images drift. Drift is over when none came for four times the longest time
    between the last ones: 32 images at least, `quiet_images` at most. The copy normalises by statistics that are kept, so one
    image is enough.
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
        self._judge = AnchorJudge(source, anchor, self.settings)
        self.detector = DriftDetector(self.profile.calibration_ND, self.settings.false_alarms, self.settings.seed)
        self._method = make_method(copy.deepcopy(source), method, profile_batches)
        self._alignment = self.adapted.alignment
        self._memory = BalancedMemory(
            self.settings.memory_images, self.settings.oldest_images, self.settings.redundancy
        )
        self._held: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=self.settings.held_back_images)
        self._recent: deque[_Seen] = deque(maxlen=self.settings.judged_from)
        self._unusual: deque[tuple[float, float]] = deque(maxlen=self.settings.held_back_images)
        self.events: deque[GuardEvent] = deque(maxlen=MOST_EVENTS)
        self.images = 0
        self._last_alarm: int | None = None
        self._intervals: deque[int] = deque(maxlen=ALARMS)
        self._aligns = self._kept = False
        self._drift_from = 0
        self._begin()

    @property
    def adapted(self) -> AdaptiveSubnet:
        """The copy that adapts; it has the source's tensors while nothing drifts."""
        return self._method.subnet

    @property
    def answering(self) -> AdaptiveSubnet:
        """What answers now: the copy, the source with aligned images, or the source itself."""
        if self._kept:
            return self.adapted
        if not self._aligns:
            return self.source
        aligned = copy.deepcopy(self.source)
        aligned.alignment = self._alignment
        return aligned

    @property
    def drifting(self) -> bool:
        """Whether the last alarm still counts."""
        return self._last_alarm is not None

    def _begin(self) -> None:
        """The copy is the source, and knows no image."""
        self._method.reset()
        self.adapted.alignment = self._alignment if self._aligns else None
        self._memory.clear()
        self._held.clear()
        self._kept = False
        self._new = self._unjudged = 0

    def answer(self, x_BCHW: torch.Tensor) -> GuardedAnswer:
        """Answers for a batch. Where images drift, in this batch or before, the copy adapts to it and is judged first.

        Images of the batch before drift was over are answered as those of the batch before.
        """
        source_BK, score_BD = self.profile.look(x_BCHW)
        before = self._now(x_BCHW, source_BK) if self.drifting else GuardedAnswer(source_BK, "source")
        first, ended = self.images, 0
        for row, score_D in enumerate(score_BD):
            self._recent.append(_Seen(x_BCHW[row], float(score_D[0])))
            if self._watch(first + row, self.detector.update(score_D)):
                ended = row + 1
        self.images += len(x_BCHW)
        if self.drifting:
            base_BK = self._align(x_BCHW, source_BK, score_BD)
            self._learn(x_BCHW, base_BK, first)
        now = self._now(x_BCHW, source_BK)
        if not ended:
            return now
        return GuardedAnswer(torch.cat([before.logits_BK[:ended], now.logits_BK[ended:]]), now.by)

    @torch.no_grad()
    def _now(self, x_BCHW: torch.Tensor, source_BK: torch.Tensor) -> GuardedAnswer:
        """By what answers now."""
        if self._kept:
            return GuardedAnswer(self.adapted(x_BCHW), "adapted")
        if self._aligns and self._alignment is not None:
            return GuardedAnswer(self.source(self._alignment(x_BCHW)), "aligned")
        return GuardedAnswer(source_BK, "source")

    def _align(self, x_BCHW: torch.Tensor, source_BK: torch.Tensor, score_BD: NDArray[np.float64]) -> torch.Tensor:
        """Whether images are aligned from now on; the source's logits for the batch as the copy gets it."""
        if self._alignment is None:
            return source_BK
        if not self._unusual:
            recent = torch.stack([seen.x_CHW for seen in self._recent])
            _, scores = self.profile.look(self._alignment(recent))
            self._unusual.extend(
                (seen.unusual, float(score[0])) for seen, score in zip(self._recent, scores, strict=True)
            )
        aligned_BK, aligned_BD = self.profile.look(self._alignment(x_BCHW))
        self._unusual.extend(zip(score_BD[:, 0].tolist(), aligned_BD[:, 0].tolist(), strict=True))
        plain, aligned = (sum(values) / len(values) for values in zip(*self._unusual, strict=True))
        if (aligned >= plain) if self._aligns else (aligned < MORE_USUAL * plain):
            self._aligns = not self._aligns
            self._note(
                self.images,
                "aligned" if self._aligns else "unaligned",
                f"features are {aligned:.1f} times as unusual as usual, {plain:.1f} without",
            )
            self._begin()
        return aligned_BK if self._aligns else source_BK

    @property
    def _quiet(self) -> int:
        """Images without an alarm after which drift is over."""
        longest = max(self._intervals, default=self.settings.quiet_images)
        return min(self.settings.quiet_images, max(FEWEST_QUIET, TIMES_QUIET * longest))

    def _watch(self, number: int, alarm: bool) -> bool:
        """After each image: drift begins, goes on, or is over. Whether it is over now."""
        if alarm:
            if self._last_alarm is None:
                self._note(number, "drift", "images are unlike those of the source")
                self._drift_from = number + 1
            else:
                self._intervals.append(number - self._last_alarm)
            self._last_alarm = number
        elif self._last_alarm is not None and number - self._last_alarm >= self._quiet:
            self._note(number, "over", f"no alarm within {self._quiet} images")
            self._last_alarm = None
            self._intervals.clear()
            self._unusual.clear()
            self._aligns = False
            self._begin()
            return True
        return False

    def _note(self, number: int, kind: GuardEventKind, reason: str) -> None:
        self.events.append(GuardEvent(number, kind, reason))

    def _learn(self, x_BCHW: torch.Tensor, base_BK: torch.Tensor, first: int) -> None:
        """Hold images back, remember the others, adapt and judge when it is time.

        base_BK: the source's logits of the images as the copy gets them. first: images before the batch.
        """
        with torch.no_grad():
            adapted_BK = self.adapted(x_BCHW)
        sure_B = is_reliable(entropies(adapted_BK), adapted_BK.shape[1], self.settings.unsure_share)
        for row in range(max(0, self._drift_from - first), len(x_BCHW)):
            x_CHW = x_BCHW[row]
            if (first + row) % self.settings.held_back_every == 0:
                self._held.append((x_CHW, base_BK[row]))
                self._unjudged += 1
            elif sure_B[row]:
                self._new += self._memory.add(x_CHW, int(adapted_BK[row].argmax()))
            if self._new >= self.settings.step_images and len(self._memory) > 1:
                self._method.adapt(self._memory.batch())
                self._new = 0
        if self._unjudged >= self.settings.judged_from and self.adapted.rule.steps >= FEWEST_STEPS:
            self._decide()

    def _decide(self) -> None:
        x_BCHW, base_BK = (torch.stack(parts) for parts in zip(*self._held, strict=True))
        verdict = self._judge.verdict(self.adapted, x_BCHW, base_BK)
        self._unjudged = 0
        self._note(self.images, "kept" if verdict.kept else "undone", verdict.reason)
        if verdict.kept:
            self._kept = True
        else:
            self._begin()
