import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.exits import MEASURES, Decider, Thresholds
from tasks.base.errors import UserError
from tasks.exits import HeldOut, PromiseSettings, calibrate
from tasks.exits.calibration import find_path
from tests.support import examples
from tests.support.docs.documents import ROOT
from tests.support.exits.exit_answers import LATENCY_MS, STRENGTHS, agreeing, drawn_held_out

FAST = PromiseSettings(epsilon=0.03, measures=("top_probability",))
RUNS = 150
PAGE = ROOT / "docs" / "exit_policies.md"


@pytest.fixture(scope="module")
def population() -> HeldOut:
    """So many images that what is lost is known to a tenth of a point."""
    return drawn_held_out(10**6, 40_000)


def lost_of(thresholds: Thresholds, images: HeldOut) -> float:
    answers = images.answers(MEASURES[thresholds.measure], thresholds.full_exit)
    return float(answers.leave(np.array(thresholds.bars))[1].mean())


@pytest.mark.long
def test_a_promise_at_95_percent_is_broken_in_no_more_than_5_percent_of_draws(population: HeldOut) -> None:
    broken, saved, untested = 0, [], 0
    for seed in range(RUNS):
        held_out = drawn_held_out(seed, 700)
        found = calibrate(held_out, FAST, np.random.default_rng(seed))
        broken += lost_of(found.thresholds, population) > FAST.epsilon
        saved.append(found.saved)
        if seed < RUNS // 4:
            untested += lost_of(by_average(held_out), population) > FAST.epsilon
    slack = 3 * math.sqrt(0.05 * 0.95 * RUNS)
    assert broken <= 0.05 * RUNS + slack
    assert np.mean(saved) > 0.15  # it does leave early
    assert untested > 0.2 * RUNS // 4  # where the average loss is just kept to, the same draws break it often


def by_average(held_out: HeldOut) -> Thresholds:
    """The cheapest thresholds that lose no more than epsilon on the images that they are made from."""
    answers = held_out.answers(MEASURES["top_probability"], 2)
    bars = next(bars for bars in find_path(answers, LATENCY_MS)[::-1] if answers.leave(bars)[1].mean() <= FAST.epsilon)
    return Thresholds(measure="top_probability", thresholds=tuple(None if np.isinf(bar) else bar for bar in bars))


def test_the_documents_say_how_many_images_are_needed() -> None:
    shown = re.findall(r"^\| ([\d.]+) points? \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(shown) == 4
    for points, cells in shown:
        for cell, confidence in zip(cells.split(" | "), (0.8, 0.95, 0.99), strict=True):
            promise = PromiseSettings(epsilon=float(points) / 100, confidence=confidence)
            assert promise.images_needed() == int(cell.replace(",", ""))


@settings(deadline=None, max_examples=examples(10))
@given(epsilon=st.sampled_from([0.01, 0.02, 0.05, 0.2]), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_as_many_images_as_the_line_says_are_enough_and_one_fewer_is_not(epsilon: float, confidence: float) -> None:
    promise = PromiseSettings(epsilon=epsilon, confidence=confidence, measures=("margin",))
    needed = promise.images_needed()
    found = calibrate(agreeing(needed), promise, np.random.default_rng(0))
    assert found.thresholds.promise is not None
    assert found.thresholds.promise.p_value <= promise.level
    assert found.prediction.expected_ms == pytest.approx(1, abs=0.1)  # nearly everybody leaves at the first exit
    with pytest.raises(
        UserError, match=rf"{needed - 1} held-out images are too few .* allowed: {needed} or more; hold"
    ):
        calibrate(agreeing(needed - 1), promise, np.random.default_rng(0))


def test_what_is_predicted_is_what_the_device_does_on_the_images_that_tested() -> None:
    held_out, rng = drawn_held_out(3, 1500), np.random.default_rng(0)
    found = calibrate(held_out, FAST, rng)
    testing = held_out.rows(np.random.default_rng(0).permutation(1500)[FAST.choosing(1500) :])
    batch = Decider(found.thresholds).batch(len(testing))
    for place in range(found.thresholds.full_exit + 1):
        batch.leave(testing.logits_NEK[batch.rows, place])
    assert found.prediction.expected_ms == pytest.approx(LATENCY_MS[batch.exits].mean())
    assert found.accuracy == pytest.approx((batch.answers == testing.labels_N).mean())
    assert found.thresholds.promise is not None
    assert found.thresholds.promise.images == len(testing)
    difference = (found.thresholds.promise.lost - found.thresholds.promise.gained) / len(testing)
    assert found.full_accuracy - found.accuracy == pytest.approx(difference)


def test_the_measure_that_saves_most_is_chosen() -> None:
    found = calibrate(drawn_held_out(0, 1500), PromiseSettings(epsilon=0.03), np.random.default_rng(0))
    assert set(found.by_measure) == set(MEASURES)
    assert found.by_measure[found.thresholds.measure] == min(found.by_measure.values())
    assert found.by_measure["patience"] > found.by_measure[found.thresholds.measure]


def test_the_most_accurate_exit_gives_the_full_answer_wherever_it_is() -> None:
    worse_at_the_end = drawn_held_out(0, 1500, STRENGTHS[[0, 2, 1]])
    found = calibrate(worse_at_the_end, FAST, np.random.default_rng(0))
    assert found.thresholds.full_exit == 1
    assert found.full_ms == LATENCY_MS[1]
    assert sum(found.prediction.rates) == pytest.approx(1)


def test_where_early_answers_are_guesses_nobody_leaves_early() -> None:
    found = calibrate(drawn_held_out(0, 1500, np.array([0.0, 0.0, 9.0])), FAST, np.random.default_rng(0))
    assert found.saved < 0.05
    assert found.full_accuracy - found.accuracy <= FAST.epsilon


def test_labels_of_other_classes_are_told() -> None:
    good = drawn_held_out(0, 50)
    with pytest.raises(UserError, match=r"labels from 0 to 9; allowed: 0 to 5, the network's classes; take held-out"):
        HeldOut(logits_NEK=good.logits_NEK, labels_N=np.arange(50) % 10, latency_ms_E=LATENCY_MS)


def test_what_is_no_classifier_is_told() -> None:
    with pytest.raises(UserError, match=r"exits: 1 class of answers; allowed: classifiers with two or more"):
        HeldOut(logits_NEK=np.zeros((9, 2, 1)), labels_N=np.zeros(9, np.int64), latency_ms_E=LATENCY_MS[:2])
    with pytest.raises(UserError, match=r"logits of shape \(9, 2\); allowed: \(images, exits, classes\)"):
        HeldOut(logits_NEK=np.zeros((9, 2)), labels_N=np.zeros(9, np.int64), latency_ms_E=LATENCY_MS[:2])


def test_an_exit_that_always_answers_the_same_is_told() -> None:
    held_out = drawn_held_out(0, 1500)
    held_out.logits_NEK[:, 1, 4] = 99.0
    with pytest.raises(
        UserError, match=r"exit 1: answers class 4 to all 1500 images; train it longer, or leave it out"
    ):
        calibrate(held_out, FAST, np.random.default_rng(0))


@pytest.mark.parametrize("settings", [{"epsilon": 0.0}, {"epsilon": 1.0}, {"confidence": 95.0}])
def test_a_promise_is_a_share(settings: dict[str, float]) -> None:
    (name,) = settings
    with pytest.raises(UserError, match=rf"exits\.{name}: .*; allowed: between 0 and 1"):
        PromiseSettings(**settings)  # type: ignore[arg-type]
