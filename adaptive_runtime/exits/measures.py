"""The confidence of an exit in its answer: measures behind one protocol.

A measure sees the logits of one exit after the other, of one sample (K,) or of several (B, K), by the same arithmetic in
double precision, so that a batch is decided exactly as its samples are. Higher is surer. One sample of few classes is also
judged by plain numbers: a numpy call takes longer than their whole arithmetic. Both agree up to rounding.

Legend: N samples, B of them at once, E exits, K classes.
"""

from collections.abc import Mapping
from math import exp, log
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

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
