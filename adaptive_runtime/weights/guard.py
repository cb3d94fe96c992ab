"""Guard that lets weights adapt only while images drift, and only while adapting improves the answers.

Legend: B batch, C channels, H height, W width, K classes, N images of calibration, D statistics of an image.
"""

from collections import deque
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.weight_options import GuardSettings
from adaptive_runtime.base.weight_state import GuardEventKind
from adaptive_runtime.exits.measures import Entropy
from adaptive_runtime.weights.aligning import AlignedView, AlignmentDecision
from adaptive_runtime.weights.detection import DriftDetector
from adaptive_runtime.weights.judging import AdaptedVerdict
from adaptive_runtime.weights.memory import BalancedMemory

MOST_EVENTS = 1000
FEWEST_QUIET, TIMES_QUIET, ALARMS = 32, 4, 8
"""Images without an alarm after which drift is over: a minimum, and a multiple of the longest gap between the last alarms."""
FEWEST_STEPS = 2
"""Steps before the first verdict: a single step has seen few images."""
Array = NDArray[np.float32]


class GuardEvent(NamedTuple):
    """An event after so many images.

    drift: an alarm; over: alarms have ended; aligned, unaligned: whether images are aligned from now on; kept, undone:
    verdicts.
    """

    image: int
    kind: GuardEventKind
    reason: str


class GuardedWeights(Protocol):
    """Adaptable weights. fewest: minimum images of a step and of a verdict. steps: number since the source's weights."""

    @property
    def fewest(self) -> int: ...

    @property
    def steps(self) -> int: ...

    def answers(self, x_BCHW: Array) -> Array:
        """The adapted logits (B, K) for images."""
        ...

    def adapt(self, x_BCHW: Array) -> None:
        """Make one step on images."""
        ...

    def verdict(self, x_BCHW: Array, source_BK: Array) -> AdaptedVerdict:
        """Whether the weights are better on held-out images than the source, whose logits are given."""
        ...

    def reset(self, *, aligns: bool) -> None:
        """Return to the source. aligns: whether the weights align images from now on; images are passed unaligned."""
        ...


class DriftGuard:
    """After an alarm, adapts weights to recent, diverse, confident images, balanced by class, and judges by holdout images.

    Steps do not depend on the size of batches. Until the first verdict, and after a negative one (`kept` is False), the source
    should answer; the weights then begin anew. Alarms go on while images drift. Drift is over when no alarm came for four times
    the longest gap between the last ones: 32 images at least, `quiet_images` at most. While `aligns`, source and weights should
    get aligned images (`AlignmentDecision`); the drift test gets them unaligned.
    """

    def __init__(
        self,
        weights: GuardedWeights,
        calibration_ND: NDArray[np.float64],
        settings: GuardSettings,
        aligned: AlignedView | None = None,
    ) -> None:
        """aligned: the source's view of aligned images; None: images are not aligned."""
        self.settings, self._weights = settings, weights
        self._alignment = None if aligned is None else AlignmentDecision(aligned, settings)
        self.detector = DriftDetector(calibration_ND, settings.false_alarms, settings.seed)
        self._memory = BalancedMemory(
            max(settings.memory_images, weights.fewest), settings.oldest_images, settings.redundancy
        )
        self._judged_from = max(settings.judged_from, weights.fewest)
        held = max(settings.held_back_images, self._judged_from)
        self._held: deque[tuple[Array, Array]] = deque(maxlen=held)
        self.events: deque[GuardEvent] = deque(maxlen=MOST_EVENTS)
        self.images = 0
        self.kept = False
        self._last_alarm: int | None = None
        self._resumed = False
        self._intervals: deque[int] = deque(maxlen=ALARMS)
        self._drift_from = 0
        self._begin()

    @property
    def drifting(self) -> bool:
        """Whether the last alarm still counts."""
        return self._last_alarm is not None

    @property
    def aligns(self) -> bool:
        """Whether images are aligned now."""
        return self._alignment is not None and self._alignment.aligns

    def resume(self, *, kept: bool, aligns: bool) -> None:
        """Continue an earlier adaptation or alignment as if an alarm had just been raised, until it is undone."""
        self._last_alarm, self.kept, self._resumed = self.images, kept, True
        if self._alignment is not None:
            self._alignment.aligns = aligns

    def _begin(self) -> None:
        """Return to the source's weights and forget all images."""
        self._weights.reset(aligns=self.aligns)
        self._memory.clear()
        self._held.clear()
        self.kept = False
        self._new = self._unjudged = 0

    def observe(self, x_BCHW: Array, score_BD: NDArray[np.float64], source_BK: Array) -> int:
        """Process images with their statistics and source logits.

        Returns the number of images until drift was over, or 0 if it is not.
        """
        if self._alignment is not None:
            self._alignment.remember(x_BCHW, score_BD)
        first, ended = self.images, 0
        for row, score_D in enumerate(score_BD):
            if self._watch(first + row, self.detector.update(score_D)):
                ended = row + 1
        self.images += len(score_BD)
        if self.drifting:
            base_BK = self._base(x_BCHW, score_BD, source_BK)
            self._learn(x_BCHW, base_BK, self._weights.answers(x_BCHW) if self._weights.steps else base_BK)
        return ended

    def _base(self, x_BCHW: Array, score_BD: NDArray[np.float64], source_BK: Array) -> Array:
        """The source's logits for images in the form that the weights get: aligned from now on, or not."""
        if self._alignment is None or (self._resumed and not self.aligns):  # these images were not seen to drift
            return source_BK
        aligned_BK, reason = self._alignment.decide(x_BCHW, score_BD)
        if reason is not None:
            self._note(self.images, "aligned" if self.aligns else "unaligned", reason)
            self._begin()
        return aligned_BK if self.aligns else source_BK

    @property
    def _quiet(self) -> int:
        """Images without an alarm after which drift is over."""
        longest = max(self._intervals, default=self.settings.quiet_images)
        return min(self.settings.quiet_images, max(FEWEST_QUIET, TIMES_QUIET * longest))

    def _watch(self, number: int, alarm: bool) -> bool:
        """Update the drift state after an image. Returns whether drift is over now."""
        if alarm:
            if self._last_alarm is None:
                self._note(number, "drift", "images are unlike those of the source")
                self._drift_from = number + 1
            else:
                self._intervals.append(number - self._last_alarm)
            self._last_alarm, self._resumed = number, False
        elif self._last_alarm is not None and number - self._last_alarm >= self._quiet:
            self._note(number, "over", f"no alarm within {self._quiet} images")
            self._end()
            self._begin()
            return True
        return False

    def _note(self, number: int, kind: GuardEventKind, reason: str) -> None:
        self.events.append(GuardEvent(number, kind, reason))

    def _end(self) -> None:
        """End the drift state."""
        self._last_alarm = None
        self._intervals.clear()
        if self._alignment is not None:
            self._alignment.end()

    def _learn(self, x_BCHW: Array, source_BK: Array, adapted_BK: Array) -> None:
        """Put some of the new images into the holdout and the others into memory; adapt and judge when it is time.

        source_BK: the source's logits of the images in the form that the weights get.
        """
        answer_B, sureness_B, _ = Entropy().step(adapted_BK, ())
        first = self.images - len(x_BCHW)
        for row in range(max(0, self._drift_from - first), len(x_BCHW)):
            x_CHW = x_BCHW[row]
            if (first + row) % self.settings.held_back_every == 0:
                self._held.append((x_CHW, source_BK[row]))
                self._unjudged += 1
            elif sureness_B[row] > 1 - self.settings.unsure_share:
                self._new += self._memory.add(x_CHW, int(answer_B[row]))
            if self._new >= self.settings.step_images and len(self._memory) >= self._weights.fewest:
                self._weights.adapt(self._memory.batch())
                self._new = 0
        if self._unjudged >= self._judged_from and self._weights.steps >= FEWEST_STEPS:
            self._decide()

    def _decide(self) -> None:
        x_BCHW, source_BK = (np.stack(parts) for parts in zip(*self._held, strict=True))
        verdict = self._weights.verdict(x_BCHW, source_BK)
        self._unjudged = 0
        self._note(self.images, "kept" if verdict.kept else "undone", verdict.reason)
        if verdict.kept:
            self.kept = True
            return
        if self._resumed:  # these images were not seen to drift
            self._end()
        self._begin()
