"""Whether a sample leaves at an exit: one sample at a time, or a batch that leaves sample by sample.

The host runs a segment of the network, asks, and goes on or stops:

    decision = decider.sample()
    for segment in segments:
        features, logits = segment(features)
        if decision.leaves(logits):
            break
    decision.answer, decision.exit, decision.confidence

Legend: N samples of a batch, B of them that are left, K classes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.exits.measures import MEASURES, ConfidenceMeasure, MeasureState
from adaptive_runtime.exits.thresholds import Thresholds

NOT_YET = -1
FEW_CLASSES = range(2, 33)
"""Numbers of classes for which one sample is judged by plain numbers."""
NEAR = 1e-9
"""Distance from a threshold within which a sample is judged exactly as batches are."""


class Decider:
    """Prepared thresholds. Stateless: the state of samples is in the decisions that it starts."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._measure = MEASURES[thresholds.measure]
        self._bars = thresholds.bars

    @property
    def full_exit(self) -> int:
        """The last exit at which samples leave."""
        return len(self._bars)

    def sample(self) -> "SampleDecision":
        """The decision of a sample at its start."""
        return SampleDecision(self._measure, self._bars)

    def batch(self, samples: int) -> "BatchDecision":
        """The decisions of a batch at its start."""
        return BatchDecision(self._measure, self._bars, samples)


class SampleDecision:
    """One sample in progress. `answer`, `confidence`: of the latest exit, whose index is `exit`."""

    __slots__ = ("_bars", "_measure", "_seen", "_state", "answer", "confidence", "exit", "left")

    def __init__(self, measure: ConfidenceMeasure, bars: tuple[float, ...]) -> None:
        self._measure, self._bars = measure, bars
        self._state: MeasureState = ()
        self._seen: list[NDArray[Any]] = []
        self.answer, self.exit, self.confidence, self.left = NOT_YET, NOT_YET, 0.0, False

    def leaves(self, logits: NDArray[Any]) -> bool:
        """Whether the sample leaves at the next exit, by logits (K,) or (1, K). AdaptiveError if it has left already."""
        if self.left:
            raise AdaptiveError(f"exit {self.exit + 1}", f"the sample left at exit {self.exit}")
        self.exit += 1
        logits_K = logits.reshape(-1)
        answer, self.confidence = self._judged(logits_K)
        if self.exit < len(self._bars):
            self.answer = answer
            self.left = self.confidence >= self._bars[self.exit]
        else:
            self.answer = int(logits_K.argmax())
            self.left = True
        return self.left

    def _judged(self, logits_K: NDArray[Any]) -> tuple[int, float]:
        """The answer and its confidence."""
        if len(logits_K) not in FEW_CLASSES:
            answer, confidence, self._state = self._measure.step(logits_K, self._state)
            return int(answer), float(confidence)
        self._seen.append(logits_K)
        answer, confidence, self._state = self._measure.quick_step(logits_K.tolist(), self._state)
        if self.exit < len(self._bars) and abs(confidence - self._bars[self.exit]) < NEAR:
            state: MeasureState = ()
            for seen_K in self._seen:
                answer, confidence, state = self._measure.step(seen_K, state)
        return int(answer), float(confidence)


class BatchDecision:
    """A batch in progress. `rows` (B,): the samples that have not left yet.

    answers, confidences, exits (N,): of samples that have left; `NOT_YET` for the others.
    """

    def __init__(self, measure: ConfidenceMeasure, bars: tuple[float, ...], samples: int) -> None:
        self._measure, self._bars = measure, bars
        self._state: MeasureState = ()
        self._next = 0
        self.rows = np.arange(samples)
        self.answers = np.full(samples, NOT_YET, np.int64)
        self.exits = np.full(samples, NOT_YET, np.int64)
        self.confidences = np.zeros(samples)

    def leave(self, logits_BK: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of the remaining samples leave at the next exit (B,); the host continues with the others."""
        if len(logits_BK) != len(self.rows):
            where, got = f"exit {self._next}", f"logits of {len(logits_BK)} samples"
            raise AdaptiveError(where, got, allowed=f"{len(self.rows)}, of the samples that are left")
        answers_B, confidences_B, state = self._measure.step(logits_BK, self._state)
        if self._next < len(self._bars):
            leaving_B: NDArray[np.bool_] = confidences_B >= self._bars[self._next]
        else:
            answers_B, leaving_B = logits_BK.argmax(-1), np.ones(len(self.rows), bool)
        gone = self.rows[leaving_B]
        self.answers[gone], self.confidences[gone] = answers_B[leaving_B], confidences_B[leaving_B]
        self.exits[gone] = self._next
        self._state = tuple(part[~leaving_B] for part in state)
        self.rows = self.rows[~leaving_B]
        self._next += 1
        return leaving_B
