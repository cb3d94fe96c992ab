"""The guard of adapting weights: drift detection, verdicts on adaptations, and a memory of images to adapt to.

Weights adapt only while images drift, and only while adapting improves the answers. Drift is detected before anything
changes: a sequential test with bounded false alarms. The verdict whether an adaptation is kept follows from answers
alone. The memory has recent and diverse images, balanced over the classes that the network predicts.

Legend: B batch or holdout images, A labelled source images, C channels, H height, W width, K classes, N images of
calibration, D statistics of an image, G bets.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.weight_options import GuardEventKind, GuardSettings
from adaptive_runtime.exits.decisions import Entropy, TopProbability
from adaptive_runtime.weights.aligning import AlignedView, AlignmentDecision

POWERS = (0.2, 0.5, 0.8)
"""ε of the bets ε · p^(ε−1), each on small and on large p-values; the integral of each over [0, 1] is 1."""
RUN_IMAGES = 20_000
"""Images after which the test restarts without an alarm, so that memory is bounded."""
SMALLEST = 1e-12
"""Smaller p-values are raised to this one: bets stay finite, and no bet pays more than without the limit."""


class DriftDetector:
    """Detects, image by image, whether images stop being exchangeable with those of calibration.

    Each statistic of a new image gets a conformal p-value among those of calibration and of all images of the run so far: p =
    (#larger + u · (#equal + 1)) / (n + 1), u uniform. While calibration and images of the run are exchangeable, a statistic's
    p-values are independent and uniform, whatever the distribution (Vovk, Gammerman and Shafer, 2005, theorem 8.2). Bets f with
    ∫f = 1 then make a Shiryaev–Roberts process of each statistic and bet, R ← (1 + R) · f(p), with E[R after t images] = t: R −
    t is a martingale. The same holds for the mean R̄ over statistics and bets. The alarm is R̄ ≥ c.

    While nothing drifts, for any network and any distribution of images, P(first alarm within n images) ≤ n/c for every n. By
    optional stopping, in one run c · P(alarm within n) ≤ E[R̄ at the stop] = E[images until the stop] ≤ n. Until the first
    alarm runs begin at fixed images, so their probabilities add up. The probability is over calibration images, too. With c =
    100,000 / rate this is `rate` alarms per 100,000 images. A run that follows a false alarm begins at a time that depends on
    calibration; for later alarms the bound is not proven.

    Source: Vovk et al., COPA 2021; Shin, Ramdas and Rinaldo, New England Journal of Statistics in Data Science 2024
    (e-detectors).

    A run ends with an alarm, or after 20,000 images.
    """

    def __init__(self, calibration_ND: NDArray[np.float64], false_alarms: float, seed: int) -> None:
        """false_alarms: per 100,000 images."""
        self.threshold = 1e5 / false_alarms
        self._calibration = [sorted(column) for column in calibration_ND.T.tolist()]
        self._rng = np.random.default_rng(seed)
        self.restart()

    def restart(self) -> None:
        """Begin a run with the calibration images only."""
        self._known = [list(column) for column in self._calibration]
        self._evidence_DG = np.zeros((len(self._known), 2 * len(POWERS)))
        self.images = 0

    @property
    def evidence(self) -> float:
        """R̄; an alarm is raised at `threshold`."""
        return float(self._evidence_DG.mean())

    def update(self, score_D: NDArray[np.float64]) -> bool:
        """Whether one more image raises an alarm; if so, the next image begins a run."""
        p_D = np.array([self._p_value(known, float(value)) for known, value in zip(self._known, score_D, strict=True)])
        self._evidence_DG = (1 + self._evidence_DG) * bets(p_D)
        self.images += 1
        alarm = self.evidence >= self.threshold
        if alarm or self.images >= RUN_IMAGES:
            self.restart()
        return alarm

    def _p_value(self, known: list[float], value: float) -> float:
        """The p-value of a value, which is added to the known ones."""
        below, not_above = bisect_left(known, value), bisect_right(known, value)
        larger, equal = len(known) - not_above, not_above - below
        insort(known, value)
        return (larger + float(self._rng.random()) * (equal + 1)) / len(known)


def bets(p_D: NDArray[np.float64]) -> NDArray[np.float64]:
    """(D, G) factors of each p-value."""
    sides_D2 = np.clip(np.stack([p_D, 1 - p_D], 1), SMALLEST, 1)
    powers = np.array(POWERS)
    return (powers * sides_D2[:, :, None] ** (powers - 1)).reshape(len(p_D), -1)


MOST_ONE_SIDED = 0.25
"""Allowed increase of the largest class share from the source's answers to the adapted ones."""
FEWEST_LABELLED = 32
"""Minimum number of labelled source images for a judge."""


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
    def of(cls, logits_AK: Array, label_A: NDArray[np.int64]) -> Self:
        """From logits and labels."""
        accuracy = float((logits_AK.argmax(1) == label_A).mean())
        return cls(accuracy, accuracy - confidence(logits_AK))


def judged(
    source_BK: Array, source_above: float, adapted_BK: Array, adapted_above: float, lost_points: float = 0.0
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


def confidence(logits_BK: Array) -> float:
    """Mean probability of the answers."""
    return float(TopProbability().step(logits_BK, ())[1].mean())


def _largest_share(logits_BK: Array) -> float:
    return float(np.bincount(logits_BK.argmax(1)).max() / len(logits_BK))


class _Kept(NamedTuple):
    """x_CHW: the image; number: its position in the sequence of images."""

    x_CHW: Array
    number: int


class BalancedMemory:
    """The newest images of each predicted class, so that a sequence of one class does not dominate.

    A full memory drops the oldest image of its largest class; images that are too old leave. Balance by predictions: NOTE (Gong
    et al., NeurIPS 2022, §3.2); by age: RoTTA (Yuan et al., CVPR 2023, §3.2).
    """

    def __init__(self, capacity: int, oldest: int, redundancy: float) -> None:
        """capacity, oldest: [images]. redundancy: ‖x − y‖² / ‖y‖² from a known image of the class below which x is left out."""
        self._capacity, self._oldest, self._redundancy = capacity, oldest, redundancy
        self.clear()

    def clear(self) -> None:
        """Forget all images."""
        self._classes: dict[int, deque[_Kept]] = {}
        self._number = 0

    def __len__(self) -> int:
        return sum(map(len, self._classes.values()))

    def add(self, x_CHW: Array, predicted: int) -> bool:
        """Add an image, and return whether it was new and kept."""
        self._number += 1
        self._age()
        own = self._classes.setdefault(predicted, deque())
        if own and self._is_known(x_CHW, own):
            return False
        if len(self) >= self._capacity:
            largest = max(self._classes.values(), key=lambda kept: (len(kept), kept is own))
            largest.popleft()
        own.append(_Kept(x_CHW, self._number))
        return True

    def _is_known(self, x_CHW: Array, kept: deque[_Kept]) -> bool:
        y_BCHW = np.stack([each.x_CHW for each in kept])
        size_B = np.maximum(np.square(y_BCHW).sum((1, 2, 3)), SMALLEST)
        return bool((np.square(x_CHW - y_BCHW).sum((1, 2, 3)) / size_B < self._redundancy).any())

    def _age(self) -> None:
        for kept in self._classes.values():
            while kept and kept[0].number <= self._number - self._oldest:
                kept.popleft()

    def batch(self) -> Array:
        """All images (B, C, H, W)."""
        return np.stack([each.x_CHW for kept in self._classes.values() for each in kept])


MOST_EVENTS = 1000
FEWEST_QUIET, TIMES_QUIET, ALARMS = 32, 4, 8
"""Images without an alarm after which drift is over: a minimum, and a multiple of the longest gap between the last alarms."""
FEWEST_STEPS = 2
"""Steps before the first verdict: a single step has seen few images."""


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
