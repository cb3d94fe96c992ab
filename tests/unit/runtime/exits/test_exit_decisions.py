import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.exits import MEASURES, Decider, MeasureName, Promise, Thresholds, exits_taken, trace
from tests.support import examples

NAMES = st.sampled_from(sorted(MEASURES))
PROMISE = Promise(epsilon=0.01, confidence=0.95, images=1000, lost=2, gained=1, p_value=0.01)


def drawn_logits(seed: int, samples: int, exits: int, classes: int) -> NDArray[np.float32]:
    """Logits that get surer from exit to exit, some of them equal."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(samples, exits, classes)).cumsum(1) * rng.choice([0.5, 3.0, 20.0], (samples, 1, 1))
    return np.round(logits, 1).astype(np.float32)


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def test_measures_are_those_of_their_definitions() -> None:
    logits = drawn_logits(0, 50, 3, 5)
    p = softmax(logits)
    ordered = np.sort(p, -1)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
    weights = np.array([[1, 0, 0], [0.5, 1, 0], [0.25, 0.5, 1]])
    ensemble = softmax(np.einsum("ef,nfk->nek", weights, np.log(p)))
    expected: dict[MeasureName, NDArray[np.float64]] = {
        "top_probability": ordered[..., -1],
        "margin": ordered[..., -1] - ordered[..., -2],
        "entropy": 1 - entropy / math.log(5),
        "ensemble": ensemble.max(-1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(trace(MEASURES[name], logits)[1], values, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(trace(MEASURES["ensemble"], logits)[0], ensemble.argmax(-1))


def test_patience_counts_exits_that_agree_in_a_row() -> None:
    answers = np.array([[0, 0, 1, 1, 1], [2, 2, 2, 2, 2], [0, 1, 0, 1, 0]])
    found, counts = trace(MEASURES["patience"], np.eye(3)[answers])
    np.testing.assert_array_equal(found, answers)
    np.testing.assert_array_equal(counts, [[1, 2, 1, 2, 3], [1, 2, 3, 4, 5], [1, 1, 1, 1, 1]])


def test_very_sure_samples_are_still_told_apart() -> None:
    logits = np.array([[[20.0, 0.0]], [[30.0, 0.0]]], np.float32)
    names: tuple[MeasureName, ...] = ("top_probability", "margin", "entropy", "ensemble")
    for name in names:
        confidences = trace(MEASURES[name], logits)[1][:, 0]
        assert confidences[0] < confidences[1] <= 1


@settings(deadline=None, max_examples=examples(150))
@given(
    name=NAMES,
    seed=st.integers(0, 10**6),
    samples=st.integers(1, 40),
    exits=st.integers(1, 5),
    classes=st.integers(2, 70),
    data=st.data(),
)
def test_a_batch_is_decided_as_its_samples_are(
    name: MeasureName, seed: int, samples: int, exits: int, classes: int, data: st.DataObject
) -> None:
    logits = drawn_logits(seed, samples, exits, classes)
    answers, confidences = trace(MEASURES[name], logits)
    bar = st.sampled_from([None, *confidences.ravel().tolist()])  # confidences themselves: equal is enough
    bars = data.draw(st.tuples(*[bar] * (exits - 1)))
    decider = Decider(Thresholds(measure=name, thresholds=bars))
    batch = decider.batch(samples)
    for place in range(exits):
        left = batch.rows
        mask = batch.leave(logits[left, place])
        np.testing.assert_array_equal(batch.rows, left[~mask])
    taken = exits_taken(confidences, decider_bars(bars))
    np.testing.assert_array_equal(batch.exits, taken)
    for row in range(samples):
        one = decider.sample()
        for place in range(exits):
            if one.leaves(logits[row, place]):
                break
        assert (one.exit, one.answer) == (batch.exits[row], batch.answers[row])
        assert batch.confidences[row] == confidences[row, one.exit]
        assert one.confidence == pytest.approx(confidences[row, one.exit], rel=1e-12, abs=1e-12)
        full = one.exit == exits - 1
        assert one.answer == (logits[row, -1].argmax() if full else answers[row, one.exit])


def decider_bars(bars: tuple[float | None, ...]) -> tuple[float, ...]:
    return Thresholds(measure="margin", thresholds=bars).bars


def test_logits_that_are_no_numbers_go_on_to_the_full_answer() -> None:
    decider = Decider(Thresholds(measure="top_probability", thresholds=(0.0,)))
    one = decider.sample()
    assert not one.leaves(np.array([[np.nan, 1.0]], np.float32))
    assert one.leaves(np.array([[0.0, 1.0]], np.float32))
    assert (one.answer, one.exit) == (1, 1)


def test_a_sample_that_has_left_is_not_asked_again() -> None:
    one = Decider(Thresholds(measure="top_probability", thresholds=(0.0,))).sample()
    assert one.leaves(np.array([0.0, 1.0]))
    with pytest.raises(AdaptiveError, match=r"exit 1: the sample left at exit 0"):
        one.leaves(np.array([0.0, 1.0]))


def test_a_batch_goes_on_with_the_samples_that_are_left_alone() -> None:
    batch = Decider(Thresholds(measure="top_probability", thresholds=(0.9,))).batch(2)
    batch.leave(np.array([[9.0, 0.0], [0.1, 0.0]]))
    with pytest.raises(AdaptiveError, match=r"exit 1: logits of 2 samples; allowed: 1, of the samples that are left"):
        batch.leave(np.zeros((2, 2)))


@given(
    name=NAMES,
    bars=st.lists(st.none() | st.floats(-1, 9, allow_nan=False), max_size=6),
    epsilon=st.floats(1e-6, 0.999),
    confidence=st.floats(0.5, 0.999),
)
def test_thresholds_come_back_from_their_file(
    name: MeasureName, bars: list[float | None], epsilon: float, confidence: float
) -> None:
    promise = PROMISE.model_copy(update={"epsilon": epsilon, "confidence": confidence, "p_value": 1 - confidence})
    thresholds = Thresholds(measure=name, thresholds=tuple(bars), promise=promise)
    assert Thresholds.from_json(thresholds.to_json()) == thresholds


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ('"version": 1', "version: Input should be 1"),
        ('"measure": "margin"', "measure: Input should be 'top_probability'"),
        ('"lost": 2', "promise: Value error, 2000 lost and 1 gained of 1000 images"),
        ('"p_value": 0.01', "promise: Value error, p_value 1 does not bear confidence 0.95"),
    ],
)
def test_a_file_that_says_something_else_is_refused_in_one_line(change: str, line: str) -> None:
    text = Thresholds(measure="margin", thresholds=(0.5, None), promise=PROMISE).to_json()
    assert change in text
    other = {"version": "2", "measure": '"guess"', "lost": "2000", "p_value": "1"}[change.split('"')[1]]
    broken = text.replace(change, change.rsplit(":", 1)[0] + ": " + other)
    with pytest.raises(AdaptiveError) as error:
        Thresholds.from_json(broken, "thresholds.json")
    assert str(error.value).startswith(f"thresholds.json: {line}")
    assert str(error.value).endswith("; make the thresholds again")
