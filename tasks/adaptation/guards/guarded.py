"""A SubNet that adapts only while images drift, and only as long as it is better for it. Legend: B batch, K classes."""

import copy
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

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
FEWEST_STEPS = 2
"""Steps before the first verdict: one step knows few images."""


class GuardEvent(NamedTuple):
    """What happened after so many images. drift: an alarm; over: none any more; kept, undone: verdicts."""

    image: int
    kind: Literal["drift", "over", "kept", "undone"]
    reason: str


class GuardedAnswer(NamedTuple):
    """logits_BK, and whose they are; adapted: of some of them, where drift was over within the batch."""

    logits_BK: torch.Tensor
    by: Literal["source", "adapted"]


class GuardedSubnet:
    """Answers with the source until drift is detected, then with an adapted copy while judgements keep it.

    After an alarm a copy adapts to recent, different, sure images, balanced by class, in steps that do not depend on the size
    of batches. Some images are held back; they and labelled source images judge the copy (`AnchorJudge`). Until the first
    verdict, and after one against it, the source answers; the copy then begins anew. A copy that aligns images
    (`InputAlignment`) is another network before it learns: it is judged at the alarm, by the images before. Alarms go on while
    images drift. Drift is over when none came for four times the longest time between the last ones: 32 images at least,
    `quiet_images` at most. Answers of the copy normalise by statistics that are kept, so one image is enough.
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
        self.detector = DriftDetector(self.profile.calibration_ND, self.settings.false_alarms, self.settings.seed)
        self._method = make_method(copy.deepcopy(source), method, profile_batches)
        self._judge = AnchorJudge(source, anchor, self.settings, self.adapted)
        self._fewest_steps = FEWEST_STEPS if self.adapted.alignment is None else 0
        self._memory = BalancedMemory(
            self.settings.memory_images, self.settings.oldest_images, self.settings.redundancy
        )
        self._held: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=self.settings.held_back_images)
        self._recent: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=self.settings.judged_from)
        self.events: deque[GuardEvent] = deque(maxlen=MOST_EVENTS)
        self.images = 0
        self._last_alarm: int | None = None
        self._intervals: deque[int] = deque(maxlen=ALARMS)
        self._kept = False
        self._drift_from = 0
        self._begin()

    @property
    def adapted(self) -> AdaptiveSubnet:
        """The copy that adapts; it has the source's tensors while nothing drifts."""
        return self._method.subnet

    @property
    def drifting(self) -> bool:
        """Whether the last alarm still counts."""
        return self._last_alarm is not None

    def _begin(self) -> None:
        """The copy is the source, and knows no image."""
        self._method.reset()
        self._memory.clear()
        self._held.clear()
        self._kept = False
        self._new = self._unjudged = 0

    def answer(self, x_BCHW: torch.Tensor) -> GuardedAnswer:
        """Answers for a batch. Where images drift, in this batch or before, the copy adapts to it and is judged first.

        Images of the batch before drift was over are answered as those of the batch before.
        """
        source_BK, score_BD = self.profile.look(x_BCHW)
        copy_BK = self._answers(x_BCHW) if self.drifting else None
        first, kept, ended = self.images, self._kept, 0
        for row, score_D in enumerate(score_BD):
            self._recent.append((x_BCHW[row], source_BK[row]))
            if self._watch(first + row, self.detector.update(score_D)):
                ended = row + 1
        self.images += len(x_BCHW)
        if self.drifting:
            self._learn(x_BCHW, source_BK, self._answers(x_BCHW) if ended or copy_BK is None else copy_BK, first)
        answer_BK = self._answers(x_BCHW) if self._kept else source_BK
        if ended and kept and copy_BK is not None:
            answer_BK = torch.cat([copy_BK[:ended], answer_BK[ended:]])
        return GuardedAnswer(answer_BK, "adapted" if self._kept or (ended and kept) else "source")

    @torch.no_grad()
    def _answers(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The copy's."""
        return self.adapted(x_BCHW)

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
                self._held.extend(self._recent)
                self._unjudged, self._drift_from = len(self._recent), number + 1
            else:
                self._intervals.append(number - self._last_alarm)
            self._last_alarm = number
        elif self._last_alarm is not None and number - self._last_alarm >= self._quiet:
            self._note(number, "over", f"no alarm within {self._quiet} images")
            self._last_alarm = None
            self._intervals.clear()
            self._begin()
            return True
        return False

    def _note(self, number: int, kind: Literal["drift", "over", "kept", "undone"], reason: str) -> None:
        self.events.append(GuardEvent(number, kind, reason))

    def _learn(self, x_BCHW: torch.Tensor, source_BK: torch.Tensor, adapted_BK: torch.Tensor, first: int) -> None:
        """Hold images back, remember the others, adapt and judge when it is time. first: images before the batch."""
        sure_B = is_reliable(entropies(adapted_BK), adapted_BK.shape[1], self.settings.unsure_share)
        for row in range(max(0, self._drift_from - first), len(x_BCHW)):
            x_CHW = x_BCHW[row]
            if (first + row) % self.settings.held_back_every == 0:
                self._held.append((x_CHW, source_BK[row]))
                self._unjudged += 1
            elif sure_B[row]:
                self._new += self._memory.add(x_CHW, int(adapted_BK[row].argmax()))
            if self._new >= self.settings.step_images and len(self._memory) > 1:
                self._method.adapt(self._memory.batch())
                self._new = 0
        if self._unjudged >= self.settings.judged_from and self.adapted.rule.steps >= self._fewest_steps:
            self._decide()

    def _decide(self) -> None:
        x_BCHW, source_BK = (torch.stack(parts) for parts in zip(*self._held, strict=True))
        verdict = self._judge.verdict(self.adapted, x_BCHW, source_BK)
        self._unjudged = 0
        self._note(self.images, "kept" if verdict.kept else "undone", verdict.reason)
        if verdict.kept:
            self._kept = True
        else:
            self._begin()
