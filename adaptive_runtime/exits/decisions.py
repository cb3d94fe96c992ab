"""Decisions to leave at an early exit: confidence measures, thresholds with their promise, and deciders.

A measure sees the logits of one exit after the other, of one sample (K,) or of several (B, K), by the same arithmetic
in double precision, so that a batch is decided exactly as its samples are. Higher is surer. One sample of few classes
is also judged by plain numbers: a numpy call takes longer than their whole arithmetic. Both agree up to rounding.

The host runs a segment of the network, asks, and goes on or stops:

    decision = decider.sample()
    for segment in segments:
        features, logits = segment(features)
        if decision.leaves(logits):
            break
    decision.answer, decision.exit, decision.confidence

Legend: N samples of a batch, B of them that are left, E exits, K classes.
"""

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import FileMessage
from profiling_agents.messages import Message

MeasureName = Literal["top_probability", "margin", "entropy", "patience", "ensemble"]
MeasureState = tuple[Any, ...]
"""A measure's memory of samples: arrays (B, …), or scalars and vectors of one sample; empty before the first exit."""
FADING = 0.5
Step = tuple[Any, Any, MeasureState]
"""Answers, confidences and the state after an exit."""


class ConfidenceMeasure(Protocol):
    """One way to judge the answer of an exit.

    remembers: whether earlier exits count, too. `step`: for logits (…, K) of the next exit, its answers and confidences (…).
    `quick_step`: the same for one sample's logits as a list of floats, with its own kind of state.
    """

    @property
    def remembers(self) -> bool: ...

    def step(self, logits: NDArray[Any], state: MeasureState) -> Step: ...

    def quick_step(self, logits: list[float], state: MeasureState) -> Step: ...


class TopProbability:
    """The largest probability of the softmax."""

    remembers = False

    def step(self, logits: NDArray[Any], state: MeasureState) -> Step:
        weights = np.exp(_below_top(logits))
        return logits.argmax(-1), 1.0 / np.add.reduce(weights, -1), state

    def quick_step(self, logits: list[float], state: MeasureState) -> Step:
        top = max(logits)
        return logits.index(top), 1.0 / sum([exp(one - top) for one in logits]), state


class Margin:
    """The largest probability minus the second largest."""

    remembers = False

    def step(self, logits: NDArray[Any], state: MeasureState) -> Step:
        weights = np.exp(_below_top(logits))
        second = np.partition(weights, -2, -1)[..., -2]
        return logits.argmax(-1), (1.0 - second) / np.add.reduce(weights, -1), state

    def quick_step(self, logits: list[float], state: MeasureState) -> Step:
        top = max(logits)
        weights = [exp(one - top) for one in logits]
        return logits.index(top), (1.0 - sorted(weights)[-2]) / sum(weights), state


class Entropy:
    """One minus the entropy of the softmax, as a share of the largest possible entropy."""

    remembers = False

    def step(self, logits: NDArray[Any], state: MeasureState) -> Step:
        below = _below_top(logits)
        weights = np.exp(below)
        total = np.add.reduce(weights, -1)
        nats = np.log(total) - np.add.reduce(weights * below, -1) / total
        return logits.argmax(-1), 1.0 - nats / np.log(logits.shape[-1]), state

    def quick_step(self, logits: list[float], state: MeasureState) -> Step:
        top = max(logits)
        weights = [exp(one - top) for one in logits]
        total = sum(weights)
        nats = log(total) - sum([weight * (one - top) for weight, one in zip(weights, logits, strict=True)]) / total
        return logits.index(top), 1.0 - nats / log(len(logits)), state


class Patience:
    """The number of exits in a row, including this one, that gave this answer. Source: PABEE (NeurIPS 2020)."""

    remembers = True

    def step(self, logits: NDArray[Any], state: MeasureState) -> Step:
        answers = logits.argmax(-1)
        agreeing = np.ones(answers.shape) if not state else np.where(answers == state[0], state[1] + 1.0, 1.0)
        return answers, agreeing, (answers, agreeing)

    def quick_step(self, logits: list[float], state: MeasureState) -> Step:
        answer = logits.index(max(logits))
        agreeing = state[1] + 1.0 if state and state[0] == answer else 1.0
        return answer, agreeing, (answer, agreeing)


class Ensemble:
    """The largest probability of the geometric ensemble of all heads up to this one; the answer is the ensemble's.

    A head has `FADING` times the weight of the next one. Source: Zero Time Waste (NeurIPS 2021), where weights are learned.
    """

    remembers = True

    def step(self, logits: NDArray[Any], state: MeasureState) -> Step:
        below = _below_top(logits)
        logs = below - np.log(np.add.reduce(np.exp(below), -1, keepdims=True))
        logs = logs + FADING * state[0] if state else logs
        weights = np.exp(_below_top(logs))
        return logs.argmax(-1), 1.0 / np.add.reduce(weights, -1), (logs,)

    def quick_step(self, logits: list[float], state: MeasureState) -> Step:
        return self.step(np.array(logits), state)


MEASURES: Mapping[MeasureName, ConfidenceMeasure] = {
    "top_probability": TopProbability(),
    "margin": Margin(),
    "entropy": Entropy(),
    "patience": Patience(),
    "ensemble": Ensemble(),
}


def trace(measure: ConfidenceMeasure, logits_NEK: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Answers and confidences (N, E) of samples at all exits."""
    state: MeasureState = ()
    answers, confidences = [], []
    for place in range(logits_NEK.shape[1]):
        answer_N, confidence_N, state = measure.step(logits_NEK[:, place], state)
        answers.append(answer_N)
        confidences.append(confidence_N)
    return np.stack(answers, 1), np.stack(confidences, 1)


def _below_top(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Logits minus their largest, in double precision: at most 0."""
    top = np.maximum.reduce(logits, -1, keepdims=True)
    return np.subtract(logits, top, dtype=np.float64)


Share = Annotated[float, Field(gt=0, lt=1)]


class Promise(Message):
    """For images like the tested ones, leaving early answers at most a share `epsilon` fewer correctly than the full answer.

    confidence: least probability, over the draw of the tested images, that this holds. lost, gained: tested images that only
    the
    full answer, or only leaving early, gets right. p_value: of "more than epsilon is lost".
    """

    epsilon: Share
    confidence: Share
    images: int = Field(ge=1)
    lost: int = Field(ge=0)
    gained: int = Field(ge=0)
    p_value: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _is_kept(self) -> Self:
        if self.lost + self.gained > self.images:
            raise ValueError(f"{self.lost} lost and {self.gained} gained of {self.images} images")
        if self.p_value > 1 - self.confidence + 1e-12:
            raise ValueError(f"p_value {self.p_value:g} does not bear confidence {self.confidence:g}")
        return self


class Thresholds(FileMessage):
    """A sample leaves at the first exit where its confidence is at least the threshold.

    thresholds: one for each exit before the full answer; null: no sample leaves there. The next exit answers the remaining
    ones.
    """

    WHERE: ClassVar[str] = "thresholds"
    NEXT_STEP: ClassVar[str] = "make the thresholds again"

    version: Literal[1] = 1
    measure: MeasureName
    thresholds: tuple[float | None, ...]
    promise: Promise | None = None

    @property
    def full_exit(self) -> int:
        """The exit that gives the full answer."""
        return len(self.thresholds)

    @property
    def bars(self) -> tuple[float, ...]:
        """Thresholds as numbers: infinity for exits at which no sample leaves."""
        return tuple(float("inf") if bar is None else bar for bar in self.thresholds)

    @property
    def needed(self) -> tuple[int, ...]:
        """The exits whose heads have to run: those at which samples leave, and that of the full answer.

        If the measure remembers earlier exits, these include all exits up to the last one at which samples leave.
        """
        leaving = [place for place, bar in enumerate(self.thresholds) if bar is not None]
        if leaving and MEASURES[self.measure].remembers:
            leaving = list(range(leaving[-1] + 1))
        return (*leaving, self.full_exit)

    def at(self, places: Sequence[int]) -> "Thresholds":
        """Thresholds for a network with only some of the exits, which include all `needed` ones."""
        early = tuple(self.thresholds[place] for place in places if place < self.full_exit)
        return self.model_copy(update={"thresholds": early})


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
        """The remaining samples that leave at the next exit (B,); the host continues with the others."""
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
