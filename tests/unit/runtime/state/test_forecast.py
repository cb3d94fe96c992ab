"""Forecasts are better than "as now" where a signal has a pattern, and lose nothing to speak of where it has none."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.numbers import RecursiveLeastSquares
from adaptive_runtime.state.forecast import Forecaster
from tests.support import examples

HORIZONS = 5
LOST_AT_MOST = 1.06
SEEDS = st.integers(0, 2**32 - 1)


def autoregressive(seed: int, length: int, period: float = 12.0) -> NDArray[np.float64]:
    """A damped oscillation around 0.5 that noise drives."""
    rng = np.random.default_rng(seed)
    first, second = 2 * 0.9 * np.cos(2 * np.pi / period), -0.81
    values = np.zeros(length)
    for now in range(2, length):
        values[now] = first * values[now - 1] + second * values[now - 2] + 0.04 * rng.normal()
    return values + 0.5


def errors(values: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean absolute errors of what was used, and of "as now", by horizon (H,)."""
    forecaster = Forecaster(horizons=HORIZONS)
    made = []
    for value in values:
        forecast = forecaster.observe(value)
        assert forecast is not None
        made.append(forecast.values_H)
    used_H, as_now_H = np.zeros(HORIZONS), np.zeros(HORIZONS)
    for ahead in range(1, HORIZONS + 1):
        came = np.array(values[ahead:])
        used_H[ahead - 1] = np.abs(np.array([each[ahead - 1] for each in made[:-ahead]]) - came).mean()
        as_now_H[ahead - 1] = np.abs(np.array(values[:-ahead]) - came).mean()
    return used_H, as_now_H


@pytest.mark.parametrize(("period", "share"), [(8, 0.6), (12, 0.7), (16, 0.8)])
def test_on_autoregressive_signals_the_forecast_beats_as_now(period: float, share: float) -> None:
    pairs = [errors(list(autoregressive(seed, 400, period))) for seed in range(8)]
    shares = [used_H.mean() / as_now_H.mean() for used_H, as_now_H in pairs]
    assert np.mean(shares) <= share
    assert max(shares) <= 0.92


@given(seed=SEEDS)
@settings(max_examples=examples(8), deadline=None)
def test_on_random_walks_the_forecast_does_not_lose(seed: int) -> None:
    walk = 0.5 + np.cumsum(0.03 * np.random.default_rng(seed).normal(size=300))
    used_H, as_now_H = errors(list(walk))
    assert used_H.mean() <= LOST_AT_MOST * as_now_H.mean()


@given(seed=SEEDS, longest=st.integers(3, 20))
@settings(max_examples=examples(12), deadline=None)
def test_on_signals_that_stand_still_and_jump_the_forecast_does_not_lose(seed: int, longest: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, longest + 1, 200)
    values = np.repeat(rng.integers(0, 4, 200) / 3, lengths)[:200] + 0.01 * rng.normal(size=200)
    used_H, as_now_H = errors(list(values))
    assert used_H.mean() <= LOST_AT_MOST * as_now_H.mean()


@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=120))
@settings(max_examples=examples(30), deadline=None)
def test_the_method_with_the_smaller_recent_error_is_used_and_told(values: list[float]) -> None:
    forecaster = Forecaster(horizons=HORIZONS)
    for count, value in enumerate(values):
        forecast = forecaster.observe(value)
        assert forecast is not None
        assert min(values[: count + 1]) - 1e-9 <= forecast.values_H.min()
        assert forecast.values_H.max() <= max(values[: count + 1]) + 1e-9
        for ahead, method in enumerate(forecast.methods):
            if method == "as now":
                assert forecast.values_H[ahead] == pytest.approx(value)
            else:
                assert forecast.autoregressive_errors_H[ahead] < forecast.as_now_errors_H[ahead]


def test_the_errors_told_are_those_of_the_last_steps() -> None:
    values = list(autoregressive(3, 200))
    forecaster = Forecaster(horizons=2)
    made = [forecaster.observe(value) for value in values]
    values_NH = np.array([forecast.values_H for forecast in made if forecast is not None])
    told = forecaster.forecast
    assert told is not None
    last = range(len(values) - 60, len(values))
    for ahead in (1, 2):
        used = np.mean([abs(values_NH[at - ahead, ahead - 1] - values[at]) for at in last])
        as_now = np.mean([abs(values[at - ahead] - values[at]) for at in last])
        assert told.used_errors_H[ahead - 1] == pytest.approx(used)
        assert told.as_now_errors_H[ahead - 1] == pytest.approx(as_now)
    assert told.methods == ("autoregressive",) * 2


@given(low=st.floats(-1e3, 1e3), size=st.floats(1e-3, 1e4))
@settings(max_examples=examples(10), deadline=None)
def test_the_unit_of_a_signal_does_not_matter(low: float, size: float) -> None:
    values = autoregressive(1, 60)
    plain, scaled = Forecaster(), Forecaster(low=low, high=low + size)
    for value in values:
        one, other = plain.observe(float(value)), scaled.observe(low + size * float(value))
        assert one is not None
        assert other is not None
        np.testing.assert_allclose((other.values_H - low) / size, one.values_H, rtol=1e-5, atol=1e-5)


def test_missing_values_leave_the_last_forecast_and_are_learned_from_in_no_way() -> None:
    forecaster = Forecaster()
    assert forecaster.observe(None) is None
    for value in autoregressive(2, 100):
        before = forecaster.observe(float(value))
    assert forecaster.observe(None) is before
    after = forecaster.observe(0.9)
    assert after is not None
    assert before is not None
    np.testing.assert_array_equal(after.as_now_errors_H, before.as_now_errors_H)
    np.testing.assert_array_equal(after.values_H, 0.9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(AdaptiveError, match="allowed: a finite number, or None"):
        Forecaster().observe(value)


@given(seed=SEEDS)
@settings(max_examples=examples(10), deadline=None)
def test_recursive_least_squares_is_ridge_regression_with_fading_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features_NP, targets_N = rng.normal(size=(50, 3)), rng.normal(size=50)
    memory, ridge = 40.0, 0.5
    model = RecursiveLeastSquares(1, 3, memory=memory, ridge=ridge)
    for features_P, target in zip(features_NP, targets_N, strict=True):
        model.learn(features_P[None], np.array([target]))
    ages_N = np.arange(50)[::-1]
    weights_N = np.exp(-ages_N / memory)
    squares_PP = (features_NP.T * weights_N) @ features_NP + ridge * np.exp(-50 / memory) * np.eye(3)
    expected_P = np.linalg.solve(squares_PP, features_NP.T @ (weights_N * targets_N))
    np.testing.assert_allclose(model.coefficients_TP[0], expected_P, rtol=1e-6, atol=1e-8)


def test_forgetting_does_not_make_coefficients_wild_where_there_is_nothing_to_learn() -> None:
    model = RecursiveLeastSquares(1, 2, memory=10, ridge=0.1)
    for _ in range(5000):
        model.learn(np.array([[1.0, 0.0]]), np.array([0.5]))
    assert np.trace(model.inverse_TPP[0]) <= 2 / 0.1 + 1e-9
    model.learn(np.array([[1.0, 1e-3]]), np.array([0.6]))
    assert np.abs(model.coefficients_TP).max() < 1.0
